"""A stream to a server: it reconnects automatically, keeps its attempts, and resends outcomes until confirmed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

import grpc
import grpc.aio

from everwork.aio.retrying import backoff_delays, retrying
from everwork.client.errors import error_of
from everwork.client.job import ActiveJob
from everwork.client.remote import require_size
from everwork.client.stream import CreditKey, Refused, Stream
from everwork.codec.proto_requests import outcome_message, outcome_of
from everwork.core.leasing import Lease
from everwork.core.limits import DEFAULT_TENANT, EVENTS_MAX
from everwork.core.outcome import Complete, Outcome
from everwork.exceptions import (
    AccessError,
    BadConfiguration,
    EngineUnavailable,
    EverworkError,
    InvalidInput,
    TooManyRequests,
)
from everwork.logs import Outage, get_logger
from everwork.proto import work_pb2 as pb

if TYPE_CHECKING:
    from everwork.client.client import Client
    from everwork.client.remote import RemoteTransport

log = get_logger("everwork")

OUTCOMES_MAX: Final = 2_000
MESSAGE_BYTES_MAX: Final = 1_000_000
"""A message takes no more outcomes once it exceeds this size, which is far below the servers' limit."""
WELCOME_SECONDS: Final = 10.0
STEADY_SECONDS: Final = 1.0
"""After a connection that lasted at least this long, the next attempt to connect has no delay."""
_EOF: Final[Any] = grpc.aio.EOF  # type: ignore[attr-defined]  # Missing in the type stubs.


class _Unfinished(Exception):
    """A connection has ended, but the stream has not."""


class RemoteStream(Stream):
    """One worker's stream; it survives lost connections."""

    def __init__(self, client: Client, worker: str, lease_ms: int) -> None:
        super().__init__(client, worker, lease_ms)
        self._transport = cast("RemoteTransport", client.transport)
        self._outcomes: deque[pb.Outcome] = deque()
        self._unjudged: deque[pb.Outcome] = deque()
        self._judged = 0
        self._grants: dict[CreditKey, int] = {}
        self._wakeup = asyncio.Event()
        self._is_heartbeat_due = False
        self._is_drain_sent = False
        self._is_server_closing = False
        self._is_welcomed = False
        self._connected_at = 0.0
        self._judged_at = 0.0
        """When outcomes were last confirmed, or when the first unconfirmed one was sent."""
        self._unkept = asyncio.Event()
        self._keeping = asyncio.Lock()
        self._kept: set[Lease] = set()
        """In offline mode, outcomes that are also in the spool."""
        self._outage = Outage(
            log,
            "the server is unavailable, trying again",
            "the server is back",
            whose=f"stream of worker '{self.worker}'",
        )

    def _granted(self, key: CreditKey, credits: int) -> None:
        self._grants[key] = self._grants.get(key, 0) + credits
        self._wakeup.set()

    def _send(self, outcome: Outcome) -> None:
        message = outcome_message(outcome)
        if isinstance(outcome, Complete) and outcome.events:
            require_size("events", message)
        self._outcomes.append(message)
        self._wakeup.set()
        if not self._is_welcomed:
            self._unkept.set()

    def _drained(self) -> None:
        self._grants.clear()
        self._wakeup.set()

    # Connections --------------------------------------------------------------------------------

    async def _run(self) -> None:
        keeping = asyncio.ensure_future(self._keep_while_away())
        try:
            await retrying(self._connect, on=(_Unfinished,), delays=self._delays)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _connect(self) -> None:
        """Use one connection until it ends; raises `_Unfinished` if there is anything left to send."""
        if not self._is_done:
            await self._try_to_converse()
        if not self._is_done and not (self._is_closing and await self._keep()):
            raise _Unfinished

    async def _try_to_converse(self) -> None:
        self._is_welcomed = False
        self._connected_at = asyncio.get_running_loop().time()
        try:
            await self._converse()
        except grpc.aio.AioRpcError as refused:
            self._failed(error_of(refused))
        except EngineUnavailable as error:
            self._failed(error.__cause__ if isinstance(error.__cause__, EverworkError) else error)

    def _delays(self) -> Iterator[float]:
        """The delays between connections; none after a long one, because the server holds attempts only briefly."""
        loop, delays = asyncio.get_running_loop(), backoff_delays()
        while True:
            if self._is_welcomed and loop.time() - self._connected_at > STEADY_SECONDS:
                delays = backoff_delays()
                yield 0.0
            else:
                yield next(delays)

    def _failed(self, error: EverworkError) -> None:
        """Return after an outage, to reconnect; raise permanent errors."""
        if isinstance(error, InvalidInput | BadConfiguration | AccessError) and not isinstance(error, TooManyRequests):
            raise error from None
        self._outage.report(error)

    @property
    def _is_done(self) -> bool:
        return self._is_draining and not (self._held or self._outcomes or self._unjudged)

    async def _converse(self) -> None:
        """Exchange messages on one connection until it ends or breaks."""
        await self._report_late()
        call = self._transport.work.Work(None, metadata=self._transport.metadata)
        self._reset()
        tasks = [asyncio.ensure_future(self._write(call))]
        try:
            await call.write(self._hello())
            while (message := await self._next(call)) is not _EOF:
                if message.HasField("welcome"):
                    tasks.append(asyncio.ensure_future(self._send_heartbeats(message.welcome.heartbeat_ms / 1000)))
                self._receive(message)
            if tasks[0].done():
                tasks[0].result()
            await _raise_status(call)
        except asyncio.InvalidStateError:
            await _raise_status(call)  # The call ended before the write; its status gives the reason.
        finally:
            call.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _next(self, call: Any) -> Any:
        """The next message; a server that accepts the call must send its welcome message soon."""
        if self._is_welcomed:
            return await call.read()
        try:
            async with asyncio.timeout(WELCOME_SECONDS):
                return await call.read()
        except TimeoutError:
            return _EOF

    def _reset(self) -> None:
        """Prepare a new connection: unconfirmed outcomes are sent first, and credits are granted again."""
        self._outcomes.extendleft(reversed(self._unjudged))
        self._unjudged.clear()
        self._judged = 0
        self._grants = {self._credit_keys[key]: credits for key, credits in self._credits.items() if credits > 0}
        self._is_drain_sent = self._is_server_closing = self._is_heartbeat_due = False

    def _hello(self) -> pb.FromWorker:
        resumed = [pb.Lease(key=job.key, attempt=job.attempt) for job in self._held.values()]
        hello = pb.Hello(
            worker=self.worker, lease_ms=self._lease_ms, resumed=resumed, offline=self._transport.outbox is not None
        )
        return pb.FromWorker(hello=hello)

    # Offline mode -------------------------------------------------------------------------------

    async def _keep_while_away(self) -> None:
        """Write outcomes that cannot be sent, or that the server does not confirm, to the spool."""
        outbox, loop = self._transport.outbox, asyncio.get_running_loop()
        while outbox is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._unkept.wait(), outbox.patience / 2)
            self._unkept.clear()
            if not self._is_welcomed or (self._unjudged and loop.time() - self._judged_at > outbox.patience):
                await self._keep()

    async def _keep(self, *, is_move: bool = False) -> bool:
        """Write all unconfirmed outcomes to the spool; returns whether they were written.

        After that, only the spool has them, except for releases, which it does not keep.
        """
        if self._transport.outbox is None:
            return False
        async with self._keeping:
            waiting = {_lease(one): one for one in (*self._unjudged, *self._outcomes) if _lease(one) not in self._kept}
            self._kept |= waiting.keys()
            try:
                await self._transport.outbox.spool.keep_outcomes([outcome_of(one, _tenant) for one in waiting.values()])
            except EngineUnavailable as error:
                self._kept -= waiting.keys()
                log.error("outcomes could not be written to the spool", error=str(error))
                return False
            if is_move:
                both = (*self._unjudged, *self._outcomes)
                self._outcomes = deque(one for one in both if one.HasField("release") or _lease(one) not in self._kept)
                self._unjudged.clear()
                self._kept.clear()
        return True

    async def _report_late(self) -> None:
        """Report all outcomes in the spool before requesting jobs; otherwise, the jobs they end could run again."""
        if self._transport.outbox is not None:
            await self._keep(is_move=True)
            await self._transport.outbox.spool.report_outcomes()

    def _forget(self, judged: Sequence[pb.Outcome], refused: set[Lease]) -> None:
        """Delete accepted outcomes from the spool; the courier sets refused ones aside."""
        kept = [one for one in judged if _lease(one) in self._kept]
        self._kept.difference_update(map(_lease, kept))
        accepted = [one for one in kept if _lease(one) not in refused]
        if accepted and self._transport.outbox is not None:
            self._transport.outbox.spool.forget_outcomes([outcome_of(one, _tenant) for one in accepted])

    # Send ---------------------------------------------------------------------------------------

    async def _write(self, call: Any) -> None:
        """Write as soon as there is something to send; items added during a write go with the next message."""
        self._wakeup.set()
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            if not self._is_welcomed:
                continue
            while (message := self._message()) is not None:
                await call.write(message)
            if self._is_server_closing or (self._is_done and self._is_drain_sent):
                await call.done_writing()
                return

    def _message(self) -> pb.FromWorker | None:
        message = pb.FromWorker()
        has_content = False
        if self._outcomes:
            message.outcomes.extend(self._next_outcomes())
            has_content = True
        if self._grants:
            grants, self._grants = self._grants, {}
            message.grants.extend(_grant(key, credits) for key, credits in grants.items())
            has_content = True
        if self._is_heartbeat_due:
            self._is_heartbeat_due = False
            message.heartbeats.extend(pb.Lease(key=job.key, attempt=job.attempt) for job in self._held.values())
            has_content = True
        if self._is_draining and not self._is_drain_sent:
            message.draining = self._is_drain_sent = has_content = True
        return message if has_content else None

    def _next_outcomes(self) -> Iterator[pb.Outcome]:
        outcomes, unjudged, size, events = self._outcomes, self._unjudged, 0, 0
        if not unjudged:
            self._judged_at = asyncio.get_running_loop().time()
        for _ in range(min(len(outcomes), OUTCOMES_MAX)):
            outcome = outcomes.popleft()
            unjudged.append(outcome)
            yield outcome
            size += outcome.ByteSize()
            events += len(outcome.complete.events)
            if size > MESSAGE_BYTES_MAX or events >= EVENTS_MAX:
                return

    async def _send_heartbeats(self, seconds: float) -> None:
        """Report regularly which jobs are held here, and that this worker is alive."""
        while True:
            await asyncio.sleep(seconds * 0.8)
            self._is_heartbeat_due = True
            self._wakeup.set()

    # Receive ------------------------------------------------------------------------------------

    def _receive(self, message: pb.ToWorker) -> None:
        if message.HasField("welcome"):
            self._outage.over()
            self._is_welcomed = True
            for loss in message.welcome.lost:
                self._lost(loss.lease.key, loss.lease.attempt, is_cancelled=loss.cancelled)
            self._wakeup.set()
        if message.jobs:
            self._received([ActiveJob(job) for job in message.jobs])
        if message.settled > self._judged:
            self._settled(message)
        for loss in message.losses:
            self._lost(loss.lease.key, loss.lease.attempt, is_cancelled=loss.cancelled)
        if message.closing:
            self._is_server_closing = True
            self._wakeup.set()

    def _settled(self, message: pb.ToWorker) -> None:
        judged = [self._unjudged.popleft() for _ in range(message.settled - self._judged)]
        if self._kept:
            refused = {Lease(refusal.lease.key, refusal.lease.attempt) for refusal in message.refusals}
            self._forget(judged, refused)
        self._judged = message.settled
        self._judged_at = asyncio.get_running_loop().time()
        for refusal in message.refusals:
            self._refused(Refused(refusal.lease.key, refusal.lease.attempt, refusal.message))
        if self._is_draining:
            self._wakeup.set()


def _lease(outcome: pb.Outcome) -> Lease:
    return Lease(outcome.key, outcome.attempt)


def _tenant(requested: str | None) -> str:
    """The tenant to send. An unset tenant stays unset: the server uses the tenant of the API key."""
    return requested or DEFAULT_TENANT


def _grant(key: CreditKey, credits: int) -> pb.Grant:
    return pb.Grant(type=key.type, credits=credits, group=key.group, tenants=key.tenants)


async def _raise_status(call: Any) -> None:
    """Raise the error for the status with which the server ended the call, unless the status is OK."""
    code = await call.code()
    if code is not grpc.StatusCode.OK:
        raise grpc.aio.AioRpcError(
            code, await call.initial_metadata(), await call.trailing_metadata(), await call.details(), None
        )
