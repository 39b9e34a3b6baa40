"""sweep: one bounded step of maintenance. It reads first, without a lock, and writes only if needed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from everwork.core.decide import Known
from everwork.core.limits import (
    KEY_MAX,
    PRODUCER_KEEP_MS,
    PRODUCERS_MAX,
    STATISTICS_KEEP_HOURS,
    SWEEP_STEP_MAX,
    WORKER_ROWS_MAX,
)
from everwork.core.measures import OTHER_WORKERS
from everwork.core.outcome import Lapse
from everwork.core.retention import KEEP_MS
from everwork.core.states import Cause, State
from everwork.engines.postgres.change import cancel_rows, delete_rows, requeue_rows
from everwork.engines.postgres.opened import START, OpenStore
from everwork.engines.postgres.read import server_now_ms
from everwork.engines.postgres.registry import PostgresRegistry, turn_left_ms
from everwork.engines.postgres.settle import end_lapsed
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
PURGES_MAX: Final = 20
VACUUM_EVERY_JOBS: Final = 50_000
VACUUM_JOBS_PER_LIVE: Final = 1_000
"""A vacuum reads the index entries of all live jobs; claims read those of jobs that have finished since the last one.
Together they cost least if the number of jobs between two vacuums grows with the square root of the live jobs."""


class QueueRule(NamedTuple):
    """What the policy of a queue's type says about its finished jobs: a row of the statement `rules`."""

    queue: int
    keep_completed_ms: int | None
    """How long completed and cancelled jobs are kept."""
    keep_failed_ms: int | None
    requeue_ms: int | None
    """After how long dead letters are requeued automatically."""
    requeue_rounds: int
    """The maximum number of automatic requeues per dead letter."""
    back_at_ms: int
    """The last dead letter that was examined: when it failed, and its key."""
    back_key: int


class PostgresSweep(PostgresRegistry):
    """The sweep; part of it needs a turn of the registry."""

    async def sweep(self, holder: str) -> Swept:
        store = self._store
        swept = await _sweep_live(store)
        left_ms = await turn_left_ms(store, TURN, holder)
        if left_ms < 0:
            return swept
        if left_ms < TURN_MS // 2 and not await self.take_turn(TURN, holder, TURN_MS):
            return swept
        rules = [QueueRule(*row) for row in await store.connections.read(store.sql("sweep")["rules"])]
        now_ms = await server_now_ms(store)
        requeued, has_more = await _requeue_dead(store, rules, now_ms)
        swept = replace(swept, requeued=requeued, more=swept.more or has_more)
        if not has_more:  # A dead letter that will still be requeued is not deleted because of its age.
            swept = await _delete_old(store, swept, {rule.queue: rule for rule in rules}, now_ms)
        await _fold(store)
        await _tidy(store)
        return swept


async def _sweep_live(store: OpenStore) -> Swept:
    """End expired leases; cancel pending jobs that have expired or belong to a dropped group."""
    sql, now_ms = store.sql("sweep"), store.now_ms()
    rows = await store.connections.read(sql["lapsed"], now_ms, SWEEP_STEP_MAX)
    found = [
        (Lapse(key, attempt, worker), Known(key, attempt, attempts, max_attempts), (retry, type_policy))
        for key, attempt, attempts, max_attempts, retry, type_policy, worker in rows
    ]
    lapsed = await end_lapsed(store, found) if found else 0
    stranded = [key for (key,) in await store.connections.read(sql["stranded"], SWEEP_STEP_MAX)]
    if stranded:
        await cancel_rows(store, stranded, Cause.CANCEL, "its group was dropped", only_pending=True)
    due = [key for (key,) in await store.connections.read(sql["expired"], now_ms, SWEEP_STEP_MAX)]
    expired = await cancel_rows(store, due, Cause.EXPIRE, "expired", only_pending=True) if due else []
    is_full = SWEEP_STEP_MAX in (len(rows), len(due), len(stranded))
    return Swept(lapsed=lapsed, expired=len(expired), more=is_full)


async def _requeue_dead(store: OpenStore, rules: Sequence[QueueRule], now_ms: int) -> tuple[int, bool]:
    """Requeue dead letters that are due; return how many, and whether there may be more.

    Each rule examines a dead letter once, when it is due: those that may not be requeued cost nothing later.
    """
    spans = [
        (rule.queue, rule.back_at_ms, rule.back_key, now_ms - rule.requeue_ms)
        for rule in rules
        if rule.requeue_ms is not None
    ]
    if not spans:
        return 0, False
    rows = await store.connections.read(store.sql("sweep")["dead"], *_columns(spans), SWEEP_STEP_MAX)
    if not rows:
        return 0, False
    rounds_max = {rule.queue: rule.requeue_rounds for rule in rules}
    keys = [key for queue, _, key, rounds in rows if rounds < rounds_max[queue]]
    requeued = await requeue_rows(store, keys, is_automatic=True) if keys else []
    ends = {queue: (at_ms, key) for queue, at_ms, key, _ in rows}
    examined = [(queue, at_ms, key, *ends[queue]) for queue, at_ms, key, _ in spans if queue in ends]
    await store.connections.fetch(store.sql("sweep")["move_back_marks"], *_columns(examined))
    return len(requeued), len(rows) == SWEEP_STEP_MAX


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


async def _delete_old(store: OpenStore, swept: Swept, rules: Mapping[int, QueueRule], now_ms: int) -> Swept:
    """Delete jobs past their retention among the next finished ones."""
    state = store.sweep_state
    old = await _old(store, rules, now_ms)
    if not old and state.after > START:
        # Behind many jobs that one type keeps for a long time, another type may have old ones.
        old = await _old(store, rules, now_ms)
    if old:
        await delete_rows(store, list(old), list(old.values()))
    return replace(swept, deleted=len(old), more=swept.more or (bool(old) and state.after > START))


async def _old(store: OpenStore, rules: Mapping[int, QueueRule], now_ms: int) -> dict[int, int]:
    """The jobs past their retention among the next finished ones, each with its latest attempt."""
    sweep_state = store.sweep_state
    rows = await store.connections.read(store.sql("sweep")["finished"], *sweep_state.after, SWEEP_STEP_MAX)
    old = {
        key: attempt
        for queue, state, key, at_ms, attempt in rows
        if at_ms + _keep_ms(State(state), rules.get(queue)) <= now_ms
    }
    sweep_state.after, sweep_state.is_thorough = _next(rows, bool(old), sweep_state.is_thorough)
    return old


def _keep_ms(state: State, rule: QueueRule | None) -> int:
    """How long a job is kept: by the policy of its type, or by default."""
    if rule is None:
        return KEEP_MS[state]
    keep_ms = rule.keep_failed_ms if state is State.FAILED else rule.keep_completed_ms
    return KEEP_MS[state] if keep_ms is None else keep_ms


def _next(rows: list[Any], is_old: bool, is_thorough: bool) -> tuple[tuple[int, int, int], bool]:
    """Where the next step starts. Newer jobs have higher keys: if the first jobs of a queue and state are recent, so
    are the others, except a few that finished late; a full pass once an hour finds those.
    """
    if len(rows) < SWEEP_STEP_MAX:
        return START, False
    queue, state, key, *_ = rows[-1]
    return (queue, state, key if is_old or is_thorough else KEY_MAX), is_thorough


async def _fold(store: OpenStore) -> None:
    """Fold counts and statistics, and vacuum the dead rows of finished jobs."""
    [(deltas, measured, opened)] = await store.connections.read(store.sql("sweep")["deltas"], FOLD_FROM)
    if measured >= FOLD_FROM:
        await _fold_measures(store)
    if deltas >= FOLD_FROM:
        await _fold_counts(store)
    if opened >= FOLD_FROM:
        await _fold_open_lane_delta(store)


async def _fold_measures(store: OpenStore) -> None:
    """Fold measures in several steps: a mixed batch leaves many rows, and every reader has to sum those not folded."""
    for _ in range(FOLDS_MAX):
        [(folded,)] = await store.connections.fetch_unsynced(store.sql("sweep")["fold_measures"], FOLD_MAX)
        if folded < FOLD_MAX:
            break


async def _fold_counts(store: OpenStore) -> None:
    sql, state = store.sql("sweep"), store.sweep_state
    [(_, finished)] = await store.connections.fetch_unsynced(sql["fold_counts"], FOLD_MAX)
    await store.connections.fetch_unsynced(sql["fold_work"], FOLD_MAX, WORKER_ROWS_MAX, OTHER_WORKERS)
    state.unvacuumed += finished
    if state.unvacuumed >= VACUUM_EVERY_JOBS:
        [(live,)] = await store.connections.read(sql["live_rows"])
        if state.unvacuumed < jobs_between_vacuums(live):
            return
        state.unvacuumed = 0
        if state.vacuuming is None or state.vacuuming.done():
            state.vacuuming = asyncio.get_running_loop().create_task(_vacuum(store))


async def _fold_open_lane_delta(store: OpenStore) -> None:
    """Fold the rows that creates add for each job, and that claims would fold if the type had workers."""
    sql = store.sql("sweep")
    for (queue,) in await store.connections.read(sql["queues_with_open_lane_delta"]):
        await store.connections.fetch_unsynced(sql["fold_open_lane_delta"], queue)


def jobs_between_vacuums(live: int) -> int:
    """After how many finished jobs dead rows are vacuumed, if there are this many live jobs."""
    return max(VACUUM_EVERY_JOBS, math.isqrt(live * VACUUM_JOBS_PER_LIVE))


async def _vacuum(store: OpenStore) -> None:
    """Vacuum in a separate task, so that the sweep does not wait for it: leases keep expiring."""
    sql = store.sql("sweep")
    try:
        await store.connections.vacuum(sql["vacuum"])
        await store.connections.vacuum(sql["vacuum_deltas"])
    except EngineError as error:
        log.warning("cannot vacuum, leaving it to autovacuum", error=str(error))


async def _purge_types(store: OpenStore) -> None:
    """Delete the rows of deleted types; rows that a transaction may still use are left for the next hourly run."""
    for _ in range(PURGES_MAX):
        [(purged,)] = await store.connections.fetch(store.sql("sweep")["purge_types"], store.now_ms(), SWEEP_STEP_MAX)
        if purged < SWEEP_STEP_MAX:
            break


async def _tidy(store: OpenStore) -> None:
    """Once an hour, delete what is no longer needed."""
    now_ms = await server_now_ms(store)
    if not 0 <= now_ms - store.sweep_state.tidied_at_ms < TIDY_EVERY_MS:
        sql = store.sql("sweep")
        await store.connections.fetch(sql["forget_zeros"])
        await store.connections.fetch(sql["forget_hours"], store.now_ms(), STATISTICS_KEEP_HOURS)
        await store.connections.fetch(sql["forget_producers"], now_ms - PRODUCER_KEEP_MS)
        await store.connections.fetch(sql["forget_more_producers"], PRODUCERS_MAX)
        await store.connections.fetch(sql["forget_registered"], store.now_ms())
        await store.connections.fetch(sql["forget_parked"], now_ms)
        await _purge_types(store)
        store.sweep_state.tidied_at_ms = now_ms
        store.sweep_state.is_thorough = True
        await store.connections.fetch(sql["reset_back_marks"])
