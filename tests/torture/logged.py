"""An engine whose calls are written to a history, before and after."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

from everwork.core.job import LeasedJob, NewJob
from everwork.core.leasing import Activation, Created, Demand, Judged, Lease, LeaseStatus, Receiver, Settlement
from everwork.core.outcome import Complete, Failed, Outcome, Reject, Release, Retry, Throw
from everwork.engines.contract import Engine
from everwork.engines.values import Fire, Fired
from everwork.exceptions import EngineError, EngineUnavailable
from tests.torture.history import HistoryWriter
from tests.torture.plan import Request, Taken, name_of

Answer = TypeVar("Answer")
Shown = tuple[list[Any], list[Any]]
"""What was answered, item by item, and what was leased."""

# The history's word for each outcome: the kind of the event that it leaves in the job's own history.
_KINDS: dict[type[Any], str] = {
    Complete: "complete",
    Failed: "fail",
    Retry: "retry",
    Reject: "reject",
    Release: "release",
    Throw: "throw",
}


_is_settling: ContextVar[bool] = ContextVar("is_settling", default=False)


class LoggedEngine:
    """The calls that the torture makes. A call that the engine could not serve answers None."""

    def __init__(self, engine: Engine, history: HistoryWriter) -> None:
        self.engine = engine
        self.history = history

    async def create(self, requests: Sequence[Request]) -> list[Created] | None:
        """Create jobs; the answer per job is its key and whether it was deduplicated."""
        return await self._logged(
            "create",
            [wire_request(wanted) for wanted in requests],
            lambda: self.engine.create([wanted.job for wanted in requests]),
            lambda created: ([[one.key, one.deduplicated] for one in created], []),
        )

    async def settle(self, outcomes: Sequence[Outcome], demands: Sequence[Demand] = ()) -> Settlement | None:
        """End attempts and take new ones in the same step."""
        items = [wire_outcome(outcome) for outcome in outcomes]
        return await self._logged("settle", items, lambda: self.engine.settle(outcomes, demands), _settled)

    async def activate(self, demands: Sequence[Demand]) -> list[LeasedJob] | None:
        """Take new attempts."""
        done = await self._logged("activate", [], lambda: self.engine.activate(demands), _activated)
        return None if done is None else done.jobs

    async def extend(self, leases: Sequence[Lease], lease_ms: int) -> list[LeaseStatus] | None:
        """Prolong leases."""
        items = [[lease.key, lease.attempt, lease_ms] for lease in leases]
        return await self._logged("extend", items, lambda: self.engine.extend(leases, lease_ms), _statuses)

    async def cancel(self, keys: Sequence[int]) -> list[Judged] | None:
        """Cancel jobs."""
        return await self._logged("cancel", keys, lambda: self.engine.cancel(keys, "torture"), _verdicts)

    async def requeue(self, keys: Sequence[int]) -> list[Judged] | None:
        """Bring dead letters back."""
        return await self._logged("requeue", keys, lambda: self.engine.requeue(keys), _verdicts)

    async def _logged(
        self,
        name: str,
        items: Sequence[object],
        call: Callable[[], Awaitable[Answer]],
        wire: Callable[[Answer], Shown],
    ) -> Answer | None:
        try:
            return await written(self.history, name, items, call, wire)
        except EngineError:
            return None


async def written(
    history: HistoryWriter,
    name: str,
    items: Sequence[object],
    call: Callable[[], Awaitable[Answer]],
    wire: Callable[[Answer], Shown],
) -> Answer:
    """Make a call and write it down, before and after; a cancelled one stays without answer, hence unknown."""
    call_id = history.invoked(name, items)
    try:
        answer = await call()
    except EngineUnavailable as error:
        history.unknown(call_id, error)
        raise
    except EngineError as error:
        history.refused(call_id, error)
        raise
    history.answered(call_id, *wire(answer))
    return answer


class LoggedReceiver:
    """A waiting worker: the jobs that creates hand over to it are written down."""

    def __init__(self, receiver: Receiver, history: HistoryWriter) -> None:
        self._receiver = receiver
        self._history = history

    def handed(self, job: LeasedJob) -> None:
        """Write it down, and take it."""
        self._history.handed([wire_leased(job)])
        self._receiver.handed(job)

    def lost(self) -> None:
        """Tell the worker."""
        self._receiver.lost()


def watched(engine: Engine, history: HistoryWriter) -> Engine:
    """The same engine for programs that know nothing of a history: what they do to jobs is written down."""
    activate, settle, extend, reclaim, fire = (
        engine.activate, engine.settle, engine.extend, engine.reclaim, engine.fire,
    )  # fmt: skip

    receivers: dict[Receiver, LoggedReceiver] = {}

    def logged(demand: Demand) -> Demand:
        if demand.receiver is None:
            return demand
        if demand.receiver not in receivers:
            receivers[demand.receiver] = LoggedReceiver(demand.receiver, history)
        return demand._replace(receiver=receivers[demand.receiver])

    async def watched_activate(demands: Sequence[Demand]) -> Activation:
        if _is_settling.get():  # The same step, logged under its other name.
            return await activate(demands)
        demands = [logged(demand) for demand in demands]
        return await written(history, "activate", [], lambda: activate(demands), _activated)

    async def watched_settle(outcomes: Sequence[Outcome], demands: Sequence[Demand] = ()) -> Settlement:
        items = [wire_outcome(outcome) for outcome in outcomes]
        demands = [logged(demand) for demand in demands]
        token = _is_settling.set(True)
        try:
            return await written(history, "settle", items, lambda: settle(outcomes, demands), _settled)
        finally:
            _is_settling.reset(token)

    async def watched_extend(leases: Sequence[Lease], lease_ms: int) -> list[LeaseStatus]:
        items = [[lease.key, lease.attempt, lease_ms] for lease in leases]
        return await written(history, "extend", items, lambda: extend(leases, lease_ms), _statuses)

    async def watched_reclaim(leases: Sequence[Lease], lease_ms: int) -> list[LeaseStatus]:
        items = [[lease.key, lease.attempt, lease_ms] for lease in leases]
        return await written(history, "reclaim", items, lambda: reclaim(leases, lease_ms), _statuses)

    async def watched_fire(fires: Sequence[Fire]) -> list[Fired]:
        items = [[one.trigger, one.point_ms] for one in fires]
        return await written(history, "fire", items, lambda: fire(fires), _fired)

    watching = {"activate": watched_activate, "settle": watched_settle, "extend": watched_extend}
    vars(engine).update({**watching, "reclaim": watched_reclaim, "fire": watched_fire})
    return engine


def wire_request(wanted: Request) -> dict[str, Any]:
    """A job asked for, as the history shows it: enough to ask for it again."""
    return {"r": wanted.name, "type": wanted.job.type, "dedupe": wanted.job.dedupe_key, "job": list(wanted.job)}


def wire_outcome(outcome: Outcome) -> dict[str, Any]:
    """An outcome as the history shows it: enough to report it again."""
    shown: dict[str, Any] = {"k": outcome.key, "a": outcome.attempt, "o": _KINDS[type(outcome)]}
    shown["class"] = type(outcome).__name__
    if isinstance(outcome, Complete):
        shown["fields"] = [outcome.result, [list(event) for event in outcome.events]]
        shown["result"] = outcome.result
        shown["events"] = [name_of(event.variables) for event in outcome.events]
    else:
        shown["fields"] = list(outcome[2:])
    return shown


def request_again(shown: dict[str, Any]) -> Request:
    """The job asked for that a history line shows."""
    return Request(shown["r"], NewJob(*shown["job"]))


def outcome_again(shown: dict[str, Any]) -> Outcome:
    """The outcome that a history line shows."""
    classes: dict[str, type[Any]] = {made.__name__: made for made in _KINDS}
    fields = shown["fields"]
    if shown["class"] == "Complete":
        fields = [fields[0], tuple(NewJob(*event) for event in fields[1])]
    again: Outcome = classes[shown["class"]](shown["k"], shown["a"], *fields)
    return again


def wire_leased(job: Taken) -> list[Any]:
    """A lease as the history shows it."""
    return [job.key, job.attempt, job.attempts, job.max_attempts, job.lease_until_ms]


def _verdicts(judged: Sequence[Judged]) -> Shown:
    return [one.verdict.value for one in judged], []


def _settled(done: Settlement) -> Shown:
    return [one.verdict.value for one in done.judged], [wire_leased(job) for job in done.activation.jobs]


def _activated(done: Activation) -> Shown:
    return [], [wire_leased(job) for job in done.jobs]


def _statuses(statuses: Sequence[LeaseStatus]) -> Shown:
    return [status.value for status in statuses], []


def _fired(fires: Sequence[Fired]) -> Shown:
    return [None if one.created is None else one.created.key for one in fires], []
