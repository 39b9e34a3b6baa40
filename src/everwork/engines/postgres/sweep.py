"""sweep: one bounded step of upkeep. It looks first, without a lock, and writes only if there is something to do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from everwork.core.decide import Known
from everwork.core.limits import KEY_MAX, STATISTICS_KEEP_HOURS, SWEEP_STEP_MAX
from everwork.core.outcome import Lapse
from everwork.core.retention import KEEP_MS
from everwork.core.states import Cause, State
from everwork.engines.postgres import change, registry
from everwork.engines.postgres.opened import START, OpenStore
from everwork.engines.postgres.read import server_now_ms
from everwork.engines.postgres.settle import end_lapsed
from everwork.engines.rules import AUTOMATIC_REQUEUE
from everwork.engines.values import Swept
from everwork.exceptions import EngineError
from everwork.logs import get_logger

log = get_logger("everwork.postgres")

TURN: Final = "sweep"
TURN_MS: Final = 5_000
FOLD_FROM: Final = 2_000
FOLD_MAX: Final = 20_000
FOLDS_MAX: Final = 5
TIDY_EVERY_MS: Final = 3_600_000
VACUUM_EVERY_JOBS: Final = 50_000

Keeps = Sequence[int | None]
"""How long a type's policy lets completed and cancelled jobs be kept, and failed ones."""


async def sweep(parts: OpenStore, holder: str) -> Swept:
    """What anybody may do, and what the holder of the turn does."""
    swept = await _sweep_lapsed(parts)
    left_ms = await registry.turn_left_ms(parts, TURN, holder)
    if left_ms < 0:
        return swept
    if left_ms < TURN_MS // 2 and not await registry.take_turn(parts, TURN, holder, TURN_MS):
        return swept
    rules = await parts.connections.look(parts.sql("sweep")["rules"])
    now_ms = await server_now_ms(parts)
    requeued, has_more = await _sweep_dead(parts, rules, now_ms)
    swept = replace(swept, requeued=requeued, more=swept.more or has_more)
    if not has_more:  # Of those that are to come back, none is deleted for its age.
        swept = await _sweep_finished(parts, swept, {queue: keeps for queue, *keeps, _, _, _, _ in rules}, now_ms)
    await _fold(parts)
    await _tidy(parts)
    return swept


async def _sweep_lapsed(parts: OpenStore) -> Swept:
    """Take lapsed leases away, cancel what has expired and what waits for a group that was dropped."""
    sql, now_ms = parts.sql("sweep"), parts.now_ms()
    rows = await parts.connections.look(sql["lapsed"], now_ms, SWEEP_STEP_MAX)
    found = [(Lapse(row[0], row[1], row[6]), Known(*row[:4]), (row[4], row[5])) for row in rows]
    lapsed = await end_lapsed(parts, found) if found else 0
    stranded = [key for (key,) in await parts.connections.look(sql["stranded"], SWEEP_STEP_MAX)]
    if stranded:
        await change.cancel_rows(parts, stranded, Cause.CANCEL, "its group was dropped", only_pending=True)
    due = [key for (key,) in await parts.connections.look(sql["expired"], now_ms, SWEEP_STEP_MAX)]
    expired = await change.cancel_rows(parts, due, Cause.EXPIRE, "expired", only_pending=True) if due else []
    is_full = SWEEP_STEP_MAX in (len(rows), len(due), len(stranded))
    return Swept(lapsed=lapsed, expired=len(expired), more=is_full)


async def _sweep_dead(parts: OpenStore, rules: Sequence[Any], now_ms: int) -> tuple[int, bool]:
    """Bring dead letters back whose time has come: how many, and whether there may be more."""
    due = [Due(queue, *rule) for queue, _, _, *rule in rules if rule[0] is not None]
    return await requeue_dead(parts, due, now_ms) if due else (0, False)


async def _sweep_finished(parts: OpenStore, swept: Swept, keeps: Mapping[int, Keeps], now_ms: int) -> Swept:
    """Delete what is past its retention among the next finished jobs."""
    broom = parts.broom
    old = await _old(parts, keeps, now_ms)
    if not old and broom.after > START:
        # Behind many that one type keeps long, another may have some that are old.
        old = await _old(parts, keeps, now_ms)
    deleted = await change.delete(parts, old) if old else []
    return replace(swept, deleted=len(deleted), more=swept.more or (bool(old) and broom.after > START))


async def _old(parts: OpenStore, keeps: Mapping[int, Keeps], now_ms: int) -> list[int]:
    """Those of the next finished jobs that are past their retention."""
    broom = parts.broom
    rows = await parts.connections.look(parts.sql("sweep")["finished"], *broom.after, SWEEP_STEP_MAX)
    old = [key for queue, state, key, at_ms in rows if at_ms + _keep_ms(State(state), keeps.get(queue)) <= now_ms]
    broom.after, broom.is_thorough = _next(rows, bool(old), broom.is_thorough)
    return old


def _keep_ms(state: State, keeps: Keeps | None) -> int:
    """How long a job is kept: as its type's policy says, or as usual."""
    said = None if keeps is None else keeps[state is State.FAILED]
    return KEEP_MS[state] if said is None else said


def _next(rows: list[Any], is_old: bool, is_thorough: bool) -> tuple[tuple[int, int, int], bool]:
    """Where the next step begins. Keys grow with age: where the first jobs of a queue and state are young, so are the
    others, but for few that finished late; a thorough pass, once an hour, meets those."""
    if len(rows) < SWEEP_STEP_MAX:
        return START, False
    queue, state, key = rows[-1][:3]
    return (queue, state, key if is_old or is_thorough else KEY_MAX), is_thorough


async def _fold(parts: OpenStore) -> None:
    """Fold counts and statistics, and vacuum what the jobs have left behind."""
    [(deltas, measured)] = await parts.connections.look(parts.sql("sweep")["deltas"], FOLD_FROM)
    if measured >= FOLD_FROM:
        await _fold_measures(parts)
    if deltas >= FOLD_FROM:
        await _fold_counts(parts)


async def _fold_measures(parts: OpenStore) -> None:
    """A batch of unlike jobs leaves many rows, and every reader sums up what is left of them."""
    for _ in range(FOLDS_MAX):
        [(folded,)] = await parts.connections.tidy(parts.sql("sweep")["fold_measures"], FOLD_MAX)
        if folded < FOLD_MAX:
            break


async def _fold_counts(parts: OpenStore) -> None:
    sql, broom = parts.sql("sweep"), parts.broom
    [(_, finished)] = await parts.connections.tidy(sql["fold_counts"], FOLD_MAX)
    await parts.connections.tidy(sql["fold_work"], FOLD_MAX)
    broom.unvacuumed += finished
    if broom.unvacuumed >= VACUUM_EVERY_JOBS:
        broom.unvacuumed = 0
        if broom.vacuuming is None or broom.vacuuming.done():
            broom.vacuuming = asyncio.get_running_loop().create_task(_vacuum(parts))


async def _vacuum(parts: OpenStore) -> None:
    """Beside the sweep, which must not wait: leases lapse meanwhile."""
    sql = parts.sql("sweep")
    try:
        await parts.connections.vacuum(sql["vacuum"])
        await parts.connections.vacuum(sql["vacuum_deltas"])
    except EngineError as error:
        log.warning("cannot vacuum, autovacuum will", error=str(error))


async def _tidy(parts: OpenStore) -> None:
    """Once an hour: what nobody needs any more."""
    now_ms = await server_now_ms(parts)
    if not 0 <= now_ms - parts.broom.tidied_at_ms < TIDY_EVERY_MS:
        sql = parts.sql("sweep")
        await parts.connections.rows(sql["forget_zeros"])
        await parts.connections.rows(sql["forget_hours"], parts.now_ms(), STATISTICS_KEEP_HOURS)
        await parts.connections.rows(sql["forget_registered"], parts.now_ms())
        parts.broom.tidied_at_ms = now_ms
        parts.broom.is_thorough = True
        await parts.connections.rows(sql["look_back"])


class Due(NamedTuple):
    """A queue, after how long its dead letters come back and how often, and the last of them that was looked at."""

    queue: int
    requeue_ms: int
    rounds: int
    at_ms: int
    key: int


async def requeue_dead(parts: OpenStore, due: Sequence[Due], now_ms: int) -> tuple[int, bool]:
    """Bring back what was dead long enough; how many, and whether there may be more.

    Each dead letter is looked at once by each rule, when its time has come: those that may not come back cost nothing.
    """
    columns = _columns([(one.queue, one.at_ms, one.key, now_ms - one.requeue_ms) for one in due])
    rows = await parts.connections.look(parts.sql("sweep")["dead"], *columns, SWEEP_STEP_MAX)
    if not rows:
        return 0, False
    rounds = {one.queue: one.rounds for one in due}
    keys = [key for queue, _, key, past in rows if past < rounds[queue]]
    back = await change.requeue_rows(parts, keys, said=AUTOMATIC_REQUEUE) if keys else []
    ends = {queue: (at_ms, key) for queue, at_ms, key, _ in rows}
    seen = [(one.queue, one.at_ms, one.key, *ends[one.queue]) for one in due if one.queue in ends]
    await parts.connections.rows(parts.sql("sweep")["looked_back"], *_columns(seen))
    return len(back), len(rows) == SWEEP_STEP_MAX


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]
