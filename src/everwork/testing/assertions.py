"""Queries, assertions and faults of a stage, all without await, so that no await can be forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from everwork.codec.job_values import Job
from everwork.codec.json import decode, encode_object
from everwork.core.checks import shown, whole_number
from everwork.core.job import HistoryEntry
from everwork.core.limits import PAYLOAD_BYTES_MAX
from everwork.core.queries import Explanation, JobFilter, TypeInfo
from everwork.core.states import State
from everwork.exceptions import InvalidInput, JobNotFound
from everwork.service.jobs import in_process
from everwork.service.service import JobService
from everwork.testing.clock import all_jobs
from everwork.testing.faults import TIMES_MAX, Fault
from everwork.testing.harness import Harness


class Assertions:
    """The part of a stage that is the same for async and sync tests."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self.app = harness.app
        self.clock = harness.clock

    def overrides(self, replacements: Mapping[Callable[..., Any], Callable[..., Any]]) -> AbstractContextManager[None]:
        """Replace dependencies inside a `with` block; see `Everwork.overrides`."""
        return self.app.overrides(replacements)

    # Queries ------------------------------------------------------------------------------------

    def jobs(self, type: str | None = None, state: State | str | None = None) -> list[Job]:
        """Return the jobs of a type (default: all) in a state (default: any), oldest first."""
        states = frozenset() if state is None else frozenset([_state(state)])

        async def find(service: JobService) -> list[Job]:
            return [Job.of(job) async for job in all_jobs(service, JobFilter(type=type, states=states))]

        return self._harness.run(find)[::-1]

    def dead_letters(self, type: str | None = None) -> list[Job]:
        """Return the failed jobs of one type, or of all types."""
        return self.jobs(type, State.FAILED)

    def job(self, key: int) -> Job:
        """Return a job by its key."""
        return Job.of(self._harness.run(lambda service: service.get(key)))

    def history(self, key: int) -> list[HistoryEntry]:
        """Return how each attempt of a job ended, oldest first."""
        return self._harness.run(lambda service: in_process(service).history(key))

    def explain(self, key: int) -> Explanation:
        """Explain why a job is not running."""
        return self._harness.run(lambda service: in_process(service).explain(key))

    def type(self, type: str) -> TypeInfo:
        """Return a job type: its policy, its breaker, and whether it is paused."""

        async def known(service: JobService) -> list[TypeInfo]:
            return await service.types()

        return next((info for info in self._harness.run(known) if info.type == type), TypeInfo(type))

    # Assertions ---------------------------------------------------------------------------------

    def assert_enqueued(
        self, type: str, /, *, count: int | None = None, variables: Mapping[str, Any] | None = None, **arguments: Any
    ) -> list[Job]:
        """Assert that jobs of a type were created with these arguments (among others), and return the jobs.

        The jobs can be in any state. `count` is the exact number expected. If a job argument has the same name as one
        of these parameters, pass it in the mapping `variables`.
        """
        __tracebackhide__ = True
        wanted = as_stored({**(variables or {}), **arguments})
        existing = self.jobs(type)
        found = [job for job in existing if has_arguments(job, wanted)]
        if len(found) == count or (count is None and found):
            return found
        most = "a job" if count is None else f"{count} jobs" if count != 1 else "1 job"
        with_what = f" with {wanted}" if wanted else ""
        got = f"found {len(found)}; " if found else ""
        raise AssertionError(f"expected {most} of type '{type}'{with_what}; {got}{self._describe_existing(existing)}")

    def assert_not_enqueued(
        self, type: str, /, *, variables: Mapping[str, Any] | None = None, **arguments: Any
    ) -> None:
        """Assert that no job of a type was created with these arguments."""
        __tracebackhide__ = True
        self.assert_enqueued(type, count=0, variables=variables, **arguments)

    def assert_completed(self, key: int) -> Job:
        """Assert that a job is completed, and return it."""
        __tracebackhide__ = True
        return self._require_state(key, State.COMPLETED)

    def assert_failed(self, key: int, error: str | None = None) -> Job:
        """Assert that a job is a dead letter whose error contains this text, and return it."""
        __tracebackhide__ = True
        job = self._require_state(key, State.FAILED)
        if error is not None and error not in (job.last_error or ""):
            raise AssertionError(f"expected the error of job {key} to contain {error!r}; {self._describe(job)}")
        return job

    def assert_retried(
        self, key: int, times: int | None = None, *, after: Sequence[float] | None = None
    ) -> list[float]:
        """Assert that a job was or will be retried: `times` times, after the delays in `after` (seconds)."""
        __tracebackhide__ = True
        delays = retry_delays(self.history(key))
        is_right = bool(delays) if times is None and after is None else times in (None, len(delays))
        if is_right and (after is None or list(after) == delays):
            return delays
        wanted = "" if times is None else f" {times} times"
        wanted += "" if after is None else f" after {as_list(after)} s"
        raise AssertionError(f"expected job {key} to be retried{wanted}; {self._describe(self._existing(key))}")

    def _require_state(self, key: int, state: State) -> Job:
        __tracebackhide__ = True
        job = self._existing(key)
        if job.state is not state:
            raise AssertionError(f"expected job {key} to be {state.label}; {self._describe(job)}")
        return job

    def _existing(self, key: int) -> Job:
        __tracebackhide__ = True
        try:
            return self.job(key)
        except JobNotFound:
            raise AssertionError(
                f"there is no job {key}; finished jobs are deleted after their retention period"
            ) from None

    def _describe(self, job: Job) -> str:
        explained = self.explain(job.key).text if job.state is State.PENDING else None
        return JobStory(self.clock.start_ms).of(job, self.history(job.key), explained)

    def _describe_existing(self, jobs: Sequence[Job]) -> str:
        if jobs:
            return JobStory(self.clock.start_ms).arguments_of(jobs)
        others = sorted({job.type for job in self.jobs()})
        return (
            f"found none; jobs of these types were created: {', '.join(others)}" if others else "no jobs were created"
        )

    # Faults -------------------------------------------------------------------------------------

    def crash_before_settle(self, type: str | None = None, *, times: int = 1) -> None:
        """Fault: the worker of the next attempt (of a type) dies before the outcome is settled; the job runs again."""
        self._plan_fault(Fault.CRASH_BEFORE_SETTLE, type, times)

    def crash_after_settle(self, type: str | None = None, *, times: int = 1) -> None:
        """Fault: the next outcome (of a type) is stored, but the reply is lost, so the worker reports it again."""
        self._plan_fault(Fault.CRASH_AFTER_SETTLE, type, times)

    def duplicate_delivery(self, type: str | None = None, *, times: int = 1) -> None:
        """Fault: the next attempt (of a type) is delivered to the handler twice; the second outcome is discarded."""
        self._plan_fault(Fault.DUPLICATE_DELIVERY, type, times)

    def lose_lease(self, type: str | None = None, *, times: int = 1) -> None:
        """Fault: the lease of the next attempt (of a type) expires while it runs; the job runs again."""
        self._plan_fault(Fault.LOSE_LEASE, type, times)

    def engine_away(self, *, calls: int = 1) -> None:
        """Fault: the next calls that create jobs raise `EngineUnavailable`."""
        self._harness.faults.refusals.left = whole_number("calls", calls, 1, TIMES_MAX)

    def pause(self, type: str, *, paused: bool = True) -> None:
        """Pause or resume a type, as an operator would."""
        self._harness.run(lambda service: service.pause(type, paused))

    def _plan_fault(self, fault: Fault, type: str | None, times: int) -> None:
        known = {queue.type for queue in self._harness.queues}
        self._harness.faults.add(fault, type, times, known)


def _state(state: object) -> State:
    if isinstance(state, State):
        return state
    for one in State:
        if one.label == state:
            return one
    raise InvalidInput("state", f"must be one of {', '.join(one.label for one in State)}, not {shown(state)}")


JOBS_SHOWN_MAX: Final = 20


class JobStory:
    """Describes jobs for failed assertions, with times relative to the start of the test."""

    def __init__(self, start_ms: int) -> None:
        self._start_ms = start_ms

    def of(self, job: Job, history: Iterable[HistoryEntry], explained: str | None = None) -> str:
        """A job's state and history."""
        head = f"job {job.key} of type '{job.type}' is {job.state.label}"
        if explained:
            head += f" ({explained})"
        return "\n".join([head, *(f"  {self._line(entry)}" for entry in history)])

    def arguments_of(self, jobs: Sequence[Job]) -> str:
        """The jobs with their states and arguments."""
        lines = [f"  {job.key} {job.state.label}: {job.variables}" for job in jobs[:JOBS_SHOWN_MAX]]
        if len(jobs) > JOBS_SHOWN_MAX:
            lines.append(f"  and {len(jobs) - JOBS_SHOWN_MAX} more")
        return "\n".join(["there are:", *lines])

    def _line(self, entry: HistoryEntry) -> str:
        line = f"+{seconds(entry.at_ms - self._start_ms)} s: attempt {entry.attempt}: {entry.kind}"
        if entry.error:
            line += f": {entry.error}"
        if entry.retry_at_ms is not None:
            line += f"; retry after {seconds(entry.retry_at_ms - entry.at_ms)} s"
        return line


def seconds(ms: int) -> str:
    """Milliseconds as seconds, without trailing zeros."""
    return f"{ms / 1000:.3f}".rstrip("0").rstrip(".")


def as_list(numbers: Iterable[float]) -> str:
    """Numbers as readable text."""
    return ", ".join(f"{number:g}" for number in numbers)


def retry_delays(history: Iterable[HistoryEntry]) -> list[float]:
    """The delay in seconds before each retry."""
    return [(one.retry_at_ms - one.at_ms) / 1000 for one in history if one.retry_at_ms is not None]


def as_stored(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments as stored in a job: dates, tuples and similar values converted to JSON."""
    return decode(encode_object("arguments", arguments, PAYLOAD_BYTES_MAX))  # type: ignore[no-any-return]


def has_arguments(job: Job, wanted: Mapping[str, Any]) -> bool:
    """Whether a job has these arguments, among others."""
    return all(name in job.variables and job.variables[name] == value for name, value in wanted.items())
