"""The breakers of types: what ended attempts make of them, and how people open and close them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from everwork.core.breaker import CLOSED, Breaker, BreakerState, CircuitBreaker, after_failures, after_success, opened
from everwork.engines.sqlite.shared import where
from everwork.engines.sqlite.statements import statements
from everwork.engines.sqlite.transaction import Transaction

SQL = statements("shared")
USUAL_RULE = CircuitBreaker()

Attempt = tuple[int, int, int]
"""A queue, a job, and the number of its attempt."""


def count_successes(tx: Transaction, queues: Iterable[int], completed: set[int]) -> None:
    """Let the breakers of these queues know that jobs of theirs were completed."""
    for queue in queues:
        breaker = tx.holds.breaker(queue)
        if breaker is not CLOSED:
            is_probe = breaker.probe_key in completed and _is_probe(tx, breaker)
            _change(tx, queue, after_success(breaker, is_probe=is_probe))


def count_failures(tx: Transaction, counted: Sequence[Attempt]) -> None:
    """Let each breaker know, at once, of all the attempts of its type that failed."""
    by_type: dict[str, list[Attempt]] = {}
    for attempt in counted:
        by_type.setdefault(tx.holds.of(attempt[0]).type, []).append(attempt)
    for attempts in by_type.values():
        queue = attempts[0][0]
        rule, breaker = tx.holds.of(queue).rule, tx.holds.breaker(queue)
        if rule is None and breaker.open_until_ms is None:
            continue
        is_probe = any(breaker.is_probe(*attempt[1:]) for attempt in attempts)
        rule = rule or USUAL_RULE
        _change(tx, queue, after_failures(breaker, len(attempts), is_probe=is_probe, rule=rule, now_ms=tx.now_ms))


def open_breaker(tx: Transaction, type: str, open_ms: int) -> None:
    """Let a type's breaker be open for so long from now."""
    queue = tx.type(type).queues[0][0]
    _change(tx, queue, opened(tx.holds.breaker(queue), open_ms, tx.now_ms))


def reset_breaker(tx: Transaction, type: str) -> bool:
    """Close a type's breaker and forget its failures; whether it was open, or half-open."""
    row = tx.cursor.execute(SQL["breaker"], (type,)).fetchone()
    if row is None:
        return False
    tx.holds.write_breaker(type, CLOSED)
    tx.woken = True
    return Breaker._make(row).state(tx.now_ms) is not BreakerState.CLOSED


def is_probe_live(cursor: sqlite3.Cursor, breaker: Breaker) -> bool:
    """Whether the job that tries whether things work again is still leased for that attempt."""
    if breaker.probe_key is None:
        return False
    return bool(cursor.execute(SQL["probe"], (breaker.probe_key, breaker.probe_attempt)).fetchone()[0])


def _is_probe(tx: Transaction, breaker: Breaker) -> bool:
    """Whether the probe's job was completed by the probe's attempt: who completes need not have named it."""
    found = None if breaker.probe_key is None else where(tx, breaker.probe_key)
    return found is not None and found.attempt == breaker.probe_attempt


def _change(tx: Transaction, queue: int, breaker: Breaker) -> None:
    before = tx.holds.breaker(queue)
    if breaker != before:
        tx.holds.write_breaker(tx.holds.of(queue).type, breaker)
        if before.open_until_ms is not None and breaker.open_until_ms is None:
            tx.woken = True
