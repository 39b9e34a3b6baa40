"""An engine whose calls are written to a history, before and after."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from everwork.core.job import LeasedJob, NewJob
from everwork.core.outcome import Complete, Fail, Outcome, Reject, Release, Retry, Throw
from everwork.engines.base import Engine
from everwork.engines.values import Created, Demand, Judged, Lease, LeaseStatus, Settlement
from everwork.exceptions import EngineError, EngineUnavailable
from tests.torture.history import HistoryWriter
from tests.torture.plan import Request, name_of

Answer = TypeVar("Answer")

# The history's word for each outcome: the kind of the event that it leaves in the job's own history.
_KINDS: dict[type[Any], str] = {
    Complete: "complete",
    Fail: "fail",
    Retry: "retry",
    Reject: "reject",
    Release: "release",
    Throw: "throw",
}


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
        return await self._logged(
            "settle",
            [wire_outcome(outcome) for outcome in outcomes],
            lambda: self.engine.settle(outcomes, demands),
            lambda done: (
                [one.verdict.value for one in done.judged],
                [wire_leased(job) for job in done.activation.jobs],
            ),
        )

    async def activate(self, demands: Sequence[Demand]) -> list[LeasedJob] | None:
        """Take new attempts."""
        done = await self._logged(
            "activate",
            [],
            lambda: self.engine.activate(demands),
            lambda done: ([], [wire_leased(job) for job in done.jobs]),
        )
        return None if done is None else done.jobs

    async def extend(self, leases: Sequence[Lease], lease_ms: int) -> list[LeaseStatus] | None:
        """Prolong leases."""
        return await self._logged(
            "extend",
            [[lease.key, lease.attempt, lease_ms] for lease in leases],
            lambda: self.engine.extend(leases, lease_ms),
            lambda statuses: ([status.value for status in statuses], []),
        )

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
        wire: Callable[[Answer], tuple[list[Any], list[Any]]],
    ) -> Answer | None:
        call_id = self.history.invoked(name, items)
        try:
            answer = await call()
        except EngineUnavailable as error:
            self.history.unknown(call_id, error)
            return None
        except EngineError as error:
            self.history.refused(call_id, error)
            return None
        answers, leased = wire(answer)
        self.history.answered(call_id, answers, leased)
        return answer


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


def wire_leased(job: LeasedJob) -> list[Any]:
    """A lease as the history shows it."""
    return [job.key, job.attempt, job.attempts, job.max_attempts, job.lease_until_ms]


def _verdicts(judged: Sequence[Judged]) -> tuple[list[Any], list[Any]]:
    return [one.verdict.value for one in judged], []
