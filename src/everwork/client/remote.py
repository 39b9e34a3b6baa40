"""The transport to a server: gRPC calls that return the same results as a service in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from everwork.client.address import Address
from everwork.client.errors import error_of
from everwork.codec import proto_replies as replies
from everwork.codec import proto_requests as requests
from everwork.core.job import HistoryEntry, NewJob, StoredJob
from everwork.core.leasing import Created, Demand, Judged, Spooled, Stamp
from everwork.core.outcome import Outcome
from everwork.core.queries import BulkChange, Explanation, JobFilter, Page, Stats, cursor_parts
from everwork.core.states import State
from everwork.exceptions import EngineUnavailable, InvalidInput, ResultTimeout
from everwork.proto import work_pb2 as pb
from everwork.proto.work_pb2_grpc import DeskServiceAsyncStub, WorkServiceAsyncStub

if TYPE_CHECKING:
    from everwork.client.client import Client
    from everwork.client.offline import RemoteOutbox, RemoteTarget
    from everwork.client.stream import Stream
    from everwork.spool.settings import Offline, Spool

T = TypeVar("T")

POLL_PAUSE_SECONDS: Final = 0.05
RESULT_SECONDS: Final = 20.0
"""How long one call waits for a result; longer waits are split into several calls."""
MESSAGE_BYTES_MAX: Final = 64 * 1_048_576
REQUEST_BYTES_MAX: Final = 4 * 1_048_576
"""The maximum size of a request; servers refuse larger ones."""
OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # Reconnect to a restarted server quickly; gRPC's default is up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Despite its name, this limits how long one connection attempt can take: TLS over a slow line, a busy server.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # Detect a half-open connection before leases expire.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # This is the option that gRPC respects; its default is one minute.
    ("grpc.http2.max_pings_without_data", 0),
    # Every client has its own connections, so that closing one never affects another.
    ("grpc.use_local_subchannel_pool", 1),
)


class RemoteTransport:
    """A channel to a server."""

    def __init__(self, address: Address, spool: str | Spool | None = None) -> None:
        self._address = address
        self._channel: grpc.aio.Channel | None = None
        self._offline = None if spool is None else _offline(spool, address)
        self.outbox: RemoteOutbox | None = None
        """Offline mode, while the transport is open."""
        self.work: WorkServiceAsyncStub
        self.calls: DeskServiceAsyncStub

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The gRPC metadata sent with every call."""
        return self._address.metadata

    async def open(self) -> None:
        """Create the channel; it connects on first use."""
        target = self._address.target
        if self._address.is_secure:
            key, certificates = self._address.identity or (None, None)
            credentials = grpc.ssl_channel_credentials(self._address.authorities, key, certificates)
            self._channel = grpc.aio.secure_channel(target, credentials, options=OPTIONS)
        else:
            self._channel = grpc.aio.insecure_channel(target, options=OPTIONS)
        self.work = WorkServiceAsyncStub(self._channel)
        self.calls = DeskServiceAsyncStub(self._channel)
        if self._offline is not None:
            from everwork.client.offline import RemoteOutbox  # noqa: PLC0415 - loaded only for offline mode

            outbox = RemoteOutbox(self._offline, self, self._channel)
            await outbox.open()
            self.outbox = outbox

    async def close(self) -> None:
        """Close the channel; calls in progress are cancelled."""
        outbox, self.outbox = self.outbox, None
        if outbox is not None:
            await outbox.close()
        if self._channel is not None:
            await self._channel.close(None)

    def target(self, patience: float) -> RemoteTarget:
        """The server as the target of a spool, while the transport is open."""
        from everwork.client.offline import RemoteTarget  # noqa: PLC0415 - loaded only for offline mode

        if self._channel is None:
            raise EngineUnavailable("the client is not open")
        return RemoteTarget(patience, self, self._channel)

    def jobs(self, deadline: float) -> RemoteJobs:
        """The operations for one call; the deadline is a time on the event loop's clock."""
        return RemoteJobs(self, deadline)

    def stream(self, client: Client, worker: str, lease_ms: int) -> Stream:
        """One worker's stream of jobs."""
        from everwork.client.remote_stream import RemoteStream  # noqa: PLC0415 - loaded on demand

        return RemoteStream(client, worker, lease_ms)


class RemoteJobs:
    """The operations for one call, each sent as a request. The service's `Jobs` documents them."""

    __slots__ = ("_calls", "_deadline", "_transport")

    def __init__(self, transport: RemoteTransport, deadline: float) -> None:
        self._transport = transport
        self._calls = transport.calls
        self._deadline = deadline

    # Work ---------------------------------------------------------------------------------------

    async def create(self, jobs: Sequence[NewJob], stamp: Stamp | None = None) -> list[Created]:
        if stamp is None and self._transport.outbox is not None:
            return await self._transport.outbox.create(jobs)
        request = pb.CreateJobsRequest(
            jobs=[requests.new_job_message(job) for job in jobs],
            stamp=None if stamp is None else pb.Stamp(producer=stamp.producer, number=stamp.number),
        )
        require_size("jobs", request)
        reply = await self._request(self._transport.work.CreateJobs, request)
        return [replies.created_of(one) for one in reply.jobs]

    async def activate(self, demand: Demand, wait_ms: int = 0) -> Sequence[pb.Job]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        while True:
            left_ms = max(round((deadline - loop.time()) * 1000), 0)
            jobs = await self._poll(demand, left_ms)
            if jobs or not left_ms or loop.time() + POLL_PAUSE_SECONDS > deadline:
                return jobs
            await asyncio.sleep(POLL_PAUSE_SECONDS)  # A server that is shutting down ends every wait immediately.

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Judged]:
        return await self._settle(self._calls.Settle, outcomes)

    async def settle_late(self, outcomes: Sequence[Outcome]) -> list[Judged]:
        return await self._settle(self._calls.SettleLate, outcomes)

    async def extend(self, key: int, attempt: int, lease_ms: int) -> Judged:
        request = pb.ExtendRequest(key=key, attempt=attempt, lease_ms=lease_ms)
        return replies.judged_of(await self._request(self._calls.Extend, request, key))

    # Changes ------------------------------------------------------------------------------------

    async def cancel(self, key: int, reason: str = "") -> State:
        return await self._change(self._calls.Cancel, pb.CancelRequest(key=key, reason=reason))

    async def requeue(self, key: int, *, variables: Mapping[str, Any] | None = None) -> State:
        return await self._change(self._calls.Requeue, requests.requeue_message(key, variables))

    async def requeue_matching(self, filter_: JobFilter, *, all: bool = False) -> BulkChange:
        request = pb.RequeueMatchingRequest(filter=requests.filter_message(filter_), all=all)
        reply = await self._request(self._calls.RequeueMatching, request)
        return BulkChange(reply.matched, reply.changed)

    async def set_retries(self, key: int, retries: int) -> int:
        request = pb.SetRetriesRequest(key=key, retries=retries)
        return (await self._request(self._calls.SetRetries, request, key)).previous

    async def reschedule(self, key: int, *, run_at_ms: int | None = None, delay_ms: int | None = None) -> State:
        request = pb.RescheduleRequest(key=key, run_at_ms=run_at_ms, delay_ms=delay_ms or 0)
        return await self._change(self._calls.Reschedule, request)

    async def run_now(self, key: int, *, reset: bool = False) -> State:
        return await self._change(self._calls.Reschedule, pb.RescheduleRequest(key=key, reset=reset))

    async def set_priority(self, key: int, priority: int) -> State:
        return await self._change(self._calls.SetPriority, pb.SetPriorityRequest(key=key, priority=priority))

    async def delete(self, key: int) -> State:
        return await self._change(self._calls.Delete, pb.JobRequest(key=key))

    # Questions ----------------------------------------------------------------------------------

    async def get(self, key: int) -> StoredJob:
        return replies.job_of(await self._request(self._calls.Get, pb.JobRequest(key=key), key))

    async def history(self, key: int) -> list[HistoryEntry]:
        return replies.history_of(await self._request(self._calls.History, pb.JobRequest(key=key), key))

    async def explain(self, key: int) -> Explanation:
        return replies.explanation_of(await self._request(self._calls.Explain, pb.JobRequest(key=key), key))

    async def stats(self, hours: int) -> Stats:
        return replies.stats_of(await self._request(self._calls.Stats, pb.StatsRequest(hours=hours)))

    async def spooled(self, spool_id: str) -> Spooled:
        if self._transport.outbox is not None:
            return await self._transport.outbox.spooled(spool_id)
        return replies.spooled_of(await self._request(self._calls.Spooled, pb.SpooledRequest(spool_id=spool_id)))

    async def result(self, key: int, timeout: float) -> str | None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:  # Long waits are split into several calls.
            seconds = min(max(deadline - loop.time(), 0.0), RESULT_SECONDS)
            request = pb.ResultRequest(key=key, wait_ms=round(seconds * 1000))
            try:
                reply = await self._request(self._calls.Result, request, key)
            except ResultTimeout as error:
                if loop.time() < deadline:
                    continue
                raise ResultTimeout(f"{str(error).rpartition(' after ')[0]} after {timeout:g} s") from None
            return reply.result.decode() if reply.HasField("result") else None

    async def find(self, filter_: JobFilter, limit: int, cursor: int | None = None) -> Page:
        jobs: list[StoredJob] = []
        while True:  # The server shortens pages that would be too large for one message.
            instant_ms, key = cursor_parts(cursor or 0)
            filter_message = requests.filter_message(filter_)
            request = pb.ListRequest(filter=filter_message, limit=limit - len(jobs), cursor=key, cursor_ms=instant_ms)
            page = replies.page_of(await self._request(self._calls.List, request))
            jobs += page.jobs
            cursor = page.next
            if cursor is None or len(jobs) >= limit:
                return Page(jobs, cursor)

    # Inside -------------------------------------------------------------------------------------

    async def _poll(self, demand: Demand, wait_ms: int) -> Sequence[pb.Job]:
        """Make one call. If the connection breaks halfway, the jobs received so far are still leased to this client."""
        request = requests.demand_message(demand, wait_ms)
        jobs: list[pb.Job] = []
        try:
            async for reply in self._calls.Activate(request, timeout=self._left(), metadata=self._transport.metadata):
                jobs.extend(reply.jobs)
        except grpc.aio.AioRpcError as rpc_error:
            if not jobs:
                raise error_of(rpc_error) from None
        return jobs

    async def _settle(
        self, method: grpc.aio.UnaryUnaryMultiCallable[Any, pb.SettleResponse], outcomes: Sequence[Outcome]
    ) -> list[Judged]:
        request = pb.SettleRequest(outcomes=[requests.outcome_message(outcome) for outcome in outcomes])
        require_size("outcomes", request)
        reply = await self._request(method, request, outcomes[0].key if outcomes else 0)
        return [replies.judged_of(one) for one in reply.judged]

    async def _change(self, method: grpc.aio.UnaryUnaryMultiCallable[Any, pb.Found], request: Any) -> State:
        return State((await self._request(method, request, request.key)).state)

    async def _request(self, method: grpc.aio.UnaryUnaryMultiCallable[Any, T], request: Any, key: int = 0) -> T:
        try:
            return await method(request, timeout=self._left(), metadata=self._transport.metadata)
        except grpc.aio.AioRpcError as rpc_error:
            raise error_of(rpc_error, key) from None

    def _left(self) -> float:
        return max(self._deadline - asyncio.get_running_loop().time(), 0.001)


def _offline(spool: str | Spool, address: Address) -> Offline | None:
    from everwork.spool.settings import Offline  # noqa: PLC0415 - loaded only for offline mode

    return Offline.of(spool, address.store)


def require_size(field: str, message: Message) -> None:
    """Refuse a request that is too large for a server."""
    if (size := message.ByteSize()) > REQUEST_BYTES_MAX:
        problem = f"must be at most {REQUEST_BYTES_MAX:,} bytes in total, not {size:,}; split the call"
        raise InvalidInput(field, problem)
