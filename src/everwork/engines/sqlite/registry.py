"""Types with their policies, groups, registry entries, turns, triggers."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from everwork.codec.json import decode_policy
from everwork.core.breaker import Breaker
from everwork.core.leasing import Verdict
from everwork.core.limits import DEFAULT_GROUP
from everwork.core.policy import TypePolicy
from everwork.core.queries import TypeInfo
from everwork.core.states import Cause, State
from everwork.engines.contract.registry import Registry
from everwork.engines.contract.triggers import Triggers
from everwork.engines.rules import TOP_NAME, fired, jobs_of, mark_text, marks_of, marks_passed, passages, with_breaker
from everwork.engines.sqlite.capacity import Limited, is_probe_live, open_breaker, recount_queue, reset_breaker
from everwork.engines.sqlite.create import create
from everwork.engines.sqlite.shared import cancel_pending
from everwork.engines.sqlite.statements import statements
from everwork.engines.sqlite.store.opened import SqliteBase
from everwork.engines.sqlite.transaction import Transaction
from everwork.engines.sqlite.types import delete_type, forget_types
from everwork.engines.values import Fire, Fired, Registered, TriggerMark, TriggerMarks

SQL = statements("registry")


class SqliteRegistry(SqliteBase, Registry, Triggers):
    """Types, policies, breakers, groups, registry entries, turns, triggers."""

    async def pause(self, type: str, paused: bool) -> None:
        await self._store.writer.submit(lambda tx: pause(tx, type, paused))

    async def open_breaker(self, type: str, open_ms: int) -> None:
        await self._store.writer.submit(lambda tx: open_breaker(tx, type, open_ms))

    async def reset_breaker(self, type: str) -> bool:
        return await self._store.writer.submit(lambda tx: reset_breaker(tx, type))

    async def set_policy(self, type: str, policy: str | None) -> None:
        await self._store.writer.submit(lambda tx: set_policy(tx, type, policy))

    async def add_group(self, type: str, group: str) -> None:
        await self._store.writer.submit(lambda tx: add_group(tx, type, group))

    async def drop_group(self, type: str, group: str) -> int:
        return await self._store.writer.submit(lambda tx: drop_group(tx, type, group))

    async def types(self) -> list[TypeInfo]:
        return await self._store.query(types)

    async def delete_type(self, type: str) -> Verdict:
        return await self._store.writer.submit(lambda tx: delete_type(tx, type))

    async def forget_types(self, policies: Mapping[str, str | None], unused_ms: int) -> list[str]:
        return await self._store.writer.submit(lambda tx: forget_types(tx, policies, unused_ms))

    async def register(self, kind: str, name: str, body: str, ttl_ms: int | None = None) -> None:
        await self._store.writer.submit(lambda tx: register(tx, kind, name, body, ttl_ms))

    async def unregister(self, kind: str, name: str) -> bool:
        return await self._store.writer.submit(lambda tx: unregister(tx, kind, name))

    async def registered(self, kind: str | None) -> list[Registered]:
        return await self._store.query(lambda cursor, now_ms: registered(cursor, kind, now_ms))

    async def last_registered(self, kind: str, limit: int, below: str | None = None) -> list[Registered]:
        return await self._store.query(lambda cursor, now_ms: last_registered(cursor, kind, limit, below, now_ms))

    async def take_turn(self, name: str, holder: str, ttl_ms: int) -> bool:
        return await self._store.writer.submit(lambda tx: take_turn(tx, name, holder, ttl_ms))

    async def subscribe(self, type: str, worker: str) -> str:
        return await self._store.writer.submit(lambda tx: subscribe(tx, type, worker))

    async def trigger_marks(self, triggers: Sequence[str]) -> TriggerMarks:
        known = await self._store.query(lambda cursor, now_ms: known_marks(cursor, triggers, now_ms))
        if known is not None:
            return known
        return await self._store.writer.submit(lambda tx: begun_marks(tx, triggers))

    async def fire(self, fires: Sequence[Fire]) -> list[Fired]:
        return await self._store.writer.submit(lambda tx: fire(tx, fires))


def pause(tx: Transaction, type: str, paused: bool) -> None:
    """Stop or resume the activation of a type."""
    tx.type(type)
    tx.cursor.execute(SQL["pause"], (int(paused), type))
    tx.woken = True


def add_group(tx: Transaction, type: str, group: str) -> None:
    """Register a group of a type."""
    tx.type(type)
    tx.cursor.execute(statements("shared")["make_queue"], (type, group))
    tx.forget_type(type)


def drop_group(tx: Transaction, type: str, group: str) -> int:
    """Drop a group and cancel its pending jobs; the default group cannot be dropped."""
    if group == DEFAULT_GROUP:
        return 0
    (queue,) = tx.cursor.execute(SQL["read_group"], (type, group)).fetchone() or (None,)
    if queue is None:
        return 0
    keys = [key for (key,) in tx.cursor.execute(SQL["pending_of"], (queue,)).fetchall()]
    tx.cursor.execute(SQL["drop_queue"], (queue,))
    tx.forget_type(type)
    return cancel_pending(tx, keys, Cause.CANCEL, f"group '{group}' was dropped")


def types(cursor: sqlite3.Cursor, now_ms: int) -> list[TypeInfo]:
    """Every known type. Both tables are read once, in order: one query per type would take several times as long."""
    queues: defaultdict[str, list[QueueRow]] = defaultdict(list)
    for row in cursor.execute(SQL["queues"]).fetchall():
        queues[row[0]].append(QueueRow._make(row))
    return [_type(cursor, row, queues[row[0]], now_ms) for row in cursor.execute(SQL["types"]).fetchall()]


class QueueRow(NamedTuple):
    """A queue of a type: a row of the statement `queues`."""

    type: str
    group: str
    is_dropped: int
    asked_at_ms: int | None
    rate_since_ms: int | None
    rate_taken: int


def _type(cursor: sqlite3.Cursor, row: tuple[Any, ...], queues: Sequence[QueueRow], now_ms: int) -> TypeInfo:
    name, paused, policy, rate_jobs, rate_ms, *state = row
    breaker = Breaker._make(state)
    full_until_ms: list[int] = []
    if rate_jobs is not None:
        full_until_ms = [
            one.rate_since_ms + rate_ms
            for one in queues
            if one.rate_since_ms is not None
            and one.rate_taken >= rate_jobs
            and abs(now_ms - one.rate_since_ms) < rate_ms
        ]
    info = TypeInfo(
        name,
        bool(paused),
        policy,
        tuple(one.group for one in queues if one.group != DEFAULT_GROUP and not one.is_dropped),
        max((one.asked_at_ms for one in queues if one.asked_at_ms is not None), default=None),
        rate_full_until_ms=max(full_until_ms, default=None),
    )
    return with_breaker(info, breaker, now_ms, is_probe_live=is_probe_live(cursor, breaker))


def register(tx: Transaction, kind: str, name: str, body: str, ttl_ms: int | None) -> None:
    """Insert or replace an entry."""
    tx.cursor.execute(SQL["register"], (kind, name, body, None if ttl_ms is None else tx.now_ms + ttl_ms))


def unregister(tx: Transaction, kind: str, name: str) -> bool:
    """Delete an entry."""
    return tx.cursor.execute(SQL["unregister"], (kind, name, tx.now_ms)).rowcount == 1


def registered(cursor: sqlite3.Cursor, kind: str | None, now_ms: int) -> list[Registered]:
    """The entries of a kind, or of every kind."""
    if kind is None:
        rows = cursor.execute(SQL["all_registered"], (now_ms,))
    else:
        rows = cursor.execute(SQL["registered"], (kind, now_ms))
    return [Registered._make(row) for row in rows.fetchall()]


def last_registered(cursor: sqlite3.Cursor, kind: str, limit: int, below: str | None, now_ms: int) -> list[Registered]:
    """The entries of a kind with the highest names."""
    rows = cursor.execute(SQL["last_registered"], (kind, TOP_NAME if below is None else below, now_ms, limit))
    return [Registered._make(row) for row in rows.fetchall()]


def take_turn(tx: Transaction, name: str, holder: str, ttl_ms: int) -> bool:
    """Take or extend a turn."""
    parameters = (name, holder, tx.now_ms, tx.now_ms + ttl_ms)
    return tx.cursor.execute(SQL["take_turn"], parameters).rowcount == 1


def subscribe(tx: Transaction, type: str, worker: str) -> str:
    """The group of a worker class: the default one for the first worker, a separate group for each further one."""
    (owner,) = tx.cursor.execute(SQL["owner"], (type,)).fetchone() or (None,)
    if owner == worker:
        return DEFAULT_GROUP
    has_group = any(group == worker for _, group in tx.type(type).queues)
    if owner is None and not has_group:
        tx.cursor.execute(SQL["own"], (type, worker))
        return DEFAULT_GROUP
    if not has_group:
        add_group(tx, type, worker)
    return worker


def turn_left_ms(cursor: sqlite3.Cursor, name: str, holder: str, now_ms: int) -> int:
    """How much longer a holder keeps its turn: 0 if the turn is free, negative if another holder has it."""
    current, until_ms = cursor.execute(SQL["holder"], (name,)).fetchone() or (None, 0)
    if until_ms <= now_ms:
        return 0
    return int(until_ms - now_ms) * (1 if current == holder else -1)


def set_policy(tx: Transaction, type: str, policy: str | None) -> None:
    """Store a type's policy, and apply its limits."""
    tx.type(type)
    tx.flush()  # Jobs recounted below must not be added again.
    new = decode_policy(policy)
    old_max, old_lane_max, old_back_ms, old_rounds = tx.cursor.execute(SQL["limits"], (type,)).fetchone()
    tx.cursor.execute(SQL["set_policy"], (type, policy, *_columns(new)))
    if (old_back_ms, old_rounds) != (new.failed_job_retry_ms, new.failed_job_retry_rounds):
        tx.cursor.execute(SQL["look_back"], (type,))
    tx.forget_type(type)
    tx.limits.forget()
    if (old_max, old_lane_max) != (new.max_running, new.max_running_per_key):
        for queue, solo in tx.cursor.execute(SQL["queues_of"], (type,)).fetchall():
            recount_queue(tx, Limited(queue, solo, type, new.max_running, new.max_running_per_key))
    tx.woken = True


def _columns(policy: TypePolicy) -> tuple[int | None, ...]:
    """The numbers of a policy that have their own columns, because SQL statements check them."""
    breaker, rate = policy.breaker, policy.rate
    return (
        *((breaker.failures, breaker.open_ms) if breaker else (None, None)),
        policy.max_running,
        policy.max_running_per_key,
        *((rate.jobs, rate.window_ms) if rate else (None, None)),
        policy.failed_job_retry_ms,
        policy.failed_job_retry_rounds,
        policy.keep_ms(State.COMPLETED),
        policy.keep_ms(State.FAILED),
    )


FIRE = statements("fire")


def known_marks(cursor: sqlite3.Cursor, triggers: Sequence[str], now_ms: int) -> TriggerMarks | None:
    """The marks of triggers; None if one of them has not started."""
    marks = _marks(cursor, triggers)
    if not all(trigger in marks for trigger in triggers):
        return None
    return TriggerMarks(now_ms, [marks[trigger] for trigger in triggers])


def begun_marks(tx: Transaction, triggers: Sequence[str]) -> TriggerMarks:
    """The marks of triggers; those that have not started do so now."""
    body = mark_text(TriggerMark(tx.now_ms, tx.now_ms))
    known = _marks(tx.cursor, triggers)
    tx.cursor.executemany(FIRE["put_mark"], [(trigger, body) for trigger in triggers if trigger not in known])
    marks = _marks(tx.cursor, triggers)
    return TriggerMarks(tx.now_ms, [marks[trigger] for trigger in triggers])


def fire(tx: Transaction, fires: Sequence[Fire]) -> list[Fired]:
    """Mark the scheduled times that have not passed yet as passed, and create their jobs."""
    judged = passages(fires, _marks(tx.cursor, {fire.trigger for fire in fires}))
    tx.cursor.executemany(FIRE["put_mark"], list(marks_passed(fires, judged).items()))
    return fired(fires, judged, create(tx, jobs_of(fires, judged)))


def _marks(cursor: sqlite3.Cursor, triggers: Iterable[str]) -> dict[str, TriggerMark]:
    return marks_of(cursor.execute(SQL["marks"], (json.dumps(list(triggers)),)).fetchall())
