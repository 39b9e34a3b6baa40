"""The registry: pauses, policies, groups, entries of any kind, turns, triggers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg

from everwork.codec.json import decode_policy
from everwork.core.breaker import Breaker
from everwork.core.job import NewJob
from everwork.core.leasing import Created
from everwork.core.limits import DEFAULT_GROUP, SWEEP_STEP_MAX
from everwork.core.policy import TypePolicy
from everwork.core.queries import TypeInfo
from everwork.core.states import Cause, State
from everwork.engines.postgres.change import cancel_rows
from everwork.engines.postgres.connections import first
from everwork.engines.postgres.create import create_document, created_of
from everwork.engines.postgres.opened import OpenStore
from everwork.engines.rules import (
    TOP_NAME,
    Passage,
    before,
    fired,
    if_ahead,
    jobs_of,
    mark_text,
    marks_of,
    marks_passed,
    passages,
    with_breaker,
)
from everwork.engines.values import Fire, Fired, Registered, TriggerMark, TriggerMarks


async def pause(parts: OpenStore, type: str, paused: bool) -> None:
    """Stop or resume the activation of a type."""
    sql = parts.sql("registry")
    await parts.connections.rows(sql["make_type"], type)
    await parts.connections.rows(sql["pause"], type, paused)
    parts.notifier.tell_work([type])


async def reset_breaker(parts: OpenStore, type: str) -> bool:
    """Close a type's breaker; whether it was not closed."""
    was_open = first(await parts.connections.rows(parts.sql("registry")["reset_breaker"], type))
    parts.notifier.tell_work([type])
    return bool(was_open)


async def open_breaker(parts: OpenStore, type: str, open_ms: int) -> None:
    """Let a type's breaker be open for a time."""
    sql = parts.sql("registry")
    await parts.connections.rows(sql["make_type"], type)
    await parts.connections.rows(sql["open_breaker"], type, open_ms, parts.now_ms())


async def set_policy(parts: OpenStore, type: str, policy: str | None) -> None:
    """Keep a type's policy."""
    sql = parts.sql("registry")
    await parts.connections.rows(sql["make_type"], type)
    said = decode_policy(policy)
    attempts = None if policy is None else said.retry.max_attempts
    await parts.connections.rows(sql["set_policy"], type, policy, attempts, *_numbers(said))
    parts.notifier.tell_work([type])


def _numbers(policy: TypePolicy) -> tuple[int | None, ...]:
    """What statements decide by."""
    breaker, rate = policy.breaker, policy.rate
    return (
        *((None, None) if breaker is None else (breaker.failures, breaker.open_ms)),
        *(policy.max_running, policy.max_running_per_key),
        *((None, None) if rate is None else (rate.jobs, rate.window_ms)),
        *(policy.failed_job_retry_ms, policy.failed_job_retry_rounds),
        *(policy.keep_ms(State.COMPLETED), policy.keep_ms(State.FAILED)),
    )


async def add_group(parts: OpenStore, type: str, group: str) -> None:
    """Register a group of a type."""
    sql = parts.sql("registry")
    await parts.connections.rows(sql["make_type"], type)
    await parts.connections.rows(sql["add_group"], type, group)


async def drop_group(parts: OpenStore, type: str, group: str) -> int:
    """Forget a group and cancel what waits for it; the default group is not one that can be dropped."""
    sql = parts.sql("registry")
    queue = first(await parts.connections.rows(sql["drop_group"], type, group))
    cancelled = 0
    while queue is not None:
        keys = [key for (key,) in await parts.connections.look(sql["pending_of"], queue, SWEEP_STEP_MAX)]
        if not keys:
            break
        reason = f"group '{group}' was dropped"
        cancelled += len(await cancel_rows(parts, keys, Cause.CANCEL, reason, only_pending=True))
    return cancelled


async def types(parts: OpenStore) -> list[TypeInfo]:
    """Every type that was ever seen."""
    rows = await parts.connections.look(parts.sql("registry")["types"], parts.now_ms())
    return [_type_info(row) for row in rows]


def _type_info(row: Any) -> TypeInfo:
    name, paused, policy, groups, asked_at_ms, full_until_ms, *breaker, is_probe_live, now_ms = row
    full_until_ms = if_ahead(full_until_ms, now_ms)
    info = TypeInfo(name, paused, policy, tuple(groups), asked_at_ms, rate_full_until_ms=full_until_ms)
    return with_breaker(info, Breaker(*breaker), now_ms, is_probe_live=is_probe_live)


async def register(parts: OpenStore, kind: str, name: str, body: str, ttl_ms: int | None) -> None:
    """Write an entry."""
    await parts.connections.rows(parts.sql("registry")["register"], kind, name, body, ttl_ms, parts.now_ms())


async def unregister(parts: OpenStore, kind: str, name: str) -> bool:
    """Take an entry away."""
    return bool(await parts.connections.rows(parts.sql("registry")["unregister"], kind, name, parts.now_ms()))


async def registered(parts: OpenStore, kind: str | None) -> list[Registered]:
    """The entries of a kind, or all."""
    sql, look = parts.sql("registry"), parts.connections.look
    # Two statements: a plan that must also serve "all" would read the whole registry for one kind.
    if kind is None:
        rows = await look(sql["all_registered"], parts.now_ms())
    else:
        rows = await look(sql["registered"], kind, parts.now_ms())
    return [Registered(*row) for row in rows]


async def last_registered(parts: OpenStore, kind: str, limit: int, below: str | None) -> list[Registered]:
    """The entries of a kind with the highest names."""
    top = TOP_NAME if below is None else below
    rows = await parts.connections.look(parts.sql("registry")["last_registered"], kind, top, limit, parts.now_ms())
    return [Registered(*row) for row in rows]


async def take_turn(parts: OpenStore, name: str, holder: str, ttl_ms: int) -> bool:
    """Take or prolong a turn."""
    return bool(await parts.connections.rows(parts.sql("registry")["take_turn"], name, holder, ttl_ms, parts.now_ms()))


async def subscribe(parts: OpenStore, type: str, worker: str) -> str:
    """The group of a worker class: the default one for the first that asks, one of its own for each other."""
    sql = parts.sql("registry")

    async def act(connection: asyncpg.Connection) -> str:
        await connection.execute(sql["make_type"], type)
        if await connection.fetchval(sql["subscribe"], type, worker) == worker:
            return DEFAULT_GROUP
        await connection.execute(sql["add_group"], type, worker)
        return worker

    return await parts.connections.run(act, in_transaction=True)


async def turn_left_ms(parts: OpenStore, name: str, holder: str) -> int:
    """How long a holder still has its turn: 0 if nobody has it, negative if somebody else does."""
    rows = await parts.connections.look(parts.sql("registry")["turn"], name, parts.now_ms())
    if not rows or rows[0][1] <= 0:
        return 0
    return int(rows[0][1]) * (1 if rows[0][0] == holder else -1)


async def trigger_marks(parts: OpenStore, triggers: Sequence[str]) -> TriggerMarks:
    """Where triggers stand; those that have not begun do so now."""
    sql = parts.sql("registry")
    rows = await parts.connections.look(sql["marks"], list(triggers), parts.now_ms())
    marks = _marks(rows)
    if not marks.keys() >= set(triggers):
        rows = await parts.connections.rows(sql["begin_marks"], list(triggers), parts.now_ms())
        marks = _marks(rows)
    return TriggerMarks(rows[0][0], [marks[trigger] for trigger in triggers])


async def fire(parts: OpenStore, fires: Sequence[Fire]) -> list[Fired]:
    """Let time points pass that have not, and create their jobs."""
    if not fires:
        return []

    async def act(connection: asyncpg.Connection) -> tuple[list[Fired], bool]:
        judged = await _pass(parts, connection, fires)
        created, is_awaited = await _create(parts, connection, jobs_of(fires, judged))
        return fired(fires, judged, created), is_awaited

    answer, is_awaited = await parts.connections.run(act, in_transaction=True)
    types = {fire.job.type for fire, one in zip(fires, answer, strict=True) if fire.job and one.created}
    if types:
        parts.notifier.tell_work(types, everybody=is_awaited)
    return answer


def _marks(rows: Sequence[Any]) -> dict[str, TriggerMark]:
    return marks_of((name, body) for _, name, body in rows if name is not None)


async def _pass(parts: OpenStore, connection: asyncpg.Connection, fires: Sequence[Fire]) -> list[Passage]:
    """Take the marks of the triggers for this transaction, judge, and move those that have points to pass."""
    sql = parts.sql("fire")
    first = {fire.trigger: mark_text(before(fire.point_ms)) for fire in reversed(fires)}
    await connection.execute(sql["take_marks"], list(first), list(first.values()))
    rows = await connection.fetch(sql["taken_marks"], list(first))
    judged = passages(fires, marks_of((name, body) for name, body in rows))
    marks = marks_passed(fires, judged)
    if marks:
        await connection.execute(sql["put_marks"], list(marks), list(marks.values()))
    return judged


async def _create(
    parts: OpenStore, connection: asyncpg.Connection, jobs: Sequence[NewJob]
) -> tuple[list[Created], bool]:
    if not jobs:
        return [], False
    document = create_document(jobs, parts.now_ms())
    fresh, keys, is_awaited = await connection.fetchrow(parts.sql("create")["create"], document)
    return created_of(fresh, keys), is_awaited
