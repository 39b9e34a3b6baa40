"""Ways to break the SQLite engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from everwork.core.outcome import Release
from everwork.core.states import FINISHED_STATES, State
from everwork.engines import rules
from everwork.engines import rules as judged
from everwork.engines.sqlite import change, create, registry, settle, shared
from everwork.engines.sqlite.statements import statements
from everwork.engines.sqlite.store import thread_writer, writer
from everwork.engines.sqlite.transaction import Transaction
from tests.torture import mutants
from tests.torture.replacing import replace_source


def replace_text(operation: str, statement: str, old: str, new: str) -> None:
    """Change the text of a statement of the SQLite engine."""
    texts = statements(operation)
    assert old in texts[statement], f"{operation}.sql, {statement}: {old!r} is no longer there"
    texts[statement] = texts[statement].replace(old, new)


def _drop_attempt_check() -> None:
    for statement in ("complete", "completed_some", "read_leased"):
        replace_text("settle", statement, "AND (l.attempt = o.value OR o.value = 0)", "")


def _ack_before_commit() -> None:
    """The commit comes a moment after the answer."""
    replace_source(writer.Writer, "_transact", 'self._cursor.execute("COMMIT")', "pass")
    replace_source(
        thread_writer.ThreadWriter,
        "_deliver",
        "self._loop.call_soon_threadsafe(self._answer, answers, woken, finished)",
        "self._loop.call_soon_threadsafe(self._answer, answers, woken, finished); commit_late(self)",
    )
    vars(thread_writer)["commit_late"] = _commit_late


def _commit_late(writer: Any) -> None:
    if writer._connection.in_transaction:
        time.sleep(0.02)
        writer._cursor.execute("COMMIT")


def _no_attempt_on_crash() -> None:
    counted = "row.attempts, decision.max_attempts"
    uncounted = "row.attempts - (decision.kind == 'lapse'), decision.max_attempts"
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
        found = shared.find_job(tx, outcome.key)
        if found is not None and found.state in FINISHED_STATES:
            place = (found.queue, found.state, found.key)
            tx.cursor.execute(statements("shared")["delete_finished"], place)
            tx.move(found.queue, found.lane, State(found.state), State.PROCESSING)
            rows.append(settle.Leased(**_as_leased(found)))
    return rows


def _as_leased(found: shared.FoundJob) -> dict[str, Any]:
    fields = {name: getattr(found, name, None) for name in settle.Leased._fields}
    return {**fields, "activated_at_ms": found.activated_at_ms or 0, "worker": found.worker or ""}


def _sweep_without_horizon() -> None:
    replace_text("sweep", "lapsed", "lease_until_ms <= ?", "? IS NOT NULL")


def _counter_outside_transaction() -> None:
    commit = 'self._cursor.execute("COMMIT")'
    replace_source(writer.Writer, "_transact", "tx.flush()", f"{commit}; self._begin(); tx.flush()")


def _forget_the_end_of_an_attempt() -> None:
    """The store itself refuses two ends of one attempt number; a mutant that reuses it must get past that."""
    replace_text("shared", "append_history", "INSERT INTO", "INSERT OR REPLACE INTO")


def _attempt_reused_after_release() -> None:
    _forget_the_end_of_an_attempt()
    pending = "row.pending(row.run_at_ms, row.attempts - 1, row.max_attempts)"
    replace_source(settle, "_release", pending, f"{pending}._replace(attempt=row.attempt - 1)")


def _attempt_reused_after_requeue() -> None:
    _forget_the_end_of_an_attempt()
    replace_source(change, "_enter_again", "attempts=0", "attempt=0, attempts=0")


def _dedupe_ignored() -> None:
    replace_text("create", "claim_dedupe", "ON CONFLICT DO NOTHING", "ON CONFLICT DO UPDATE SET key = excluded.key")


def _events_without_completion() -> None:
    carried = "if outcome.events and outcome.key in accepted"
    replace_source(settle, "_write_results", carried, "if outcome.events")


def _repeat_forgotten() -> None:
    replace_source(rules, "refused", "Judged(Verdict.REPEATED, state)", "Judged(Verdict.LEASE_LOST, state)")
    vars(settle)["refused"] = rules.refused


def _mark_not_guarded() -> None:
    replace_source(judged, "passages", "passes = fire.point_ms > mark.last_ms", "passes = True")
    vars(registry)["passages"] = judged.passages


def _handed_without_lease() -> None:
    """A create sends its job to the waiting worker, and stores it as pending, so that others take it, too."""
    sent = "not hand_over.send_after_commit(tx, parked, leased)"
    replace_source(create, "_lease_to_waiting", sent, f"{sent} or True")


def _handed_for_good() -> None:
    """The lease of a job that was handed over does not expire: nothing takes the job back from a dead worker."""
    replace_source(
        create, "_lease_to_waiting", "now_ms, until_ms, parked.worker", "now_ms, 2 * until_ms, parked.worker"
    )


MUTATIONS: Final[dict[str, Callable[[], None]]] = {
    mutants.DROP_ATTEMPT_CHECK: _drop_attempt_check,
    mutants.ACK_BEFORE_COMMIT: _ack_before_commit,
    mutants.NO_ATTEMPT_ON_CRASH: _no_attempt_on_crash,
    mutants.RELEASE_WITHOUT_STATE_CHECK: _release_without_state_check,
    mutants.SWEEP_WITHOUT_HORIZON: _sweep_without_horizon,
    mutants.COUNTER_OUTSIDE_TRANSACTION: _counter_outside_transaction,
    mutants.ATTEMPT_REUSED_AFTER_RELEASE: _attempt_reused_after_release,
    mutants.ATTEMPT_REUSED_AFTER_REQUEUE: _attempt_reused_after_requeue,
    mutants.DEDUPE_IGNORED: _dedupe_ignored,
    mutants.EVENTS_WITHOUT_COMPLETION: _events_without_completion,
    mutants.REPEAT_FORGOTTEN: _repeat_forgotten,
    mutants.MARK_NOT_GUARDED: _mark_not_guarded,
    mutants.HANDED_WITHOUT_LEASE: _handed_without_lease,
    mutants.HANDED_FOR_GOOD: _handed_for_good,
}
