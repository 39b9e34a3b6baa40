"""The registry: pauses, policies, groups, entries of any kind, turns, triggers."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from everwork.codec.json import decode_policy
from everwork.core.breaker import Breaker
from everwork.core.limits import DEFAULT_GROUP
from everwork.core.policy import TypePolicy
from everwork.core.queries import TypeInfo
from everwork.core.states import Cause, State
from everwork.engines.rules import TOP_NAME, fired, jobs_of, mark_text, marks_of, marks_passed, passages, told_breaker
from everwork.engines.sqlite.capacity import Limited, count_anew, is_probe_live
from everwork.engines.sqlite.create import create
from everwork.engines.sqlite.shared import cancel_pending
from everwork.engines.sqlite.statements import statements
from everwork.engines.sqlite.transaction import Transaction
from everwork.engines.values import Fire, Fired, Registered, TriggerMark, TriggerMarks

SQL = statements("registry")


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
    """Forget a group and cancel what waits for it; the default group is not one that can be dropped."""
    if group == DEFAULT_GROUP:
        return 0
    row = tx.cursor.execute(SQL["read_group"], (type, group)).fetchone()
    if row is None:
        return 0
    keys = [key for (key,) in tx.cursor.execute(SQL["pending_of"], row).fetchall()]
    tx.cursor.execute(SQL["drop_queue"], row)
    tx.forget_type(type)
    return cancel_pending(tx, keys, Cause.CANCEL, f"group '{group}' was dropped")


def types(cursor: sqlite3.Cursor, now_ms: int) -> list[TypeInfo]:
    """Every type that was ever seen."""
    return [_type(cursor, row, now_ms) for row in cursor.execute(SQL["types"], (now_ms,)).fetchall()]


def _type(cursor: sqlite3.Cursor, row: tuple[Any, ...], now_ms: int) -> TypeInfo:
    name, paused, policy, groups, asked_at_ms, rate_full_until_ms, *state = row
    breaker = Breaker._make(state)
    info = TypeInfo(
        name,
        bool(paused),
        policy,
        tuple(sorted(json.loads(groups))),
        asked_at_ms,
        rate_full_until_ms=rate_full_until_ms,
    )
    return told_breaker(info, breaker, now_ms, is_probe_live=is_probe_live(cursor, breaker))


def register(tx: Transaction, kind: str, name: str, body: str, ttl_ms: int | None) -> None:
    """Write an entry."""
    tx.cursor.execute(SQL["register"], (kind, name, body, None if ttl_ms is None else tx.now_ms + ttl_ms))


def unregister(tx: Transaction, kind: str, name: str) -> bool:
    """Take an entry away."""
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
    """Take or prolong a turn."""
    parameters = (name, holder, tx.now_ms, tx.now_ms + ttl_ms)
    return tx.cursor.execute(SQL["take_turn"], parameters).rowcount == 1


def subscribe(tx: Transaction, type: str, worker: str) -> str:
    """The group of a worker class: the default one for the first that asks, one of its own for each other."""
    row = tx.cursor.execute(SQL["owner"], (type,)).fetchone()
    if row == (worker,):
        return DEFAULT_GROUP
    has_group = any(group == worker for _, group in tx.type(type).queues)
    if row is None and not has_group:
        tx.cursor.execute(SQL["own"], (type, worker))
        return DEFAULT_GROUP
    if not has_group:
        add_group(tx, type, worker)
    return worker


def turn_left_ms(cursor: sqlite3.Cursor, name: str, holder: str, now_ms: int) -> int:
    """How long a holder still has its turn: 0 if nobody has it, negative if somebody else does."""
    row = cursor.execute(SQL["holder"], (name,)).fetchone()
    if row is None or row[1] <= now_ms:
        return 0
    return int(row[1] - now_ms) * (1 if row[0] == holder else -1)


def set_policy(tx: Transaction, type: str, policy: str | None) -> None:
    """Keep a type's policy."""
    tx.type(type)
    tx.flush()  # What is counted anew below must not be added once more.
    said = decode_policy(policy)
    *limits, back_ms, rounds = tx.cursor.execute(SQL["limits"], (type,)).fetchone()
    tx.cursor.execute(SQL["set_policy"], (type, policy, *_numbers(said)))
    if (back_ms, rounds) != (said.failed_job_retry_ms, said.failed_job_retry_rounds):
        tx.cursor.execute(SQL["look_back"], (type,))
    tx.forget_type(type)
    tx.holds.forget()
    if limits != [said.max_running, said.max_running_per_key]:
        for queue, solo in tx.cursor.execute(SQL["queues_of"], (type,)).fetchall():
            count_anew(tx, Limited(queue, solo, type, said.max_running, said.max_running_per_key))
    tx.woken = True


def _numbers(said: TypePolicy) -> tuple[int | None, ...]:
    breaker, rate = said.breaker, said.rate
    return (
        *((breaker.failures, breaker.open_ms) if breaker else (None, None)),
        said.max_running,
        said.max_running_per_key,
        *((rate.jobs, rate.window_ms) if rate else (None, None)),
        said.failed_job_retry_ms,
        said.failed_job_retry_rounds,
        said.keep_ms(State.COMPLETED),
        said.keep_ms(State.FAILED),
    )


FIRE = statements("fire")
REGISTRY = statements("registry")


def known_marks(cursor: sqlite3.Cursor, triggers: Sequence[str], now_ms: int) -> TriggerMarks | None:
    """Where triggers stand; None if one of them has not begun."""
    marks = _marks(cursor, triggers)
    if not all(trigger in marks for trigger in triggers):
        return None
    return TriggerMarks(now_ms, [marks[trigger] for trigger in triggers])


def begun_marks(tx: Transaction, triggers: Sequence[str]) -> TriggerMarks:
    """Where triggers stand; those that have not begun do so now."""
    body = mark_text(TriggerMark(tx.now_ms, tx.now_ms))
    known = _marks(tx.cursor, triggers)
    tx.cursor.executemany(FIRE["put_mark"], [(trigger, body) for trigger in triggers if trigger not in known])
    marks = _marks(tx.cursor, triggers)
    return TriggerMarks(tx.now_ms, [marks[trigger] for trigger in triggers])


def fire(tx: Transaction, fires: Sequence[Fire]) -> list[Fired]:
    """Let time points pass that have not, and create their jobs."""
    judged = passages(fires, _marks(tx.cursor, {fire.trigger for fire in fires}))
    tx.cursor.executemany(FIRE["put_mark"], list(marks_passed(fires, judged).items()))
    return fired(fires, judged, create(tx, jobs_of(fires, judged)))


def _marks(cursor: sqlite3.Cursor, triggers: Iterable[str]) -> dict[str, TriggerMark]:
    return marks_of(cursor.execute(REGISTRY["marks"], (json.dumps(list(triggers)),)).fetchall())
