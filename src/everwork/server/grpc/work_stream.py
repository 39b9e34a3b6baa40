"""One worker's stream: credits, outcomes and heartbeats come in, jobs and verdicts go out, all in batches."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence, Sized
from functools import partial
from typing import Any, Final, Protocol

from google.protobuf.message import DecodeError

from everwork.aio.retrying import backoff_delays, retrying
from everwork.core import checks
from everwork.core.job import LeasedJob
from everwork.core.leasing import Demand, Lease, LeaseStatus
from everwork.core.limits import LEASE_MS_DEFAULT, LEASE_MS_MAX
from everwork.exceptions import EngineError, InvalidInput, TooManyRequests
from everwork.proto import work_pb2
from everwork.server.grpc.feed import CreditKey, Feed
from everwork.server.grpc.fields import require_few_fields
from everwork.server.grpc.intake import HeldBytes, request_bytes
from everwork.server.grpc.jobs_requests import tenants as checked_tenants
from everwork.server.grpc.message_writer import MessageWriter, Send
from everwork.server.grpc.outcomes import Reported, require_few_events, settle_messages
from everwork.service.fleet.clients import type_name
from everwork.service.jobs import Jobs
from everwork.service.service import JobService

FAIR_MAX: Final = 32
"""The maximum number of jobs leased, or outcomes settled, per step while other keys are active."""
POLL_MS: Final = 30_000
CREDITS_MAX: Final = 100_000
LEASES_MAX: Final = 20_000
"""How many attempts one message may name."""
LEASES_STEP: Final = 1_000
"""How many of these attempts are read, and extended, before other callers are served."""
LEASES_FAIR: Final = 200
"""How many are extended in one step while other keys are active."""
GRANTS_STEP: Final = 10
"""How many grants are read before other callers are served: each may name many tenants."""
OUTCOMES_MAX: Final = 10_000
"""How many outcomes one message may carry."""
FEEDS_MAX: Final = 1_000
HEARTBEAT_MS_MAX: Final = 10_000
MISSED_HEARTBEATS: Final = 3
WRITE_SECONDS_MAX: Final = 1.0
"""How long the end of a stream waits for a worker that is not reading."""


class Streams(Protocol):
    """What a stream needs from the other streams: taking over their attempts, and finishing its work after it ends."""

    def adopt(self, leases: Iterable[Lease], by: Jobs | None = None) -> None:
        """Take over attempts of earlier streams; with `by`, only those that were leased with the same key."""

    def finish(self, jobs: Jobs, outcomes: Sequence[work_pb2.Outcome], done: Callable[[], None]) -> None:
        """Settle outcomes that arrived before the stream ended, and then call `done`."""

    def pace(self, jobs: Jobs) -> float:
        """Count one message of the worker; returns how many seconds the key's rate limit delays it."""


class WorkStream:
    """The state of one stream, served by `run`; `WorkStreams` ends it if its key is invalid or its worker silent."""

    def __init__(
        self,
        service: JobService,
        jobs: Jobs,
        streams: Streams,
        send: Send,
        *,
        requests: HeldBytes,
        undelivered: HeldBytes,
    ) -> None:
        self._service = service
        self._requests = requests
        self.jobs = jobs
        self._streams = streams
        self._turns = service.budgets.requests
        self._writer = MessageWriter(send, self._hold, undelivered, jobs.principal.id)
        self._loop = asyncio.get_running_loop()
        self.worker = ""
        self.lease_ms = LEASE_MS_DEFAULT
        self.is_offline = False
        """Whether the worker keeps its outcomes while it is disconnected, and reports them late."""
        self.held: dict[Lease, float] = {}
        """The attempts that the worker holds, and when their leases were last set, by the loop's clock."""
        self._feeds: dict[CreditKey, Feed] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writing: asyncio.Task[None] | None = None
        self._is_closing = False
        self._reported = Reported(requests, jobs.principal.id)
        self._is_settled = asyncio.Event()
        """Cleared while the engine is unavailable: finished jobs are settled before more are leased, or they could
        run again."""
        self._is_settled.set()
        self._wakeup = asyncio.Event()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.heard_at = self._loop.time()
        """When the worker last sent a message; infinite while the server keeps it waiting."""

    @property
    def silence_seconds_max(self) -> float:
        """A worker that is silent for longer than this counts as disconnected, even if it answers pings."""
        return MISSED_HEARTBEATS * self._heartbeat_ms / 1000

    @property
    def poller_key(self) -> tuple[str, str]:
        """The id of the API key, and the worker's name."""
        return self.jobs.principal.id, self.worker

    @property
    def types(self) -> list[str]:
        """The types that the worker has granted credits for."""
        return [type_name(key.type, key.group) for key in self._feeds]

    @property
    def running(self) -> int:
        """How many attempts the worker holds."""
        return len(self.held)

    @property
    def ended_jobs(self) -> int:
        """How many outcomes the worker has reported."""
        return self._reported.received

    async def run(self, messages: AsyncIterator[bytes]) -> None:
        """Serve the worker until it closes its side, or something ends the stream."""
        try:
            self._start(self._settle_all())
            self._writing = self._start(self._writer.run())
            await self._done_or_ended(self._start(self._read(messages)))
            self.stop_feeding()
            await self._done_or_ended(self._start(self._drained()))
        finally:
            await self._end()

    def stop_feeding(self, *, closing: bool = False) -> None:
        """Send no more jobs; leased jobs that are not being written yet are released."""
        for feed in self._feeds.values():
            feed.task.cancel()
        self._feeds.clear()
        self._service.release_undelivered(self._writer.take_waiting())
        if closing:
            self._is_closing = True
            self._writer.closing()

    def end(self, error: BaseException) -> None:
        """End the stream with an error."""
        if not self.ended.done():
            self.ended.set_exception(error)

    def lose(self, lease: Lease, status: LeaseStatus) -> None:
        """Report to the worker that the lease of an attempt is lost."""
        if lease in self.held:
            del self.held[lease]
            self._writer.lost(lease, status)

    # Incoming -----------------------------------------------------------------------------------

    async def _read(self, messages: AsyncIterator[bytes]) -> None:
        async for raw in messages:
            self.heard_at = math.inf
            if wait := self._streams.pace(self.jobs):
                await asyncio.sleep(wait)
            # Waits before the message is parsed; its outcomes, which are kept, then wait for nothing.
            weight, owner = request_bytes(len(raw)), self.jobs.principal.id
            await self._requests.reserve(owner, weight)
            try:
                await self._receive(raw)
            finally:
                self._requests.release(owner, weight)
            self.heard_at = self._loop.time()

    async def _receive(self, raw: bytes) -> None:
        await require_few_fields(work_pb2.FromWorker.DESCRIPTOR, raw, _next_pass)
        message = _parsed(raw)
        if message.HasField("hello"):
            await self._welcome(message.hello)
        elif not self.worker:
            raise InvalidInput("hello", "must be in the first message")
        _require_few("outcomes", message.outcomes, OUTCOMES_MAX)
        _require_few("grants", message.grants, FEEDS_MAX)
        require_few_events(message.outcomes, len(raw))
        for start in range(0, len(message.grants), GRANTS_STEP):
            if start:
                await self._turns.let_others_run(self.jobs.principal)
            for grant in message.grants[start : start + GRANTS_STEP]:
                self._grant(grant)
        if message.outcomes:
            for lease in self._reported.add(message.outcomes, len(raw)):
                self.held.pop(lease, None)
            self._wakeup.set()
        if message.heartbeats:
            await self._heartbeat(await _leases("heartbeats", message.heartbeats))
        if message.draining:
            self.stop_feeding()
        await self._reported.has_capacity()

    async def _welcome(self, hello: work_pb2.Hello) -> None:
        if self.worker:
            raise InvalidInput("hello", "must be in the first message only")
        if hello.lease_ms:
            self.lease_ms = checks.whole_number("hello.lease_ms", hello.lease_ms, 1, LEASE_MS_MAX)
        self.is_offline = hello.offline
        worker = checks.name("hello.worker", hello.worker)
        resumed = await _leases("hello.resumed", hello.resumed)
        # Adopt first: the attempts' reconnect deadline keeps running during the engine call.
        self._streams.adopt(resumed, self.jobs)
        statuses = await self._extended(resumed, is_late=hello.offline)
        self.worker = worker
        self._service.clients.add(self)
        kept = [lease for lease, status in statuses.items() if status is LeaseStatus.HELD]
        self._streams.adopt(kept)
        self.held |= dict.fromkeys(kept, self._loop.time())
        lost = [(lease, status) for lease, status in statuses.items() if lease not in self.held]
        self._writer.welcome(self._service.holder, self._heartbeat_ms, lost)

    def _grant(self, grant: work_pb2.Grant) -> None:
        """Add credit; the first credit for a key starts its feed."""
        tenants = self.jobs.principal.tenants_for(checked_tenants("tenants", grant.tenants))
        key = CreditKey(checks.name("type", grant.type), grant.group and checks.name("group", grant.group), tenants)
        if self._is_closing:
            return
        feed = self._feeds.get(key)
        if feed is None:
            if len(self._feeds) >= FEEDS_MAX:
                raise InvalidInput("grants", f"must name at most {FEEDS_MAX:,} types in one stream")
            self._feeds[key] = feed = Feed(self._start(self._feed(key)))
            self._service.clients.note_change()
        feed.add(checks.whole_number("credits", grant.credits + feed.credits, 0, CREDITS_MAX) - feed.credits)

    async def _heartbeat(self, leases: Sequence[Lease]) -> None:
        """Extend leases; attempts whose outcome is being settled are left out."""
        ending = self._reported.ending
        for start in range(0, len(leases), LEASES_STEP):
            await self._writer.can_report_losses()
            batch = leases[start : start + LEASES_STEP]
            statuses = await self._extended([lease for lease in batch if lease not in ending])
            self._note({lease: status for lease, status in statuses.items() if lease not in ending})

    def _note(self, statuses: Mapping[Lease, LeaseStatus]) -> None:
        """Note which attempts the worker holds, and report those that it has lost."""
        held = [lease for lease, status in statuses.items() if status is LeaseStatus.HELD]
        if new := [lease for lease in held if lease not in self.held]:
            self._streams.adopt(new)
        self.held |= dict.fromkeys(held, self._loop.time())
        for lease, status in statuses.items():
            if status is not LeaseStatus.HELD:
                self.held.pop(lease, None)
                self._writer.lost(lease, status)

    async def _extended(self, leases: Sequence[Lease], *, is_late: bool = False) -> dict[Lease, LeaseStatus]:
        """Extend the caller's own leases; return the statuses of all leases."""
        found = dict.fromkeys(leases, LeaseStatus.LOST)
        start = 0
        while start < len(leases):
            batch = leases[start : start + (LEASES_FAIR if self._turns.is_contended else LEASES_STEP)]
            start += len(batch)
            found |= await retrying(partial(self._extend, batch, is_late), on=(EngineError, TooManyRequests))
        return found

    async def _extend(self, leases: Sequence[Lease], is_late: bool) -> dict[Lease, LeaseStatus]:
        async with self._turns.of(self.jobs.principal):
            refused = await self.jobs.refused([lease.key for lease in leases if lease not in self.held])
            own = [lease for lease in leases if lease.key not in refused]
            extend = self._service.reclaim_all if is_late else self._service.extend_all
            return dict(zip(own, await extend(own, self.lease_ms), strict=True))

    # Outcomes -----------------------------------------------------------------------------------

    async def _settle_all(self) -> None:
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            while waiting := self._reported.waiting:
                await self._writer.has_capacity()
                await self._turns.pace(self.jobs.principal)
                await self._settle(self._reported.take(FAIR_MAX if self._turns.is_contended else len(waiting)))

    async def _settle(self, messages: list[work_pb2.Outcome]) -> None:
        """Settle outcomes, retrying while the engine is unavailable: each names its attempt, so repeats are safe."""
        refusals = await retrying(partial(self._settle_once, messages), on=(EngineError, TooManyRequests))
        self._is_settled.set()
        self._reported.settled()
        self._writer.judged(self._reported.judged, refusals)

    async def _settle_once(self, messages: Sequence[work_pb2.Outcome]) -> list[work_pb2.Refusal]:
        """Settle outcomes once. Leases can expire during an outage; after it, they are restored where possible."""
        first, is_late = self._reported.judged + 1, not self._is_settled.is_set()
        try:
            return await settle_messages(self._service, self.jobs, messages, first, is_late=is_late)
        except EngineError:
            self._is_settled.clear()
            raise

    # Outgoing -----------------------------------------------------------------------------------

    async def _feed(self, key: CreditKey) -> None:
        """Lease jobs while there is credit for them and the worker keeps reading."""
        feed = self._feeds[key]
        demand = Demand(key.type, self.worker, 0, self.lease_ms, key.group, key.tenants)
        delays = backoff_delays()
        while True:
            await feed.has_credits()
            await self._writer.has_capacity()
            await self._is_settled.wait()
            if await self._lease(feed, demand):
                delays = backoff_delays()
            else:
                await asyncio.sleep(next(delays))

    async def _lease(self, feed: Feed, demand: Demand) -> bool:
        """Lease jobs; lease more immediately if the step was small because the size of the jobs was still unknown.

        Keeps no reference to the jobs while the feed waits. False: try again later.
        """
        wait_ms, is_cut = POLL_MS, True
        try:
            while is_cut:
                most = min(feed.step, FAIR_MAX) if self._turns.is_contended else feed.step
                jobs = await self.jobs.activate(demand._replace(limit=min(feed.credits, most)), wait_ms)
                self._add(jobs)
                is_cut, wait_ms = feed.take(jobs, most), 0
        except (EngineError, TooManyRequests):
            return False
        finally:
            self._writer.flush()
        return True

    def _add(self, jobs: Sequence[LeasedJob]) -> None:
        """Pass jobs on to the worker; release them if it already has too many unread bytes."""
        try:
            self._writer.jobs(jobs)
        except TooManyRequests:
            self._service.release_undelivered(jobs)
            raise

    def _hold(self, jobs: Sequence[LeasedJob]) -> None:
        """Mark jobs as held: from now on the worker may have them."""
        now = self._loop.time()
        for job in jobs:
            self.held[Lease(job.key, job.attempt)] = now

    # Lifecycle ----------------------------------------------------------------------------------

    @property
    def _heartbeat_ms(self) -> int:
        return max(min(self.lease_ms // MISSED_HEARTBEATS, HEARTBEAT_MS_MAX), 1)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task of the stream; if it fails, the stream ends."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._stopped)
        return task

    def _stopped(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.end(error)

    async def _done_or_ended(self, task: asyncio.Task[None]) -> None:
        await asyncio.wait([task, self.ended], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        if self.ended.done():
            self.ended.result()

    async def _drained(self) -> None:
        """After the worker has closed its side, wait until its outcomes are settled and the verdicts written."""
        while self._reported.judged < self._reported.received or not self._writer.is_empty:
            await self._writer.next_write()

    async def _end(self) -> None:
        self._service.clients.remove(self)
        self._writer.stop()
        try:
            await self._stop_tasks()
        finally:  # If the worker disconnects in the meantime, the call is cancelled.
            self._release()

    async def _stop_tasks(self) -> None:
        tasks = [task for task in self._tasks if task is not self._writing]
        for task in tasks:
            task.cancel()
        if tasks:  # Not gathered: another cancellation must not interrupt what they do at their end.
            await asyncio.wait(tasks)
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=WRITE_SECONDS_MAX)

    def _release(self) -> None:
        """Release jobs that were not written, and pass on outcomes that were not judged."""
        if not self.ended.done():
            self.ended.set_result(None)
        elif not self.ended.cancelled():
            self.ended.exception()  # Retrieved, even if another error was raised first.
        unwritten = self._writer.unwritten()
        for job in unwritten:
            self.held.pop(Lease(job.key, job.attempt), None)
        self._service.release_undelivered(unwritten)
        self._streams.finish(self.jobs, self._reported.unjudged, self._reported.forget)


async def _next_pass() -> None:
    """Let other callers go first."""
    await asyncio.sleep(0)


def _parsed(raw: bytes) -> work_pb2.FromWorker:
    try:
        return work_pb2.FromWorker.FromString(raw)
    except DecodeError:
        raise InvalidInput("message", "must be a protobuf message of type everwork.v1.FromWorker") from None


def _require_few(field: str, items: Sized, most: int) -> None:
    if len(items) > most:
        raise InvalidInput(field, f"must be at most {most:,} in one message, not {len(items):,}")


async def _leases(field: str, messages: Sequence[work_pb2.Lease]) -> list[Lease]:
    """The attempts that a message names, without duplicates."""
    if len(messages) > LEASES_MAX:
        raise InvalidInput(field, f"must name at most {LEASES_MAX:,} attempts in one message, not {len(messages):,}")
    leases: dict[Lease, None] = {}
    for start in range(0, len(messages), LEASES_STEP):
        if start:
            await asyncio.sleep(0)
        for one in messages[start : start + LEASES_STEP]:
            leases[Lease(checks.job_key(one.key, f"{field}.key"), checks.attempt(one.attempt))] = None
    return list(leases)
