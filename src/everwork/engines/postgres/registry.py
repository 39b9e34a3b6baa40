"""The registry: types with their policies and breakers, groups, entries of any kind, turns, triggers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg

from everwork.codec.json import decode_policy
from everwork.core.breaker import Breaker
from everwork.core.job import NewJob
from everwork.core.leasing import Created, Verdict
from everwork.core.limits import DEFAULT_GROUP, SWEEP_STEP_MAX
from everwork.core.policy import TypePolicy
from everwork.core.queries import TypeInfo
from everwork.core.states import Cause, State
from everwork.engines.contract.registry import Registry
from everwork.engines.contract.triggers import Triggers
from everwork.engines.postgres.change import cancel_rows
from everwork.engines.postgres.connections import first
from everwork.engines.postgres.create import create_document, created_of
from everwork.engines.postgres.opened import OpenStore, PostgresBase
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


class PostgresRegistry(PostgresBase, Registry, Triggers):
    """Types, policies, breakers, groups, registry entries, turns, triggers."""

    async def pause(self, type: str, paused: bool) -> None:
        await self._change_type(type, "pause", paused)
        self._store.notifier.notify_work([type])

    async def reset_breaker(self, type: str) -> bool:
        store = self._store
        was_open = first(await store.connections.fetch(store.sql("registry")["reset_breaker"], type))
        store.notifier.notify_work([type])
        return bool(was_open)

    async def open_breaker(self, type: str, open_ms: int) -> None:
        await self._change_type(type, "open_breaker", open_ms, self._store.now_ms())

    async def set_policy(self, type: str, policy: str | None) -> None:
        decoded = decode_policy(policy)
        max_attempts = None if policy is None else decoded.retry.max_attempts
        await self._change_type(type, "set_policy", policy, max_attempts, *_limits(decoded))
        self._store.notifier.notify_work([type])

    async def add_group(self, type: str, group: str) -> None:
        await self._change_type(type, "add_group", group)

    async def drop_group(self, type: str, group: str) -> int:
        store, sql = self._store, self._store.sql("registry")
        # The default group cannot be dropped: the statement finds no queue for it.
        queue = first(await store.connections.fetch(sql["drop_group"], type, group))
        cancelled = 0
        while queue is not None:
            keys = [key for (key,) in await store.connections.read(sql["pending_of"], queue, SWEEP_STEP_MAX)]
            if not keys:
                break
            reason = f"group '{group}' was dropped"
            cancelled += len(await cancel_rows(store, keys, Cause.CANCEL, reason, only_pending=True))
        return cancelled

    async def types(self) -> list[TypeInfo]:
        store = self._store
        rows = await store.connections.read(store.sql("registry")["types"], store.now_ms())
        return [_type_info(row) for row in rows]

    async def delete_type(self, type: str) -> Verdict:
        store, sql = self._store, self._store.sql("registry")["delete_type"]
        return Verdict(first(await store.connections.fetch(sql, type, store.now_ms())))

    async def forget_types(self, policies: Mapping[str, str | None], unused_ms: int) -> list[str]:
        store, sql = self._store, self._store.sql("registry")["forget_types"]
        names = sorted(policies)
        rows = await store.connections.fetch(sql, names, [policies[name] for name in names], unused_ms, store.now_ms())
        return [name for (name,) in rows]

    async def register(self, kind: str, name: str, body: str, ttl_ms: int | None = None) -> None:
        store, sql = self._store, self._store.sql("registry")["register"]
        await store.connections.fetch(sql, kind, name, body, ttl_ms, store.now_ms())

    async def unregister(self, kind: str, name: str) -> bool:
        store, sql = self._store, self._store.sql("registry")["unregister"]
        return bool(await store.connections.fetch(sql, kind, name, store.now_ms()))

    async def registered(self, kind: str | None) -> list[Registered]:
        store, sql = self._store, self._store.sql("registry")
        # Two statements: a plan that also has to serve "all" would read the whole registry for one kind.
        if kind is None:
            rows = await store.connections.read(sql["all_registered"], store.now_ms())
        else:
            rows = await store.connections.read(sql["registered"], kind, store.now_ms())
        return [Registered(*row) for row in rows]

    async def last_registered(self, kind: str, limit: int, below: str | None = None) -> list[Registered]:
        store, sql = self._store, self._store.sql("registry")["last_registered"]
        top = TOP_NAME if below is None else below
        rows = await store.connections.read(sql, kind, top, limit, store.now_ms())
        return [Registered(*row) for row in rows]

    async def take_turn(self, name: str, holder: str, ttl_ms: int) -> bool:
        store, sql = self._store, self._store.sql("registry")["take_turn"]
        return bool(await store.connections.fetch(sql, name, holder, ttl_ms, store.now_ms()))

    async def subscribe(self, type: str, worker: str) -> str:
        sql = self._store.sql("registry")

        async def act(connection: asyncpg.Connection) -> str:
            await connection.execute(sql["take_type"], type)
            if await connection.fetchval(sql["subscribe"], type, worker) == worker:
                return DEFAULT_GROUP
            await connection.execute(sql["add_group"], type, worker)
            return worker

        return await self._store.connections.run(act, in_transaction=True)

    async def trigger_marks(self, triggers: Sequence[str]) -> TriggerMarks:
        store, sql = self._store, self._store.sql("registry")
        now_ms, marks = _marks(await store.connections.read(sql["marks"], list(triggers), store.now_ms()))
        if not marks.keys() >= set(triggers):
            rows = await store.connections.fetch(sql["begin_marks"], list(triggers), store.now_ms())
            now_ms, marks = _marks(rows)
        return TriggerMarks(now_ms, [marks[trigger] for trigger in triggers])

    async def fire(self, fires: Sequence[Fire]) -> list[Fired]:
        if not fires:
            return []
        store = self._store

        async def act(connection: asyncpg.Connection) -> tuple[list[Fired], bool]:
            judged = await _pass(store, connection, fires)
            created, is_awaited = await _create(store, connection, jobs_of(fires, judged))
            return fired(fires, judged, created), is_awaited

        answers, is_awaited = await store.connections.run(act, in_transaction=True)
        types = {fire.job.type for fire, answer in zip(fires, answers, strict=True) if fire.job and answer.created}
        if types:
            store.notifier.notify_work(types, elsewhere=is_awaited)
        return answers

    async def _change_type(self, type: str, statement: str, *values: object) -> None:
        """Change a type, which is created if it does not exist, and cannot be deleted in between."""
        sql = self._store.sql("registry")

        async def act(connection: asyncpg.Connection) -> None:
            await connection.execute(sql["take_type"], type)
            await connection.execute(sql[statement], type, *values)

        await self._store.connections.run(act, in_transaction=True)


async def turn_left_ms(store: OpenStore, name: str, holder: str) -> int:
    """How much longer a holder keeps its turn: 0 if the turn is free, negative if another holder has it."""
    rows = await store.connections.read(store.sql("registry")["turn"], name, store.now_ms())
    for current_holder, left_ms in rows:
        if left_ms > 0:
            return int(left_ms) if current_holder == holder else -int(left_ms)
    return 0


def _limits(policy: TypePolicy) -> tuple[int | None, ...]:
    """The numbers of a policy that statements check, as arguments of the statement `set_policy`."""
    breaker, rate = policy.breaker, policy.rate
    return (
        *((None, None) if breaker is None else (breaker.failures, breaker.open_ms)),
        *(policy.max_running, policy.max_running_per_key),
        *((None, None) if rate is None else (rate.jobs, rate.window_ms)),
        *(policy.failed_job_retry_ms, policy.failed_job_retry_rounds),
        *(policy.keep_ms(State.COMPLETED), policy.keep_ms(State.FAILED)),
    )


def _type_info(row: Any) -> TypeInfo:
    name, paused, policy, groups, asked_at_ms, full_until_ms, *breaker, is_probe_live, now_ms = row
    full_until_ms = if_ahead(full_until_ms, now_ms)
    info = TypeInfo(name, paused, policy, tuple(groups), asked_at_ms, rate_full_until_ms=full_until_ms)
    return with_breaker(info, Breaker(*breaker), now_ms, is_probe_live=is_probe_live)


def _marks(rows: Sequence[Any]) -> tuple[int, dict[str, TriggerMark]]:
    """The engine's current time, which every row repeats, and the marks of the triggers that have started."""
    return rows[0]["now_ms"], marks_of((name, body) for _, name, body in rows if name is not None)


async def _pass(store: OpenStore, connection: asyncpg.Connection, fires: Sequence[Fire]) -> list[Passage]:
    """Lock the marks of the triggers for this transaction, judge the scheduled times, and advance the marks."""
    sql = store.sql("fire")
    initial = {fire.trigger: mark_text(before(fire.point_ms)) for fire in reversed(fires)}
    await connection.execute(sql["take_marks"], list(initial), list(initial.values()))
    rows = await connection.fetch(sql["taken_marks"], list(initial))
    judged = passages(fires, marks_of((name, body) for name, body in rows))
    marks = marks_passed(fires, judged)
    if marks:
        await connection.execute(sql["put_marks"], list(marks), list(marks.values()))
    return judged


async def _create(
    store: OpenStore, connection: asyncpg.Connection, jobs: Sequence[NewJob]
) -> tuple[list[Created], bool]:
    if not jobs:
        return [], False
    document = create_document(jobs, store.now_ms())
    new_keys, keys, is_awaited = await connection.fetchrow(store.sql("create")["create"], document)
    return created_of(new_keys, keys), is_awaited
