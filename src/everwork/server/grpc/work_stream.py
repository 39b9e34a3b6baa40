"""One worker's stream: credits, outcomes and heartbeats come in, jobs and judgements go out, all in batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

from google.protobuf.message import DecodeError

from everwork.core import checks
from everwork.core.job import LeasedJob
from everwork.core.limits import LEASE_MS_DEFAULT, LEASE_MS_MAX
from everwork.core.outcome import Fail, Outcome, Throw
from everwork.engines.codec import decode
from everwork.engines.values import Demand, Judged, Lease, LeaseStatus, Verdict
from everwork.exceptions import (
    EngineError,
    EverworkError,
    InvalidInput,
    JobError,
    JobNotFound,
    PermissionDenied,
    TooManyRequests,
)
from everwork.proto import work_pb2
from everwork.server.grpc.outbox import Outbox, Send
from everwork.server.grpc.work_intake import outcome as checked_outcome
from everwork.service.desk import Desk, foreign_job
from everwork.service.loops import pauses
from everwork.service.service import JobService, accepted

FEED_MAX: Final = 500
"""How many jobs one step brings to one worker, whatever credit it has."""
POLL_MS: Final = 30_000
CREDITS_MAX: Final = 100_000
PLACES_MAX: Final = 1_000
UNJUDGED_MAX: Final = 20_000
"""A worker that reports faster than the engine judges is not read from for a while."""
HEARTBEAT_MS_MAX: Final = 10_000
SILENT_BEATS: Final = 3

_REASONS: Final = {
    Verdict.NOT_FOUND: work_pb2.NOT_FOUND,
    Verdict.WRONG_STATE: work_pb2.WRONG_STATE,
    Verdict.LEASE_LOST: work_pb2.LEASE_LOST,
}


_REASON_OF_ERROR: Final = {JobNotFound: work_pb2.NOT_FOUND, PermissionDenied: work_pb2.PERMISSION_DENIED}


class Place(NamedTuple):
    """What a worker has credits for."""

    type: str
    group: str
    tenants: tuple[str, ...]


class Streams(Protocol):
    """What a stream leaves behind for others to do."""

    def adopted(self, leases: Iterable[Lease]) -> None:
        """Attempts of an earlier stream run on here."""

    def finish(self, outcomes: Sequence[Outcome]) -> None:
        """Outcomes that came before the stream ended are still settled."""


class WorkStream:
    """The state of one stream. `run` is its life; the tick of all streams looks after it."""

    def __init__(self, service: JobService, desk: Desk, streams: Streams, send: Send) -> None:
        self._service = service
        self.desk = desk
        self._streams = streams
        self._outbox = Outbox(send, self._hold)
        self._loop = asyncio.get_running_loop()
        self.worker = ""
        self._lease_ms = LEASE_MS_DEFAULT
        self.held: dict[Lease, None] = {}
        self._feeds: dict[Place, _Feed] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._unjudged: list[work_pb2.Outcome] = []
        self._in_hand: list[work_pb2.Outcome] = []
        self._received = 0
        self._judged = 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.heard_at = self._loop.time()

    @property
    def silence_seconds_max(self) -> float:
        """A worker that says nothing for so long is taken for gone, whatever answers its pings."""
        return SILENT_BEATS * self._heartbeat_ms / 1000

    async def run(self, messages: AsyncIterator[bytes]) -> None:
        """Serve the worker until it closes its side, or something ends the stream."""
        work = [self._start(self._read(messages)), self._start(self._judge_all()), self._start(self._outbox.run())]
        try:
            done, _ = await asyncio.wait([*work, self.ended], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            self.stop_feeding()
            await self._drained()
        finally:
            await self._end()

    def stop_feeding(self, *, closing: bool = False) -> None:
        """Send no more jobs; what is leased at this moment goes back."""
        for feed in self._feeds.values():
            feed.task.cancel()
        self._feeds.clear()
        if closing:
            self._is_closing = True
            self._outbox.closing()

    def end(self, error: EverworkError) -> None:
        """End the stream with an error."""
        if not self.ended.done():
            self.ended.set_exception(error)

    def lose(self, lease: Lease, status: LeaseStatus) -> None:
        """Tell the worker that an attempt is no longer its own."""
        if lease in self.held:
            del self.held[lease]
            self._outbox.lost(lease, status)

    # What comes in ------------------------------------------------------------------------------

    async def _read(self, messages: AsyncIterator[bytes]) -> None:
        async for raw in messages:
            self.heard_at = self._loop.time()
            message = _parsed(raw)
            if message.HasField("hello"):
                await self._begin(message.hello)
            elif not self.worker:
                raise InvalidInput("hello", "must be in the first message")
            for grant in message.grants:
                self._grant(grant)
            if message.outcomes:
                self._take(message.outcomes)
            if message.heartbeats:
                await self._beat([_lease(lease) for lease in message.heartbeats])
            if message.draining:
                self.stop_feeding()
            while len(self._unjudged) > UNJUDGED_MAX:
                self._room.clear()
                await self._room.wait()

    async def _begin(self, hello: work_pb2.Hello) -> None:
        if self.worker:
            raise InvalidInput("hello", "must be in the first message only")
        if hello.lease_ms:
            self._lease_ms = checks.whole_number("hello.lease_ms", hello.lease_ms, 1, LEASE_MS_MAX)
        worker = checks.name("hello.worker", hello.worker)
        resumed = [_lease(lease) for lease in hello.resumed]
        statuses = await self._extended(resumed)
        self.worker = worker
        kept = [lease for lease, status in zip(resumed, statuses, strict=True) if status is LeaseStatus.HELD]
        self._streams.adopted(kept)
        self.held |= dict.fromkeys(kept)
        lost = [(lease, status) for lease, status in zip(resumed, statuses, strict=True) if lease not in self.held]
        self._outbox.welcome(self._service.holder, self._heartbeat_ms, lost)

    def _grant(self, grant: work_pb2.Grant) -> None:
        """More credit for a place; the first brings a feed into being."""
        tenants = self.desk.principal.tenants_for([checks.name("tenants", name) for name in grant.tenants])
        place = Place(checks.name("type", grant.type), grant.group and checks.name("group", grant.group), tenants)
        feed = self._feeds.get(place)
        if self._is_closing:
            return
        if feed is None:
            if len(self._feeds) >= PLACES_MAX:
                raise InvalidInput("grants", f"must name at most {PLACES_MAX:,} types in one stream")
            self._feeds[place] = feed = _Feed(self._start(self._feed(place)))
        feed.add(checks.whole_number("credits", grant.credits + feed.credits, 0, CREDITS_MAX) - feed.credits)

    def _take(self, outcomes: Iterable[work_pb2.Outcome]) -> None:
        """Outcomes wait to be judged; what they end is no longer held."""
        held = self.held
        for outcome in outcomes:
            self._received += 1
            self._unjudged.append(outcome)
            held.pop(Lease(outcome.key, outcome.attempt), None)
        self._news.set()

    async def _beat(self, leases: list[Lease]) -> None:
        for lease, status in zip(leases, await self._extended(leases), strict=True):
            if status is not LeaseStatus.HELD:
                self.held.pop(lease, None)
                self._outbox.lost(lease, status)
            else:
                self.held[lease] = None

    async def _extended(self, leases: list[Lease]) -> list[LeaseStatus]:
        """The statuses of leases, those prolonged that are the caller's own and hold."""
        foreign = await self.desk.foreign([lease.key for lease in leases if lease not in self.held])
        mine = [lease for lease in leases if lease.key not in foreign]
        found = dict(zip(mine, await self._patiently(mine), strict=True))
        return [found.get(lease, LeaseStatus.LOST) for lease in leases]

    async def _patiently(self, leases: list[Lease]) -> list[LeaseStatus]:
        delays = pauses()
        while leases:
            try:
                return await self._service.engine.extend(leases, self._lease_ms)
            except EngineError:
                await asyncio.sleep(next(delays))
        return []

    # What ends attempts -------------------------------------------------------------------------

    async def _judge_all(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._unjudged:
                self._in_hand, self._unjudged = self._unjudged, []
                self._room.set()
                await self._judge(self._in_hand)
                self._in_hand = []

    async def _judge(self, batch: list[work_pb2.Outcome]) -> None:
        first = self._judged + 1
        refusals: list[work_pb2.Refusal] = []
        numbers: list[int] = []
        outcomes: list[Outcome] = []
        for number, message in enumerate(batch, first):
            try:
                outcomes.append(await self._checked(message))
                numbers.append(number)
            except EverworkError as error:
                refusals.append(_invalid(number, message, error))
        foreign = await self.desk.foreign([outcome.key for outcome in outcomes])
        if foreign:
            refusals += [_foreign(n, o) for n, o in zip(numbers, outcomes, strict=True) if o.key in foreign]
            kept = [(n, o) for n, o in zip(numbers, outcomes, strict=True) if o.key not in foreign]
            numbers, outcomes = [n for n, _ in kept], [o for _, o in kept]
        for number, outcome, judged in zip(numbers, outcomes, await self._settle(outcomes), strict=True):
            if not judged.ok:
                refusals.append(_refusal(number, outcome, judged))
        self._judged += len(batch)
        self._outbox.judged(self._judged, refusals)

    async def _checked(self, message: work_pb2.Outcome) -> Outcome:
        if not message.attempt:
            raise InvalidInput("attempt", "must be given: a stream knows the attempts of its jobs")
        outcome = checked_outcome(message, self.desk.principal)
        if isinstance(outcome, Fail | Throw) and outcome.variables is not None:
            merged = await self.desk.merged_variables(outcome.key, decode(outcome.variables))
            return outcome._replace(variables=merged)
        return outcome

    async def _settle(self, outcomes: list[Outcome]) -> list[Judged]:
        """While the engine is away the worker is kept waiting: each outcome names its attempt and may be repeated."""
        delays = pauses()
        while outcomes:
            try:
                return await self._service.settle(outcomes)
            except EngineError:
                await asyncio.sleep(next(delays))
        return []

    # What goes out ------------------------------------------------------------------------------

    async def _feed(self, place: Place) -> None:
        """Lease jobs as long as there is credit for them and the worker takes what it gets."""
        feed = self._feeds[place]
        demand = Demand(place.type, self.worker, 0, self._lease_ms, place.group, place.tenants)
        delays = pauses()
        while True:
            await feed.has_credits()
            await self._outbox.has_room()
            try:
                jobs = await self.desk.activate(demand._replace(limit=min(feed.credits, FEED_MAX)), POLL_MS)
            except (EngineError, TooManyRequests):
                await asyncio.sleep(next(delays))
                continue
            except EverworkError as error:
                return self.end(error)
            delays = pauses()
            feed.credits -= len(jobs)
            self._outbox.jobs(jobs)

    def _hold(self, jobs: Sequence[LeasedJob]) -> None:
        """From now on the worker may have them."""
        for job in jobs:
            self.held[Lease(job.key, job.attempt)] = None

    # The end ------------------------------------------------------------------------------------

    @property
    def _heartbeat_ms(self) -> int:
        return max(min(self._lease_ms // SILENT_BEATS, HEARTBEAT_MS_MAX), 1)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _drained(self) -> None:
        """The worker has closed its side: what it sent is judged, and the judgement written."""
        while self._judged < self._received or not self._outbox.is_empty:
            await self._outbox.turn()

    async def _end(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._outbox.quiet()
        if not self.ended.done():
            self.ended.set_result(None)
        unwritten = self._outbox.unwritten()
        for job in unwritten:
            self.held.pop(Lease(job.key, job.attempt), None)
        self._service.hand_back(unwritten)
        self._streams.finish(await self._last([*self._in_hand, *self._unjudged]))

    async def _last(self, messages: Sequence[work_pb2.Outcome]) -> list[Outcome]:
        """Outcomes that came before the end; one that makes no sense has nobody left to be told."""
        outcomes: list[Outcome] = []
        for message in messages:
            with suppress(EverworkError):
                outcomes.append(await self._checked(message))
        try:
            foreign = await self.desk.foreign([outcome.key for outcome in outcomes])
        except EngineError:
            return []  # Their leases lapse.
        return [outcome for outcome in outcomes if outcome.key not in foreign]


class _Feed:
    """The credit of one place, and the task that uses it up."""

    __slots__ = ("_more", "credits", "task")

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        self.credits = 0
        self._more = asyncio.Event()

    def add(self, credits: int) -> None:
        """More credit."""
        self.credits += credits
        if self.credits:
            self._more.set()

    async def has_credits(self) -> None:
        """Wait until there is credit."""
        while not self.credits:
            self._more.clear()
            await self._more.wait()


def _parsed(raw: bytes) -> work_pb2.FromWorker:
    try:
        return work_pb2.FromWorker.FromString(raw)
    except DecodeError:
        raise InvalidInput("message", "must be an everwork.v1.FromWorker in protobuf") from None


def _lease(message: work_pb2.Lease) -> Lease:
    return Lease(checks.job_key(message.key), checks.attempt(message.attempt))


def _refusal(number: int, outcome: Outcome, judged: Judged) -> work_pb2.Refusal:
    state = "" if judged.state is None else judged.state.label
    try:
        accepted(outcome.key, judged, "ended so")
        message = ""
    except JobError as error:
        message = str(error)
    lease = work_pb2.Lease(key=outcome.key, attempt=outcome.attempt)
    reason = _REASONS[judged.verdict]
    return work_pb2.Refusal(number=number, lease=lease, reason=reason, state=state, message=message)


def _foreign(number: int, outcome: Outcome) -> work_pb2.Refusal:
    lease = work_pb2.Lease(key=outcome.key, attempt=outcome.attempt)
    message = str(foreign_job(outcome.key))
    return work_pb2.Refusal(number=number, lease=lease, reason=work_pb2.PERMISSION_DENIED, message=message)


def _invalid(number: int, message: work_pb2.Outcome, error: EverworkError) -> work_pb2.Refusal:
    lease = work_pb2.Lease(key=message.key, attempt=message.attempt)
    reason = _REASON_OF_ERROR.get(type(error), work_pb2.INVALID)
    return work_pb2.Refusal(number=number, lease=lease, reason=reason, message=str(error))
