"""Seeded mutants: small ways to break an engine, applied at run time. The checker must catch every one.

Each replacement asserts that it found what it replaces, so that a mutant cannot become a sound engine unnoticed.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final

from everwork.core import schedule
from everwork.core.leasing import Judged, Verdict
from everwork.core.outcome import Outcome
from everwork.core.states import State
from everwork.engines.open import open_engine
from everwork.manager import cleanup
from everwork.server.http.api import outcomes as outcomes_api
from everwork.service.access.principal import Principal
from everwork.service.jobs import Jobs
from everwork.service.service import JobService
from everwork.service.store_access import StoreAccess
from everwork.spool.courier import SpoolThread
from everwork.spool.file import SpoolFile
from tests.torture.faults import engine_of
from tests.torture.replacing import replace_source

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
TIME_POINT_FROM_NOW: Final = "time-point-from-now"
MARK_NOT_GUARDED: Final = "mark-not-guarded"
BEGUN_RELEASED_AFTER_DEATH: Final = "begun-released-after-death"
UNBEGUN_KEPT_AFTER_DEATH: Final = "unbegun-kept-after-death"
SPOOL_ACK_BEFORE_SYNC: Final = "spool-ack-before-sync"
DELIVERED_WITHOUT_STAMP: Final = "delivered-without-stamp"
LATE_WITHOUT_FENCE: Final = "late-outcome-without-fence"
OUTCOME_ACK_BEFORE_COMMIT: Final = "server-ack-before-commit"
REST_ATTEMPT_IGNORED: Final = "rest-attempt-ignored"
TENANT_CHECK_DROPPED: Final = "tenant-check-dropped"
FIRST_TENANT_ONLY: Final = "first-tenant-of-a-batch-only"
UNDELIVERED_KEPT: Final = "undelivered-lease-kept"
HANDED_WITHOUT_LEASE: Final = "handed-over-without-lease"
HANDED_FOR_GOOD: Final = "handed-over-for-good"

EVERY: Final = tuple(
    sorted(value for name, value in list(globals().items()) if name.isupper() and isinstance(value, str))
)
MISSED: Final = "NOT CAUGHT"


def apply(name: str, url: str) -> None:
    """Break the engine of this process in the way that the name says; an empty name leaves it sound."""
    if name:
        _mutations(engine_of(url))[name]()


async def create_store(url: str) -> None:
    """Create the store of a run with a mutant: some mutants change what the store itself contains."""
    engine = open_engine(url)
    await engine.open()
    await engine.close()


def names(engine: str) -> tuple[str, ...]:
    """The mutants that an engine has, and those of what stands above every engine; a client has only the latter."""
    return tuple(_mutations(engine))


def own_names(engine: str) -> tuple[str, ...]:
    """The mutants of an engine alone."""
    return tuple(_own_mutations(engine))


def _mutations(engine: str) -> dict[str, Callable[[], None]]:
    own = {} if engine == "grpc" else _own_mutations(engine)
    return {**own, **_OF_EVERY_ENGINE}


def _own_mutations(engine: str) -> dict[str, Callable[[], None]]:
    # Loaded when asked for: the mutants of one engine need nothing of the others.
    own: dict[str, Callable[[], None]] = import_module(
        f"tests.torture.mutants_{engine.removesuffix('-cluster')}"
    ).MUTATIONS
    return own


def _trigger_from_now() -> None:
    """Nothing in the engine: whoever fires builds the dedupe key from now, see `plan.trigger_requests`."""


def _time_point_from_now() -> None:
    """The points are counted back from when somebody looks."""
    on_the_grid, from_now = "began_ms + at * interval_ms", "span.end_ms - (last - at) * interval_ms"
    replace_source(schedule, "_latest_of_interval", on_the_grid, from_now)


def _begun_released_after_death() -> None:
    """A call that dies with its process costs no attempt: a job that kills its process would never end."""
    counted = 'return Failed(entry.key, entry.attempt, error_text(f"its process'
    replace_source(cleanup, "_of_begun", counted, f"return Release(entry.key, entry.attempt)\n    {counted}")


def _unbegun_kept_after_death() -> None:
    """What a dead process had fetched ahead waits for the end of its lease."""
    replace_source(cleanup, "outcome_of", "return Release(entry.key, entry.attempt)", "return None")


def _spool_ack_before_sync() -> None:
    """A spool commits a moment after its answer."""
    begin, end = 'self._db.execute("BEGIN IMMEDIATE")', 'self._db.execute("COMMIT")'
    body = "\n        try:\n            yield self._db\n            "
    committed = 'self._db.in_transaction and self._db.execute("COMMIT")'
    replace_source(SpoolFile, "transaction", f"{begin}{body}{end}", f"{committed}\n        {begin}{body}pass")

    async def run(self: SpoolThread, call: Callable[[], Any]) -> Any:
        answer = await asyncio.get_running_loop().run_in_executor(self._thread, call)
        self._thread.submit(_commit_late, self)
        return answer

    SpoolThread._run = run  # type: ignore[method-assign]


def _commit_late(thread: SpoolThread) -> None:
    time.sleep(0.05)
    if thread._file is not None and thread._file._db.in_transaction:
        thread._file._db.execute("COMMIT")


def _delivered_without_stamp() -> None:
    """The store cannot tell that a job is sent for the second time."""
    replace_source(StoreAccess, "create_stamped", "self._engine.create(jobs, stamp)", "self._engine.create(jobs)")


def _late_without_fence() -> None:
    """A late outcome is of whatever attempt there is."""
    fenced, loose = (
        "self._engine.settle(outcomes)",
        "self._engine.settle([one._replace(attempt=0) for one in outcomes])",
    )
    replace_source(StoreAccess, "settle_late", fenced, loose)


def _outcome_ack_before_commit() -> None:
    """A server confirms an outcome a moment before it stores it."""
    sound = JobService.settle

    async def settle(self: JobService, outcomes: Sequence[Outcome]) -> list[Judged]:
        vars(self)["late"] = asyncio.create_task(_settle_late(sound, self, outcomes))
        return [Judged(Verdict.ACCEPTED, State.PROCESSING) for _ in outcomes]

    JobService.settle = settle  # type: ignore[method-assign]


async def _settle_late(sound: Any, service: JobService, outcomes: Sequence[Outcome]) -> None:
    await asyncio.sleep(0.05)
    await sound(service, outcomes)


def _rest_attempt_ignored() -> None:
    """An outcome over REST counts for the running attempt, whichever attempt it names."""
    told, loose = "call.jobs.settle([outcome])", "call.jobs.settle([outcome._replace(attempt=0)])"
    replace_source(outcomes_api, "_settle", told, loose)


def _tenant_check_dropped() -> None:
    """A key that is bound to tenants gets the jobs of all tenants."""
    replace_source(Principal, "tenants_for", "tuple(requested) or self.tenants", "tuple(requested)")


def _first_tenant_only() -> None:
    """Only the first job of a batch is checked."""
    replace_source(Principal, "tenant_for_create", "self.require_tenant(requested)", "pass")
    replace_source(Jobs, "create", "for job in jobs:", "for job in jobs[:1]:")


def _undelivered_kept() -> None:
    """A job leased for a caller that has disconnected waits until its lease expires."""
    JobService.release_undelivered = lambda *_: None  # type: ignore[method-assign]


_OF_EVERY_ENGINE: Final[dict[str, Callable[[], None]]] = {
    TRIGGER_FROM_NOW: _trigger_from_now,
    TIME_POINT_FROM_NOW: _time_point_from_now,
    BEGUN_RELEASED_AFTER_DEATH: _begun_released_after_death,
    UNBEGUN_KEPT_AFTER_DEATH: _unbegun_kept_after_death,
    SPOOL_ACK_BEFORE_SYNC: _spool_ack_before_sync,
    DELIVERED_WITHOUT_STAMP: _delivered_without_stamp,
    LATE_WITHOUT_FENCE: _late_without_fence,
    OUTCOME_ACK_BEFORE_COMMIT: _outcome_ack_before_commit,
    REST_ATTEMPT_IGNORED: _rest_attempt_ignored,
    TENANT_CHECK_DROPPED: _tenant_check_dropped,
    FIRST_TENANT_ONLY: _first_tenant_only,
    UNDELIVERED_KEPT: _undelivered_kept,
}


if __name__ == "__main__":
    apply(*sys.argv[1:])
    asyncio.run(create_store(sys.argv[2]))
