"""Seeded mutants: small ways to break an engine, applied at run time. The checker must catch every one.

Each replacement asserts that it found what it replaces, so that a mutant cannot become a sound engine unnoticed.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from everwork.core.outcome import Release
from everwork.core.states import FINISHED_STATES, State
from everwork.engines import rules
from everwork.engines.sqlite import change, finish, settle, writer
from everwork.engines.sqlite.statements import statements
from everwork.engines.sqlite.transaction import Transaction

DROP_ATTEMPT_CHECK: Final = "drop-attempt-check"
ACK_BEFORE_COMMIT: Final = "ack-before-commit"
NO_ATTEMPT_ON_CRASH: Final = "no-attempt-on-crash"
RELEASE_WITHOUT_STATE_CHECK: Final = "release-without-state-check"
SWEEP_WITHOUT_HORIZON: Final = "sweep-without-horizon"
TRIGGER_FROM_NOW: Final = "trigger-from-now"
COUNTER_OUTSIDE_TRANSACTION: Final = "counter-outside-transaction"
ATTEMPT_REUSED_AFTER_RELEASE: Final = "attempt-reused-after-release"
ATTEMPT_REUSED_AFTER_REQUEUE: Final = "attempt-reused-after-requeue"
DEDUPE_IGNORED: Final = "dedupe-ignored"
EVENTS_WITHOUT_COMPLETION: Final = "events-without-completion"
REPEAT_FORGOTTEN: Final = "repeat-forgotten"

MISSED: Final = "NOT CAUGHT"


def apply(name: str) -> None:
    """Break the engine of this process in the way that the name says; an empty name leaves it sound."""
    if name:
        _MUTATIONS[name]()


def replace_text(operation: str, statement: str, old: str, new: str) -> None:
    """Change the text of a statement of the SQLite engine."""
    texts = statements(operation)
    assert old in texts[statement], f"{operation}.sql, {statement}: {old!r} is no longer there"
    texts[statement] = texts[statement].replace(old, new)


def replace_source(owner: Any, function: str, old: str, new: str) -> None:
    """Change the source of a function of a module or class, and put the changed function in its place."""
    source = textwrap.dedent(inspect.getsource(getattr(owner, function)))
    assert old in source, f"{function}: {old!r} is no longer there"
    scope = owner.__dict__ if inspect.ismodule(owner) else vars(sys.modules[owner.__module__])
    made: dict[str, Any] = {}
    exec(source.replace(old, new), scope, made)
    setattr(owner, function, made[function])


def _drop_attempt_check() -> None:
    for statement in ("complete", "completed_some", "read_leased"):
        replace_text("settle", statement, "AND (l.attempt = o.value OR o.value = 0)", "")


def _ack_before_commit() -> None:
    """The commit comes a moment after the answer."""
    replace_source(writer.Writer, "_transact", 'self._cursor.execute("COMMIT")', "pass")
    replace_source(
        writer.ThreadWriter,
        "_deliver",
        "self._loop.call_soon_threadsafe(self._answer, answers, woken, finished)",
        "self._loop.call_soon_threadsafe(self._answer, answers, woken, finished); commit_late(self)",
    )
    vars(writer)["commit_late"] = _commit_late


def _commit_late(writer: Any) -> None:
    if writer._connection.in_transaction:
        time.sleep(0.02)
        writer._cursor.execute("COMMIT")


def _no_attempt_on_crash() -> None:
    counted, uncounted = "r.attempts, d.max_attempts", "r.attempts - (d.kind == 'lapse'), d.max_attempts"
    replace_source(settle, "_retry", counted, uncounted)


def _release_without_state_check() -> None:
    """Whatever is finished goes back to pending when somebody releases it."""
    replace_source(
        settle, "_release", "rows = _read(tx, outcomes)", "rows = _read(tx, outcomes) or revive(tx, outcomes)"
    )
    vars(settle)["revive"] = _revive


def _revive(tx: Transaction, outcomes: Sequence[Release]) -> list[settle.Leased]:
    rows = []
    for outcome in outcomes:
        found = finish.where(tx, outcome.key)
        if found is not None and found.state in FINISHED_STATES:
            place = (found.queue, found.state, found.key)
            tx.cursor.execute(statements("shared")["delete_finished"], place)
            tx.move(found.queue, found.lane, State(found.state), State.PROCESSING)
            rows.append(settle.Leased(**_as_leased(found)))
    return rows


def _as_leased(found: finish.Where) -> dict[str, Any]:
    known = {name: getattr(found, name) for name in settle.Leased._fields if name != "policy"}
    return {**known, "activated_at_ms": found.activated_at_ms or 0, "worker": found.worker or "", "policy": None}


def _sweep_without_horizon() -> None:
    replace_text("sweep", "lapsed", "lease_until_ms <= ?", "? IS NOT NULL")


def _trigger_from_now() -> None:
    """Nothing in the engine: whoever fires builds the dedupe key from now, see `plan.trigger_requests`."""


def _counter_outside_transaction() -> None:
    commit = 'self._cursor.execute("COMMIT")'
    replace_source(writer.Writer, "_transact", "tx.flush()", f"{commit}; self._begin(); tx.flush()")


def _forget_the_end_of_an_attempt() -> None:
    """The store itself refuses two ends of one attempt number; a mutant that reuses it must get past that."""
    replace_text("shared", "append_history", "INSERT INTO", "INSERT OR REPLACE INTO")


def _attempt_reused_after_release() -> None:
    _forget_the_end_of_an_attempt()
    replace_source(settle, "_release", "r.attempt, r.attempts - 1", "r.attempt - 1, r.attempts - 1")


def _attempt_reused_after_requeue() -> None:
    _forget_the_end_of_an_attempt()
    replace_source(change, "_requeue", "attempts=0", "attempt=0, attempts=0")


def _dedupe_ignored() -> None:
    replace_text("create", "claim_dedupe", "ON CONFLICT DO NOTHING", "ON CONFLICT DO UPDATE SET key = excluded.key")


def _events_without_completion() -> None:
    carried = "if o.events and o.key in accepted"
    replace_source(settle, "_complete", carried, "if o.events")


def _repeat_forgotten() -> None:
    replace_source(rules, "refused", "Judged(Verdict.REPEATED, state)", "Judged(Verdict.LEASE_LOST, state)")
    vars(settle)["refused"] = rules.refused


_MUTATIONS: Final[dict[str, Callable[[], None]]] = {
    DROP_ATTEMPT_CHECK: _drop_attempt_check,
    ACK_BEFORE_COMMIT: _ack_before_commit,
    NO_ATTEMPT_ON_CRASH: _no_attempt_on_crash,
    RELEASE_WITHOUT_STATE_CHECK: _release_without_state_check,
    SWEEP_WITHOUT_HORIZON: _sweep_without_horizon,
    TRIGGER_FROM_NOW: _trigger_from_now,
    COUNTER_OUTSIDE_TRANSACTION: _counter_outside_transaction,
    ATTEMPT_REUSED_AFTER_RELEASE: _attempt_reused_after_release,
    ATTEMPT_REUSED_AFTER_REQUEUE: _attempt_reused_after_requeue,
    DEDUPE_IGNORED: _dedupe_ignored,
    EVENTS_WITHOUT_COMPLETION: _events_without_completion,
    REPEAT_FORGOTTEN: _repeat_forgotten,
}
NAMES: Final = tuple(_MUTATIONS)
