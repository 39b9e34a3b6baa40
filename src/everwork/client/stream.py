"""A worker's stream of jobs: it grants credits, receives jobs and sends outcomes, all in batches.

`RemoteStream` is for a server, `LocalStream` for a store in this process; both behave the same.
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
"""How long closing waits for the last outcomes to be confirmed; the leases of unconfirmed ones expire."""


class CreditKey(NamedTuple):
    """The type, group and tenants that credits are for."""

    type: str
    group: str = DEFAULT_GROUP
    tenants: tuple[str, ...] = ()


class Refused(NamedTuple):
    """An outcome that was refused, and why."""

    key: int
    attempt: int
    message: str


class Stream(ABC):
    """A stream of jobs for one worker, returned by `Client.stream`::

        async with client.stream() as stream:
            stream.grant("email-send", 100)
            async for jobs in stream:
                for job in jobs:
                    stream.complete(job)
                    stream.grant("email-send", 1)

    Iterating yields batches of `ActiveJob`. Each credit allows one job. End each job with `complete`, `fail`, `retry`,
    `reject`, `release` or `throw`; these do not block: the outcome is sent with the next batch, and resent after a lost
    connection. The stream extends the leases of the jobs that it holds.
    """

    def __init__(self, client: Client, worker: str, lease_ms: int) -> None:
        self._client = client
        self.worker = checks.name("worker", worker)
        self._lease_ms = lease_ms
        self.refusals: deque[Refused] = deque(maxlen=REFUSALS_KEPT)
        """The last thousand outcomes that were refused."""
        self.on_loss: Callable[[ActiveJob, bool], None] = lambda _job, _is_cancelled: None
        """Called with each job that should stop, and with True if it was cancelled or False if its lease expired."""
        self._held: dict[int, ActiveJob] = {}
        self._credits: dict[tuple[str, str], int] = {}
        self._credit_keys: dict[tuple[str, str], CreditKey] = {}
        self._inbox: deque[list[ActiveJob]] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._is_draining = False
        self._is_closing = False
        self._refused_total = 0
        self._is_ended = False
        self._error: EverworkError | None = None
        self._task: asyncio.Task[None] | None = None

    # Work ---------------------------------------------------------------------------------------

    def grant(self, type: str, credits: int, *, group: str = DEFAULT_GROUP, tenants: Iterable[str] = ()) -> None:
        """Allow the server to send `credits` more jobs of a type."""
        checks.whole_number("credits", credits, 1, CREDITS_MAX)
        key = self._credit_keys.get((type, group)) or self._new_key(type, group, tenants)
        self._credits[type, group] = self._credits.get((type, group), 0) + credits
        self._granted(key, credits)

    def complete(self, job: ActiveJob, result: Any = None, *, events: Iterable[requests.JobInput] = ()) -> None:
        """Complete a job with a result. `events` are jobs to create in the same transaction."""
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
        strict: bool = False,
        traceback: str | None = None,
    ) -> None:
        """Report a failed attempt; takes the same arguments as `Client.fail`."""
        outcome = requests.failed(
            job, 0, error, retries=retries, backoff=backoff, final=final, variables=variables,
            by_policy=by_policy, strict=strict, traceback=traceback,
        )  # fmt: skip
        self.put(outcome)

    def retry(self, job: ActiveJob, error: object = "", *, delay: float | None = None) -> None:
        """Request another attempt after `delay` seconds (default: by the policy)."""
        self.put(requests.retried(job, 0, error, delay))

    def reject(self, job: ActiveJob, error: object = "") -> None:
        """Reject an invalid job: it fails permanently and is never requeued automatically."""
        self.put(requests.rejected(job, 0, error))

    def release(self, job: ActiveJob) -> None:
        """Return an unfinished job to the queue; the attempt does not count."""
        self.put(requests.released(job, 0))

    def throw(
        self, job: ActiveJob, code: str, error: object = "", *, variables: Mapping[str, Any] | None = None
    ) -> None:
        """Fail a job permanently with a business error code."""
        self.put(requests.thrown(job, 0, code, error, variables))

    def settle(self, outcome: Outcome) -> None:
        """End an attempt with an outcome; it is sent with the next batch, and resent until it is confirmed."""
        checked = requests.checked(outcome)
        if not checked.attempt:
            raise InvalidInput("attempt", "must be set: outcomes on a stream name their attempt")
        self.put(checked)

    def put(self, outcome: Outcome) -> None:
        """`settle` for an outcome that has already been validated."""
        self._send(outcome)
        held = self._held.get(outcome.key)
        if held is not None and held.attempt == outcome.attempt:
            del self._held[outcome.key]

    @property
    def held(self) -> int:
        """How many received jobs have not been ended."""
        return len(self._held)

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> list[ActiveJob]:
        """Return the next batch of jobs. Iteration ends after `drain`, and raises if the server refuses the stream."""
        while not self._inbox:
            if self._error is not None:
                raise self._error
            if self._is_ended:
                raise StopAsyncIteration
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        return self._inbox.popleft()

    # Lifecycle ----------------------------------------------------------------------------------

    def drain(self) -> None:
        """Request no more jobs; the stream ends once all held jobs have been ended."""
        self._is_draining = True
        self._credits.clear()
        self._drained()

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Release the held jobs, and wait up to `seconds` for the last outcomes to be confirmed."""
        self._is_closing = True
        for job in list(self._held.values()):
            self.put(Release(job.key, job.attempt))
        self.drain()
        if self._task is None:
            return
        _, unfinished = await asyncio.wait([self._task], timeout=seconds)
        if unfinished:
            log.warning("stream closed before its last outcomes were confirmed", worker=self.worker)
            self._task.cancel()
            await asyncio.wait([self._task])

    async def break_off(self, error: EverworkError) -> None:
        """Close the stream, and raise the error in waiting calls."""
        self._error = error
        self._inbox.clear()
        self._wake()
        await self.close()

    async def __aenter__(self) -> Stream:
        if self._task is not None:
            raise BadConfiguration("stream: it was already opened; create another one")
        await self._client.open()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"everwork-stream-{self.worker}")
        self._task.add_done_callback(self._ended)
        self._client.streams.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Inside -------------------------------------------------------------------------------------

    @abstractmethod
    async def _run(self) -> None:
        """Run the stream from its opening to its end."""

    @abstractmethod
    def _granted(self, key: CreditKey, credits: int) -> None:
        """Called when credits were granted."""

    @abstractmethod
    def _send(self, outcome: Outcome) -> None:
        """Send an outcome."""

    @abstractmethod
    def _drained(self) -> None:
        """Called when no more jobs are to be requested."""

    def _new_key(self, type: str, group: str, tenants: Iterable[str]) -> CreditKey:
        names = tuple(checks.name("tenants", tenant) for tenant in tenants)
        key = CreditKey(checks.name("type", type), checks.text("group", group, NAME_CHARS_MAX), names)
        self._credit_keys[type, group] = key
        return key

    def _received(self, jobs: list[ActiveJob]) -> None:
        held, credits = self._held, self._credits
        for job in jobs:
            held[job.key] = job
            key = (job.type, job.group)
            if key in credits:
                credits[key] -= 1
        if self._is_closing:  # The server sent these jobs before it learned of the close.
            for job in jobs:
                self.put(Release(job.key, job.attempt))
            return
        self._inbox.append(jobs)
        self._wake()

    def _lost(self, key: int, attempt: int, *, is_cancelled: bool) -> None:
        job = self._held.get(key)
        if job is not None and job.attempt == attempt:
            del self._held[key]
            job.is_lost = True
            self.on_loss(job, is_cancelled)
            if self._is_draining:
                self._drained()  # This may have been the last held job.

    def _refused(self, refused: Refused) -> None:
        self.refusals.append(refused)
        self._refused_total += 1
        if self._refused_total & (self._refused_total - 1) == 0:  # Log only the 1st, 2nd, 4th, 8th ...
            times = self._refused_total
            facts = {"worker": self.worker, "key": refused.key, "attempt": refused.attempt}
            log.warning("outcome discarded by the server", **facts, why=refused.message, times=times)

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._is_ended = True
        self._client.streams.discard(self)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = error if isinstance(error, EverworkError) else EverworkError(f"the stream failed: {error!r}")
        self._wake()
