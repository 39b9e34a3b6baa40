"""Long polls: when they answer, when they end, and that nothing is stranded by a caller who has gone."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import grpc.aio
import pytest
from grpc import StatusCode

from everwork.codec.proto_replies import MESSAGE_BYTES_MAX
from everwork.core.leasing import Demand
from everwork.core.limits import KEY_MAX
from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.exceptions import CallTimeout
from everwork.proto import jobs_pb2
from everwork.server.grpc.delivery import LATE_SECONDS, deliver
from everwork.server.grpc.jobs_api import JobsApi
from everwork.service.jobs import Jobs
from everwork.service.verb import IN_PROCESS
from tests.app.waiting import SOON_S, until
from tests.server.grpc.conftest import OpenServer
from tests.server.grpc.running import SECONDS, TYPE, RunningServer


def polled(server: RunningServer, timeout_s: float = SECONDS, **fields: Any) -> Any:
    """A poll that has begun."""
    request = jobs_pb2.ActivateJobsRequest(**{"type": TYPE, "worker": "w1", **fields})
    return server.jobs.ActivateJobs(request, metadata=server.metadata, timeout=timeout_s)


async def answered(call: Any) -> list[Any]:
    return [message async for message in call]


@pytest.mark.every_engine
async def test_a_waiting_poll_answers_as_soon_as_there_is_a_job(server: RunningServer) -> None:
    waiting = asyncio.ensure_future(server.activate())
    await until(lambda: server.service.waiting(TYPE))
    key = await server.create()
    assert [job.job_key for job in await waiting] == [key]


async def test_a_poll_without_jobs_ends_well_and_without_a_message(sqlite_server: RunningServer) -> None:
    call = polled(sqlite_server)
    assert await answered(call) == []
    assert await call.code() is StatusCode.OK


async def test_a_deadline_as_long_as_the_poll_is_the_polls_own_end(open_server: OpenServer) -> None:
    server = await open_server(long_poll_seconds=1)
    call = polled(server, timeout_s=1.0)
    assert await answered(call) == []
    assert await call.code() is StatusCode.OK


async def test_a_paused_type_is_named_also_when_the_deadline_ends_the_poll(open_server: OpenServer) -> None:
    server = await open_server(long_poll_seconds=300)
    await server.create()
    await server.service._engine.pause(TYPE, True)
    call = polled(server, timeout_s=0.5)
    message = await call.read()
    assert (message.success, message.error_message) == (False, f"type '{TYPE}' is paused until it is resumed")
    assert await call.code() is StatusCode.DEADLINE_EXCEEDED


async def test_a_poll_takes_no_more_than_it_asks_for(server: RunningServer) -> None:
    for _ in range(12):
        await server.create()
    assert len(await server.activate(max_jobs_to_activate=5)) == 5
    assert len(await server.activate(max_jobs_to_activate=100)) == 7


async def test_ten_jobs_are_the_default(sqlite_server: RunningServer) -> None:
    for _ in range(12):
        await sqlite_server.create()
    assert len(await sqlite_server.activate()) == 10


async def test_no_message_is_over_3_mib(sqlite_server: RunningServer) -> None:
    keys = [await sqlite_server.create(variables={"a": "x" * 1_000_000}) for _ in range(7)]
    messages = await sqlite_server.poll()
    assert [job.job_key for message in messages for job in message.jobs] == keys
    assert all(message.success and message.ByteSize() <= MESSAGE_BYTES_MAX for message in messages)
    assert len(messages) == 3


async def test_a_group_and_tenants_are_asked_for_by_name(server: RunningServer) -> None:
    await server.service._engine.add_group(TYPE, "audit")
    key = await server.create(tenant_id="acme")
    assert await server.activate(tenant_ids="umbrella, other") == []
    [copy] = await server.activate(group="audit", tenant_ids=" acme ,umbrella")
    [job] = await server.activate(tenant_ids="acme")
    assert (job.job_key, (await server.job(copy.job_key)).copy_of) == (key, int(key))


async def test_an_open_breaker_is_named_with_the_time_it_ends(server: RunningServer) -> None:
    await server.create()
    await server.service._engine.open_breaker(TYPE, 3_600_000)
    [message] = await server.poll()
    info = next(info for info in await server.service._engine.types() if info.type == TYPE)
    until_ms = info.breaker_open_until_ms or 0
    assert not message.success
    assert message.error_message.startswith(f"type '{TYPE}' is stopped by its circuit breaker")
    assert time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(until_ms / 1000)) in message.error_message


async def test_a_type_that_is_resumed_in_time_answers_the_poll(open_server: OpenServer) -> None:
    server = await open_server(long_poll_seconds=30)
    key = await server.create()
    await server.service._engine.pause(TYPE, True)
    waiting = asyncio.ensure_future(server.activate())
    await until(lambda: server.service.waiting(TYPE))
    await server.service._engine.pause(TYPE, False)
    assert [job.job_key for job in await waiting] == [key]


async def test_more_pollers_than_allowed_are_sent_away_with_a_hint(open_server: OpenServer) -> None:
    server = await open_server(long_poll_seconds=30, pollers_per_type=2)
    calls = [polled(server) for _ in range(2)]
    await until(lambda: server.service.waiting(TYPE) == 2)
    call = polled(server)
    assert await call.code() is StatusCode.RESOURCE_EXHAUSTED
    assert "retry-after-ms" in [name for name, _ in await call.trailing_metadata()]
    assert await polled(server, type="another", timeout_s=0.2).code() is StatusCode.DEADLINE_EXCEEDED
    for open_call in calls:
        open_call.cancel()


async def test_a_stopping_server_ends_its_polls_at_once_without_a_message(open_server: OpenServer) -> None:
    server = await open_server(long_poll_seconds=300)
    await server.create(job_type="paused")
    await server.service._engine.pause("paused", True)
    calls = [polled(server), polled(server, type="paused")]
    await until(lambda: server.service.waiting(TYPE) and server.service.waiting("paused"))
    await asyncio.wait_for(server.grpc_server.stop(SECONDS), SOON_S)
    assert [await answered(call) for call in calls] == [[], []]
    assert [await call.code() for call in calls] == [StatusCode.OK, StatusCode.OK]


async def test_a_stopping_server_finishes_what_is_in_flight(open_server: OpenServer) -> None:
    server = await open_server()
    keys = [await server.create() for _ in range(20)]
    jobs = await server.activate(max_jobs_to_activate=100)
    calls = [asyncio.ensure_future(server.call("CompleteJob", job_key=job.job_key)) for job in jobs]
    await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    await server.grpc_server.stop(SECONDS)
    for call in calls:
        if await fate(call):
            assert (await server.job(keys[calls.index(call)])).state is State.COMPLETED


async def fate(call: asyncio.Future[Any]) -> bool:
    """Whether a call was answered; one that came too late was not taken on at all."""
    with suppress(grpc.aio.AioRpcError):
        return bool((await call).success)
    return False


@pytest.mark.every_engine
async def test_a_caller_who_goes_away_strands_nothing(server: RunningServer) -> None:
    call = polled(server)
    await until(lambda: server.service.waiting(TYPE))
    call.cancel()
    await until(lambda: not server.service.waiting(TYPE))
    key = await server.create()
    assert [job.job_key for job in await server.activate()] == [key]


async def test_a_reader_who_reads_nothing_gets_no_more_than_the_connection_holds(sqlite_server: RunningServer) -> None:
    """What does not fit into the connection's window is not written, and comes back when the caller goes."""
    server = sqlite_server
    for _ in range(30):
        await server.create(variables={"a": "x" * 1_000_000})
    call = polled(server, max_jobs_to_activate=30, timeout=3_600_000)
    await call.read()
    await until(lambda: leased(server))
    call.cancel()

    async def some_came_back() -> bool:
        return len(await leased(server)) < 30

    await until(some_came_back)


async def leased(server: RunningServer) -> dict[int, int]:
    """The jobs that somebody holds, and the attempts."""
    wanted = JobFilter(states=frozenset([State.PROCESSING]))
    found: dict[int, int] = {}
    cursor: int | None = KEY_MAX
    while cursor is not None:
        page = await server.service.find(wanted, 1_000, cursor)
        found |= {job.key: job.attempt for job in page.jobs}
        cursor = page.next
    return found


class Late:
    """A call whose deadline has passed before its turn came."""

    def time_remaining(self) -> float:
        return 0.0


async def test_a_deadline_that_has_passed_leases_nothing(sqlite_server: RunningServer) -> None:
    key = await sqlite_server.create()
    api = JobsApi(sqlite_server.grpc_server.gateway, 30)
    context: Any = Late()
    with pytest.raises(CallTimeout):
        await api.activate(
            Jobs(sqlite_server.service, IN_PROCESS), jobs_pb2.ActivateJobsRequest(type=TYPE, worker="w"), context
        )
    [job] = await sqlite_server.activate()
    assert (job.job_key, job.attempt) == (key, 1)


class AlmostLate:
    """A connection whose caller's deadline is about to pass."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def time_remaining(self) -> float:
        return LATE_SECONDS / 2

    async def write(self, message: bytes) -> None:
        self.written.append(message)


async def test_jobs_that_could_not_be_read_before_the_deadline_are_released_unwritten(
    sqlite_server: RunningServer,
) -> None:
    key = await sqlite_server.create()
    leased = await sqlite_server.service.activate(Demand(TYPE, "w1", 1))
    context: Any = AlmostLate()
    with pytest.raises(CallTimeout):
        await deliver(sqlite_server.grpc_server.gateway, context, leased, [(b"jobs", 1)], caller="")

    async def is_back() -> bool:
        job = await sqlite_server.job(key)
        return (job.state, job.attempts) == (State.PENDING, 0)

    await until(is_back)
    assert context.written == []
