"""What a test may ask a stage, assert of it and let go wrong on it: without await, so that none can be forgotten."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from everwork.codec.json import decode, encode_object
from everwork.core.checks import shown, whole_number
from everwork.core.job import HistoryEntry, Job
from everwork.core.limits import PAYLOAD_BYTES_MAX
from everwork.core.queries import Explanation, JobFilter, TypeInfo
from everwork.core.states import State
from everwork.exceptions import InvalidInput, JobNotFound
from everwork.service.service import JobService
from everwork.testing.clock import every
from everwork.testing.faults import TIMES_MAX, Fault
from everwork.testing.harness import Harness


class Assertions:
    """The part of a stage that is the same with and without an event loop."""

    def __init__(self, backstage: Harness) -> None:
        self._backstage = backstage
        self.app = backstage.app
        self.clock = backstage.clock

    # Ask ----------------------------------------------------------------------------------------

    def jobs(self, type: str | None = None, state: State | str | None = None) -> list[Job]:
        """The jobs of a type, or of all, in a state, or in any; the oldest first."""
        states = frozenset() if state is None else frozenset([_state(state)])

        async def listed(service: JobService) -> list[Job]:
            return [job async for job in every(service, JobFilter(type=type, states=states))]

        return self._backstage.ask(listed)[::-1]

    def dead_letters(self, type: str | None = None) -> list[Job]:
        """The jobs that rest in `failed`."""
        return self.jobs(type, State.FAILED)

    def job(self, key: int) -> Job:
        """A job as it stands."""
        return self._backstage.ask(lambda service: service.get(key))

    def history(self, key: int) -> list[HistoryEntry]:
        """How a job's attempts ended, oldest first."""
        return self._backstage.ask(lambda service: service.history(key))

    def explain(self, key: int) -> Explanation:
        """Why a job is not running."""
        return self._backstage.ask(lambda service: service.explain(key))

    def type(self, type: str) -> TypeInfo:
        """What the store knows of a type: its policy, its breaker, whether it is paused."""

        async def known(service: JobService) -> list[TypeInfo]:
            return await service.types()

        return next((info for info in self._backstage.ask(known) if info.type == type), TypeInfo(type))

    # Assert -------------------------------------------------------------------------------------

    def assert_enqueued(
        self, type: str, /, *, count: int | None = None, variables: Mapping[str, Any] | None = None, **arguments: Any
    ) -> list[Job]:
        """Jobs of a type were created, with at least these arguments; they are answered, whatever became of them.

        `count`: exactly so many. `variables` takes arguments that are called like these parameters.
        """
        __tracebackhide__ = True
        wanted = as_stored({**(variables or {}), **arguments})
        there = self.jobs(type)
        found = [job for job in there if has_arguments(job, wanted)]
        if len(found) == count or (count is None and found):
            return found
        most = "a job" if count is None else f"{count} jobs" if count != 1 else "1 job"
        with_what = f" with {wanted}" if wanted else ""
        got = f"found {len(found)}; " if found else ""
        raise AssertionError(f"expected {most} of type '{type}'{with_what}; {got}{self._what_is_there(there)}")

    def assert_not_enqueued(
        self, type: str, /, *, variables: Mapping[str, Any] | None = None, **arguments: Any
    ) -> None:
        """No job of a type was created with these arguments."""
        __tracebackhide__ = True
        self.assert_enqueued(type, count=0, variables=variables, **arguments)

    def assert_completed(self, key: int) -> Job:
        """A job is completed."""
        __tracebackhide__ = True
        return self._in_state(key, State.COMPLETED)

    def assert_failed(self, key: int, error: str | None = None) -> Job:
        """A job is a dead letter, and this stands in its error."""
        __tracebackhide__ = True
        job = self._in_state(key, State.FAILED)
        if error is not None and error not in (job.last_error or ""):
            raise AssertionError(f"expected the error of job {key} to contain {error!r}; {self._story(job)}")
        return job

    def assert_retried(
        self, key: int, times: int | None = None, *, after: Sequence[float] | None = None
    ) -> list[float]:
        """Attempts of a job failed and were, or will be, followed by others: so many, after so many seconds each."""
        __tracebackhide__ = True
        delays = retry_delays(self.history(key))
        is_right = bool(delays) if times is None and after is None else times in (None, len(delays))
        if is_right and (after is None or list(after) == delays):
            return delays
        wanted = "" if times is None else f" {times} times"
        wanted += "" if after is None else f" after {as_list(after)} s"
        raise AssertionError(f"expected job {key} to be retried{wanted}; {self._story(self._known(key))}")

    def _in_state(self, key: int, state: State) -> Job:
        __tracebackhide__ = True
        job = self._known(key)
        if job.state is not state:
            raise AssertionError(f"expected job {key} to be {state.label}; {self._story(job)}")
        return job

    def _known(self, key: int) -> Job:
        __tracebackhide__ = True
        try:
            return self.job(key)
        except JobNotFound:
            raise AssertionError(f"there is no job {key}; finished ones are deleted when their time is over") from None

    def _story(self, job: Job) -> str:
        explained = self.explain(job.key).text if job.state is State.PENDING else None
        return JobStory(self.clock.start_ms).of(job, self.history(job.key), explained)

    def _what_is_there(self, of_type: Sequence[Job]) -> str:
        if of_type:
            return JobStory(self.clock.start_ms).arguments_of(of_type)
        others = sorted({job.type for job in self.jobs()})
        return f"there is none; jobs were created of {', '.join(others)}" if others else "no job was created at all"

    # Let go wrong -------------------------------------------------------------------------------

    def crash_before_settle(self, type: str | None = None, *, times: int = 1) -> None:
        """The next attempt (of a type) runs, and its worker dies before it can tell: the job runs again, later."""
        self._order(Fault.CRASH_BEFORE_SETTLE, type, times)

    def crash_after_settle(self, type: str | None = None, *, times: int = 1) -> None:
        """The next outcome (of a type) is stored, but the answer is lost, so that it is reported once more."""
        self._order(Fault.CRASH_AFTER_SETTLE, type, times)

    def duplicate_delivery(self, type: str | None = None, *, times: int = 1) -> None:
        """The next attempt (of a type) reaches the handler twice; the second outcome changes nothing."""
        self._order(Fault.DUPLICATE_DELIVERY, type, times)

    def lose_lease(self, type: str | None = None, *, times: int = 1) -> None:
        """The next attempt (of a type) ends after its lease: its outcome is refused, and the job runs again."""
        self._order(Fault.LOSE_LEASE, type, times)

    def engine_away(self, *, calls: int = 1) -> None:
        """The next calls that create jobs find no engine: `EngineUnavailable`."""
        self._backstage.orders.refusals.left = whole_number("calls", calls, 1, TIMES_MAX)

    def pause(self, type: str, *, paused: bool = True) -> None:
        """Stop a type, or let it go on, as an operator does."""
        self._backstage.ask(lambda service: service.pause(type, paused))

    def _order(self, fault: Fault, type: str | None, times: int) -> None:
        known = {place.type for place in self._backstage.places}
        self._backstage.orders.add(fault, type, times, known)


def _state(state: object) -> State:
    if isinstance(state, State):
        return state
    for one in State:
        if one.label == state:
            return one
    raise InvalidInput("state", f"must be one of {', '.join(one.label for one in State)}, not {shown(state)}")


JOBS_SHOWN_MAX: Final = 20


class JobStory:
    """Tells of jobs, with times counted from the beginning of the rehearsal."""

    def __init__(self, start_ms: int) -> None:
        self._start_ms = start_ms

    def of(self, job: Job, history: Iterable[HistoryEntry], explained: str | None = None) -> str:
        """A job's state and how it came to it."""
        head = f"job {job.key} of type '{job.type}' is {job.state.label}"
        if explained:
            head += f" ({explained})"
        return "\n".join([head, *(f"  {self._line(entry)}" for entry in history)])

    def arguments_of(self, jobs: Sequence[Job]) -> str:
        """Which jobs there are."""
        lines = [f"  {job.key} {job.state.label}: {job.variables}" for job in jobs[:JOBS_SHOWN_MAX]]
        if len(jobs) > JOBS_SHOWN_MAX:
            lines.append(f"  and {len(jobs) - JOBS_SHOWN_MAX} more")
        return "\n".join(["there are:", *lines])

    def _line(self, entry: HistoryEntry) -> str:
        line = f"+{seconds(entry.at_ms - self._start_ms)} s: attempt {entry.attempt}: {entry.kind}"
        if entry.error:
            line += f": {entry.error}"
        if entry.retry_at_ms is not None:
            line += f"; again {seconds(entry.retry_at_ms - entry.at_ms)} s later"
        return line


def seconds(ms: int) -> str:
    """A span in seconds, as short as it can be said."""
    return f"{ms / 1000:.3f}".rstrip("0").rstrip(".")


def as_list(numbers: Iterable[float]) -> str:
    """Numbers for people."""
    return ", ".join(f"{number:g}" for number in numbers)


def retry_delays(history: Iterable[HistoryEntry]) -> list[float]:
    """After how many seconds each failed attempt is followed by another."""
    return [(one.retry_at_ms - one.at_ms) / 1000 for one in history if one.retry_at_ms is not None]


def as_stored(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments as a job has them: what JSON makes of dates, tuples and their like."""
    return decode(encode_object("arguments", arguments, PAYLOAD_BYTES_MAX))  # type: ignore[no-any-return]


def has_arguments(job: Job, wanted: Mapping[str, Any]) -> bool:
    """Whether a job has these arguments, among others."""
    there = decode(job.variables)
    return all(name in there and there[name] == value for name, value in wanted.items())
