"""Limits on what callers may occupy: requests being received, open calls, worker streams, calls without a key."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Any, Final

import pytest
from grpc import StatusCode
from grpc_health.v1 import health_pb2

from everwork.core.limits import (
    GUEST_BYTES_MAX,
    MESSAGE_FIELDS_MAX,
    RECEIVING_EACH_MAX,
    RECEIVING_MAX,
    WATCHES_EACH_MAX,
)
from everwork.exceptions import InvalidInput
from everwork.proto import jobs_pb2, work_pb2
from everwork.server.grpc import intake
from everwork.server.grpc import server as grpc_server
from everwork.server.grpc.intake import HeldBytes, OpenCalls, Receiving
from everwork.server.grpc.port_check import PortCheck
from everwork.service.access.budgets import READS_MAX
from everwork.service.access.keys import ENVIRONMENT, RateLimiter
from everwork.service.access.principal import Permission, Principal
from everwork.service.access.turns import RUNNING_FIRST
from tests.app.waiting import until
from tests.hostile import attacks_grpc as attacks
from tests.hostile.attacks_requests import DESK, unread
from tests.memory import kept
from tests.server.grpc.conftest import OpenServer
from tests.server.grpc.running import KEY, SECONDS, RunningServer, refused

LIST: Final = f"{DESK}/List"
UNKNOWN: Final = b"\x7a\x90\x4e" + b"x" * 10_000 + b"\x7a\x90\x4e" + b"x" * 10_000 + b"\x7a\x90\x4e" + b"x" * 10_000
"""Fields that nobody knows, of 30,000 bytes."""
OTHER: Final = Principal("other", "other", frozenset([Permission.ALL]))


async def test_a_key_whose_requests_do_not_arrive_keeps_no_other_key_waiting(sqlite_server: RunningServer) -> None:
    keys = [await a_key(sqlite_server) for _ in range(3)]
    async with unfinished(sqlite_server, keys[0]), unfinished(sqlite_server, keys[1]):
        assert sqlite_server.grpc_server.gateway.receiving.count == 2 * RECEIVING_EACH_MAX == RECEIVING_MAX // 2
        await asyncio.gather(*(created(sqlite_server, keys[2]) for _ in range(20)))


async def test_further_requests_of_the_same_key_wait_for_their_turn(sqlite_server: RunningServer) -> None:
    async with unfinished(sqlite_server, KEY):
        waiting = asyncio.ensure_future(created(sqlite_server, KEY))
        await until(lambda: sqlite_server.grpc_server.gateway.receiving.waiting == 1)
    await waiting


async def test_a_request_that_does_not_arrive_in_time_ends_its_call(sqlite_server: RunningServer) -> None:
    gateway = sqlite_server.grpc_server.gateway
    gateway.receiving = Receiving(gateway.notices, seconds=0.01)
    async with unfinished(sqlite_server, KEY, 1) as attack:
        await until(lambda: attack.look().streams == 0)
    assert gateway.receiving.count == 0


async def test_a_request_that_never_gets_its_turn_is_refused(
    sqlite_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "CHECK_SECONDS", 0.05)
    gateway = sqlite_server.grpc_server.gateway
    gateway.receiving = receiving = Receiving(gateway.notices, each=1)
    async with unfinished(sqlite_server, KEY, 1):
        call = asyncio.ensure_future(refused(created(sqlite_server, KEY)))
        await until(lambda: receiving.waiting == 1)
        receiving.seconds = 0.0
        code, details = await call
    assert (code, details) == (StatusCode.RESOURCE_EXHAUSTED, intake.WAITED)


async def test_a_caller_that_leaves_while_it_waits_takes_no_place(sqlite_server: RunningServer) -> None:
    receiving = sqlite_server.grpc_server.gateway.receiving
    async with unfinished(sqlite_server, KEY):
        call = asyncio.ensure_future(created(sqlite_server, KEY))
        await until(lambda: receiving.waiting == 1)
        call.cancel()
        await asyncio.wait([call])
    await until(lambda: receiving.count == 0)
    await created(sqlite_server, KEY)
    assert receiving.waiting == 0


async def test_no_place_is_lost_however_callers_leave(sqlite_server: RunningServer) -> None:
    gateway = sqlite_server.grpc_server.gateway
    gateway.receiving = receiving = Receiving(gateway.notices, total=4, each=2)
    keys = [await a_key(sqlite_server) for _ in range(3)]
    calls = [asyncio.ensure_future(created(sqlite_server, keys[number % 3])) for number in range(90)]
    for number, call in enumerate(calls):
        if number % 2:
            await asyncio.sleep(0)
            call.cancel()
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(one, bytes) for one in done) >= 45
    await until(lambda: not receiving.count and not receiving.waiting and not gateway.calls.count)


async def test_a_key_whose_requests_in_progress_are_large_sends_no_more_large_ones(
    sqlite_server: RunningServer,
) -> None:
    gateway = sqlite_server.grpc_server.gateway
    gateway.receiving.requests = requests = HeldBytes(1_000_000, 100_000)
    poll = work_pb2.ActivateRequest(type="nothing", worker="w", limit=1, wait_ms=400)
    polls: Any = sqlite_server.channel.unary_stream("/everwork.v1.DeskService/Activate", None, None)

    def large(key: str) -> Any:
        return polls(poll.SerializeToString() + UNKNOWN, metadata=(("x-api-key", key),), timeout=SECONDS)

    first = large(KEY)
    await until(lambda: requests.bytes > 30_000)
    one = requests.bytes
    second = large(KEY)
    await until(lambda: requests._waiting)
    await created(sqlite_server, KEY)
    other = large(await a_key(sqlite_server))
    await until(lambda: requests.bytes == 2 * one)
    assert requests._waiting
    first.cancel()
    await until(lambda: not requests._waiting)
    second.cancel()
    other.cancel()
    await until(lambda: requests.bytes == 0)


async def test_outcomes_count_until_they_are_settled_and_above_the_limit_no_more_are_read(
    sqlite_server: RunningServer,
) -> None:
    gateway, other = sqlite_server.grpc_server.gateway, await a_key(sqlite_server)
    gateway.receiving.requests = held = HeldBytes(1_000_000, 100_000)
    outcome = work_pb2.Outcome(key=1, attempt=1, complete=work_pb2.Complete(result=b"1" * 20_000))
    message = work_pb2.FromWorker(outcomes=[outcome]).SerializeToString()
    stream, requests = work_stream(sqlite_server, KEY), sqlite_server.service.budgets.requests
    await stream.write(work_pb2.FromWorker(hello=work_pb2.Hello(worker="w1")).SerializeToString())
    async with AsyncExitStack() as stack:
        for principal in (OTHER, *[ENVIRONMENT] * RUNNING_FIRST):  # Settling has to wait for its turn.
            await stack.enter_async_context(requests.of(principal))
        await stream.write(message)
        await stream.write(message)
        await until(lambda: held.bytes > 60_000 and held._waiting)
        for _ in range(5):
            await created(sqlite_server, other)
        assert held.bytes < 100_000
    await until(lambda: held.bytes == 0)
    stream.cancel()


async def test_responses_count_until_they_are_read_and_those_of_queries_are_refused_above_the_limit(
    open_server: OpenServer,
) -> None:
    server = await open_server(max_bytes_in_flight_per_key=2**20)
    undelivered = server.grpc_server.gateway.undelivered
    await server.call("CreateJob", job_type="large", variables_json=json.dumps({"text": "x" * 600_000}))
    page = work_pb2.ListRequest(limit=1, filter=work_pb2.JobFilter(type="large")).SerializeToString()
    with ExitStack() as stack:
        attack = unread(server.port, KEY, LIST, page, 3)
        opened = await asyncio.to_thread(stack.enter_context, attack)
        await until(lambda: opened.look().streams == 1)
        assert 600_000 < undelivered.bytes < 2**20
        await created(server, KEY)
    await until(lambda: undelivered.bytes == 0 and not server.grpc_server.gateway.calls.count)
    call: Any = server.channel.unary_unary(LIST, None, None)
    assert len(await call(page, metadata=server.metadata, timeout=SECONDS)) > 600_000


async def test_the_error_of_a_refused_call_keeps_no_request(sqlite_server: RunningServer) -> None:
    call: Any = sqlite_server.channel.unary_unary(attacks.CREATE, None, None)
    nameless = work_pb2.CreateJobsRequest(jobs=[work_pb2.NewJob()]).SerializeToString()
    gc.collect()
    before = {id(one) for one in kept(InvalidInput)}  # Of other tests.
    gc.disable()
    try:
        await refused(call(nameless + UNKNOWN, metadata=sqlite_server.metadata, timeout=SECONDS))
        errors = [one for one in kept(InvalidInput) if id(one) not in before]
    finally:
        gc.enable()
    assert [one for one in errors if one.__traceback__ is not None] == []


async def test_two_lists_of_a_key_are_built_at_a_time(sqlite_server: RunningServer) -> None:
    lists = sqlite_server.service.budgets.lists
    call: Any = sqlite_server.channel.unary_unary(LIST, None, None)
    async with lists.of(ENVIRONMENT), lists.of(ENVIRONMENT):
        third = asyncio.ensure_future(call(b"", metadata=sqlite_server.metadata, timeout=SECONDS))
        fourth = asyncio.ensure_future(sqlite_server.call("ListJobs"))
        await until(lambda: lists.held(ENVIRONMENT) == 4)
        assert lists.running(ENVIRONMENT) == 2
    await asyncio.gather(third, fourth)


async def test_few_jobs_of_a_key_are_read_at_a_time(sqlite_server: RunningServer) -> None:
    reads = sqlite_server.service.budgets.reads
    key = await sqlite_server.create()
    request = work_pb2.JobRequest(key=int(key)).SerializeToString()
    async with AsyncExitStack() as stack:
        for _ in range(READS_MAX):
            await stack.enter_async_context(reads.of(ENVIRONMENT))
        calls = [asyncio.ensure_future(sqlite_server.call("GetJob", job_key=key))]
        for name in ("Get", "History", "Explain"):
            call: Any = sqlite_server.channel.unary_unary(f"{DESK}/{name}", None, None)
            calls.append(asyncio.ensure_future(call(request, metadata=sqlite_server.metadata, timeout=SECONDS)))
        await until(lambda: reads.held(ENVIRONMENT) == READS_MAX + len(calls))
        assert reads.running(ENVIRONMENT) == READS_MAX
    await asyncio.gather(*calls)


async def test_a_request_without_a_key_is_small(sqlite_server: RunningServer) -> None:
    request = health_pb2.HealthCheckRequest(service="x" * GUEST_BYTES_MAX).SerializeToString()
    check: Any = sqlite_server.channel.unary_unary(attacks.CHECK, None, None)
    watch: Any = sqlite_server.channel.unary_stream(attacks.WATCH, None, None)
    for call in (check(request, timeout=SECONDS), watch(request, timeout=SECONDS).read()):
        code, details = await refused(call)
        assert (code, "request: must have at most 4,096 bytes" in details) == (StatusCode.INVALID_ARGUMENT, True)


async def test_a_call_without_a_request_is_invalid(sqlite_server: RunningServer) -> None:
    call: Any = sqlite_server.channel.stream_unary(attacks.CREATE, None, None)
    code, details = await refused(call(iter(()), metadata=sqlite_server.metadata, timeout=SECONDS))
    assert code is StatusCode.INVALID_ARGUMENT
    assert "request: must be a protobuf message of type everwork.v1.CreateJobsRequest" in details


async def test_a_full_server_refuses_the_key_that_has_most_calls_open(sqlite_server: RunningServer) -> None:
    gateway = sqlite_server.grpc_server.gateway
    gateway.calls = OpenCalls(4, gateway.notices)
    greedy, modest = await a_key(sqlite_server), await a_key(sqlite_server)
    streams = [work_stream(sqlite_server, greedy) for _ in range(4)]
    await until(lambda: gateway.calls.count == 4)
    code, details = await refused(created(sqlite_server, greedy))
    assert code is StatusCode.RESOURCE_EXHAUSTED
    assert "limit of open calls, 4 of them from this API key" in details
    await created(sqlite_server, modest)
    for stream in streams:
        stream.cancel()
    await until(lambda: gateway.calls.count == 0)


async def test_worker_streams_above_the_limit_are_refused(open_server: OpenServer) -> None:
    server = await open_server(max_streams=10)
    streams = [work_stream(server, KEY) for _ in range(10)]
    await until(lambda: server.grpc_server.gateway.calls.count == 10)
    code, details = await refused(work_stream(server, KEY).read())
    assert code is StatusCode.RESOURCE_EXHAUSTED
    assert "limit of worker streams, 10 of them from this API key" in details
    for stream in streams:
        stream.cancel()


async def test_worker_streams_of_one_key_are_limited(open_server: OpenServer) -> None:
    server = await open_server(streams_per_key=2)
    other = await a_key(server)
    streams = [work_stream(server, KEY) for _ in range(2)]
    await until(lambda: server.grpc_server.gateway.calls.count == 2)
    code, details = await refused(work_stream(server, KEY).read())
    assert code is StatusCode.RESOURCE_EXHAUSTED
    assert details == "2 worker streams of this API key are open (setting streams_per_key); retry later"
    streams.append(work_stream(server, other))
    await until(lambda: server.grpc_server.gateway.calls.count == 3)
    for stream in streams:
        stream.cancel()


async def test_messages_of_a_stream_count_against_the_rate_limit_of_its_key(sqlite_server: RunningServer) -> None:
    server = sqlite_server
    server.keys._limiter = limiter = RateLimiter(3, clock=lambda: 0.0)
    stream = work_stream(server, KEY)
    await stream.write(work_pb2.FromWorker(hello=work_pb2.Hello(worker="w1")).SerializeToString())
    await stream.write(work_pb2.FromWorker(draining=True).SerializeToString())
    await until(lambda: limiter._full_at.get(ENVIRONMENT.id, 0.0) > 0.99)  # The call and its two messages.
    code, details = await refused(created(server, KEY))
    assert code is StatusCode.RESOURCE_EXHAUSTED
    assert "rate limit exceeded" in details
    stream.cancel()


async def test_watches_of_one_address_are_limited(sqlite_server: RunningServer) -> None:
    watch: Any = sqlite_server.channel.unary_stream(attacks.WATCH, None, None)
    watches = [watch(b"") for _ in range(WATCHES_EACH_MAX)]
    for one in watches:
        await one.read()
    code, details = await refused(watch(b"", timeout=SECONDS).read())
    assert code is StatusCode.RESOURCE_EXHAUSTED
    assert "too many calls without an API key are open" in details
    for one in watches:
        one.cancel()


async def test_a_running_server_logs_that_its_port_refuses_connections(
    open_server: OpenServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(grpc_server, "EVERY_SECONDS", 0.05)
    server = await open_server(max_connections=10)
    with ExitStack() as stack:
        await asyncio.to_thread(stack.enter_context, attacks.idle_http2(server.port, 20))
        await until(lambda: "gRPC connections are refused" in caplog.text)


async def test_a_port_that_refuses_connections_is_noticed(open_server: OpenServer) -> None:
    server = await open_server(max_connections=10)
    check = PortCheck("127.0.0.1", server.port, server.grpc_server.gateway.notices, has_tls=False)
    assert await check.problem() is None
    with ExitStack() as stack:

        async def is_noticed() -> bool:
            # The check's last connection may still occupy a place when these are refused, and then free it.
            await asyncio.to_thread(stack.enter_context, attacks.idle_http2(server.port, 20))
            return await check.problem() == "the limit max_connections is reached"

        await until(is_noticed)


# Fields ---------------------------------------------------------------------------------------------------


async def test_a_request_with_very_many_fields_is_refused_before_it_is_parsed(sqlite_server: RunningServer) -> None:
    request = jobs_pb2.CreateJobRequest(job_type="a", variables={f"k{n}": "" for n in range(MESSAGE_FIELDS_MAX // 2)})
    code, details = await refused(sqlite_server.call("CreateJob", request))
    assert code is StatusCode.INVALID_ARGUMENT
    assert details == "request: must have at most 100,000 fields"


# Callers --------------------------------------------------------------------------------------------------


async def a_key(server: RunningServer) -> str:
    """The text of a new key."""
    return (await server.keys.create("worker", ["*"])).text


async def created(server: RunningServer, key: str) -> bytes:
    """The response to a legitimate call."""
    call: Any = server.channel.unary_unary(attacks.CREATE, None, None)
    request = work_pb2.CreateJobsRequest(jobs=[work_pb2.NewJob(type="honest")])
    answer: bytes = await call(request.SerializeToString(), metadata=(("x-api-key", key),), timeout=SECONDS)
    return answer


def work_stream(server: RunningServer, key: str) -> Any:
    """A worker's stream."""
    call: Any = server.channel.stream_stream(attacks.WORK, None, None)
    return call(metadata=(("x-api-key", key),), timeout=SECONDS)


@asynccontextmanager
async def unfinished(
    server: RunningServer, key: str, streams: int = RECEIVING_EACH_MAX
) -> AsyncIterator[attacks.Attack]:
    """Requests of a key that are being received and never end."""
    receiving = server.grpc_server.gateway.receiving
    before = receiving.count
    with ExitStack() as stack:
        opened = attacks.unfinished_messages(server.port, key, streams, 20_000)
        attack = await asyncio.to_thread(stack.enter_context, opened)
        await until(lambda: receiving.count == before + streams or not attack.look().streams)
        yield attack
