"""A worker's line to the jobs: credits go out, jobs come in, outcomes go back, all in batches.

`RemoteStream` talks to a server, `LocalStream` to a store in process; who works with them sees no difference.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from everwork.client import requests
from everwork.client.job import ActiveJob
from everwork.core import checks
from everwork.core.limits import DEFAULT_GROUP, NAME_CHARS_MAX
from everwork.core.outcome import Outcome, Release
from everwork.exceptions import BadConfiguration, EverworkError, InvalidInput
from everwork.logs import get_logger

if TYPE_CHECKING:
    from everwork.client.client import Client

log = get_logger("everwork")

CREDITS_MAX: Final = 10_000
REFUSALS_KEPT: Final = 1_000
CLOSE_SECONDS: Final = 10.0
"""How long closing waits for the last outcomes to be judged; what is not judged by then lapses or was lost before."""


class CreditKey(NamedTuple):
    """What credits are for."""

    type: str
    group: str = DEFAULT_GROUP
    tenants: tuple[str, ...] = ()


class Refused(NamedTuple):
    """An outcome that was not accepted, and why."""

    key: int
    attempt: int
    message: str


class Stream(ABC):
    """Jobs for one worker. Iterate over it for batches of jobs; end each by one of its verbs, which return at once."""

    def __init__(self, client: Client, worker: str, lease_ms: int) -> None:
        self._client = client
        self.worker = checks.name("worker", worker)
        self._lease_ms = lease_ms
        self.refusals: deque[Refused] = deque(maxlen=REFUSALS_KEPT)
        """Outcomes that were not accepted, the last thousand of them."""
        self.on_loss: Callable[[ActiveJob], None] = lambda _: None
        """Called for each job whose lease no longer holds: what runs under it should stop."""
        self._held: dict[int, ActiveJob] = {}
        self._credits: dict[tuple[str, str], int] = {}
        self._places: dict[tuple[str, str], CreditKey] = {}
        self._inbox: deque[list[ActiveJob]] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._is_draining = False
        self._is_closing = False
        self._refused_ever = 0
        self._is_over = False
        self._error: EverworkError | None = None
        self._task: asyncio.Task[None] | None = None

    # Work ---------------------------------------------------------------------------------------

    def grant(self, type: str, credits: int, *, group: str = DEFAULT_GROUP, tenants: Iterable[str] = ()) -> None:
        """Allow so many more jobs of a type to be sent here."""
        checks.whole_number("credits", credits, 1, CREDITS_MAX)
        place = self._places.get((type, group)) or self._new_place(type, group, tenants)
        self._credits[type, group] = self._credits.get((type, group), 0) + credits
        self._granted(place, credits)

    def complete(self, job: ActiveJob, result: Any = None, *, events: Iterable[requests.JobAsked] = ()) -> None:
        """The work is done."""
        self.put(requests.completed(job, 0, result, events))

    def fail(
        self,
        job: ActiveJob,
        error: object,
        *,
        retries: int | None = None,
        backoff: float | None = None,
        final: bool = False,
        variables: Mapping[str, Any] | None = None,
        by_policy: bool = False,
    ) -> None:
        """The attempt failed."""
        outcome = requests.failed(
            job, 0, error, retries=retries, backoff=backoff, final=final, variables=variables, by_policy=by_policy
        )
        self.put(outcome)

    def retry(self, job: ActiveJob, error: object = "", *, delay: float | None = None) -> None:
        """Ask for another attempt."""
        self.put(requests.retried(job, 0, error, delay))

    def reject(self, job: ActiveJob, error: object = "") -> None:
        """The job makes no sense."""
        self.put(requests.rejected(job, 0, error))

    def release(self, job: ActiveJob) -> None:
        """Hand the job back."""
        self.put(requests.released(job, 0))

    def throw(
        self, job: ActiveJob, code: str, error: object = "", *, variables: Mapping[str, Any] | None = None
    ) -> None:
        """A business error with a code."""
        self.put(requests.thrown(job, 0, code, error, variables))

    def settle(self, outcome: Outcome) -> None:
        """End an attempt: the outcome goes with the next message, and is sent again until it is judged."""
        checked = requests.checked(outcome)
        if not checked.attempt:
            raise InvalidInput("attempt", "must be given: a stream knows the attempts of its jobs")
        self.put(checked)

    def put(self, outcome: Outcome) -> None:
        """`settle`, for an outcome that has been checked."""
        self._send(outcome)
        held = self._held.get(outcome.key)
        if held is not None and held.attempt == outcome.attempt:
            del self._held[outcome.key]

    @property
    def held(self) -> int:
        """How many jobs are here and have not been ended."""
        return len(self._held)

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> list[ActiveJob]:
        """The next batch of jobs; the end comes after `drain`, an error when the server will not have us."""
        while not self._inbox:
            if self._error is not None:
                raise self._error
            if self._is_over:
                raise StopAsyncIteration
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        return self._inbox.popleft()

    # Life ---------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Ask for no more jobs; the stream ends when those that are here have been ended."""
        self._is_draining = True
        self._credits.clear()
        self._drained()

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Hand back what has not been ended, and wait for the last outcomes to be judged."""
        self._is_closing = True
        for job in list(self._held.values()):
            self.put(Release(job.key, job.attempt))
        self.drain()
        if self._task is None:
            return
        _, late = await asyncio.wait([self._task], timeout=seconds)
        if late:
            log.warning("a stream was closed before its last outcomes were judged", worker=self.worker)
            self._task.cancel()
            await asyncio.wait([self._task])

    async def break_off(self, error: EverworkError) -> None:
        """Close, and let whoever waits for jobs know why."""
        self._error = error
        self._inbox.clear()
        self._wake()
        await self.close()

    async def __aenter__(self) -> Stream:
        if self._task is not None:
            raise BadConfiguration("stream: it has been opened already; make another one")
        await self._client.open()
        self._task = asyncio.get_running_loop().create_task(self._live(), name=f"everwork-stream-{self.worker}")
        self._task.add_done_callback(self._ended)
        self._client.streams.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Inside -------------------------------------------------------------------------------------

    @abstractmethod
    async def _live(self) -> None:
        """Everything that happens between the opening and the end."""

    @abstractmethod
    def _granted(self, place: CreditKey, credits: int) -> None:
        """Pass credits on."""

    @abstractmethod
    def _send(self, outcome: Outcome) -> None:
        """Pass an outcome on."""

    @abstractmethod
    def _drained(self) -> None:
        """Pass on that no more jobs are wanted."""

    def _new_place(self, type: str, group: str, tenants: Iterable[str]) -> CreditKey:
        names = tuple(checks.name("tenants", tenant) for tenant in tenants)
        place = CreditKey(checks.name("type", type), checks.text("group", group, NAME_CHARS_MAX), names)
        self._places[type, group] = place
        return place

    def _received(self, jobs: list[ActiveJob]) -> None:
        held, credits = self._held, self._credits
        for job in jobs:
            held[job.key] = job
            place = (job.type, job.group)
            if place in credits:
                credits[place] -= 1
        if self._is_closing:  # They were on their way when nobody was left to take them.
            for job in jobs:
                self.put(Release(job.key, job.attempt))
            return
        self._inbox.append(jobs)
        self._wake()

    def _lost(self, key: int, attempt: int) -> None:
        job = self._held.get(key)
        if job is not None and job.attempt == attempt:
            del self._held[key]
            job.is_lost = True
            self.on_loss(job)
            if self._is_draining:
                self._drained()  # It may have been the last.

    def _refused(self, refused: Refused) -> None:
        self.refusals.append(refused)
        self._refused_ever += 1
        if self._refused_ever & (self._refused_ever - 1) == 0:  # Few words, however many there are.
            why, times = refused.message, self._refused_ever
            facts = {"worker": self.worker, "key": refused.key, "attempt": refused.attempt}
            log.warning("an outcome was refused", **facts, why=why, times=times)

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._is_over = True
        self._client.streams.discard(self)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = error if isinstance(error, EverworkError) else EverworkError(f"the stream broke: {error!r}")
        self._wake()


def open_stream(client: Client, worker: str, lease_ms: int) -> Stream:
    """The stream that suits the client's way to the jobs."""
    from everwork.client.local import LocalTransport  # noqa: PLC0415 - only what is used is loaded

    if isinstance(client.transport, LocalTransport):
        from everwork.client.local_stream import LocalStream  # noqa: PLC0415

        return LocalStream(client, worker, lease_ms)
    from everwork.client.remote_stream import RemoteStream  # noqa: PLC0415

    return RemoteStream(client, worker, lease_ms)
