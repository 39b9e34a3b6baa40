"""The registry: pauses, policies, groups, entries of any kind, turns."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from everwork.core.breaker import Breaker
from everwork.core.limits import DEFAULT_GROUP
from everwork.core.queries import TypeInfo
from everwork.core.states import Cause
from everwork.engines.rules import TOP_NAME, told_breaker
from everwork.engines.sqlite.breaker import is_probe_live
from everwork.engines.sqlite.shared import cancel_pending
from everwork.engines.sqlite.statements import statements
from everwork.engines.sqlite.transaction import Transaction
from everwork.engines.values import Registered

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
