"""What requests and responses may take: bytes are counted, fields too, and large calls give way to others."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from everwork.core.limits import MESSAGE_FIELDS_MAX
from everwork.core.states import State
from everwork.exceptions import InvalidInput, TooManyRequests
from everwork.proto import jobs_pb2
from everwork.proto import work_pb2 as pb
from everwork.server.grpc import fields, outcomes, verbs
from everwork.server.grpc.fields import LARGE_BYTES, require_few_fields
from everwork.server.grpc.intake import COUNTED_BYTES, HeldBytes
from everwork.service.access.keys import ENVIRONMENT
from everwork.service.jobs import Jobs
from everwork.service.verb import Caller
from tests.app.waiting import until
from tests.hostile import attacks_grpc as attacks
from tests.hostile.attacks_requests import DESK, read_nothing
from tests.hostile.http2 import Http2
from tests.memory import kept
from tests.server.grpc.running import KEY, SECONDS, RunningServer, refused
from tests.server.grpc.test_intake import created

# Bytes ------------------------------------------------------------------------------------------------------


def test_a_key_has_its_own_limit_and_one_without_any_bytes_may_always_hold_some() -> None:
    held = HeldBytes(250, 100)
    for caller in ("a", "b", "c"):
        held.hold(caller, 90)
    for caller, size in (("a", 11), ("b", 1)):
        with pytest.raises(TooManyRequests, match="do not read what was sent to them"):
            held.hold(caller, size)
    assert held.hold("d", 1_000) == 1_000
    for caller, size in (("a", 90), ("b", 90), ("c", 90), ("d", 1_000)):
        held.release(caller, size)
    assert (held.bytes, held._of) == (0, {})


async def test_those_who_wait_for_room_get_it_in_the_order_of_their_key() -> None:
    held, order = HeldBytes(250, 100), []

    async def reserve(caller: str, size: int) -> None:
        await held.reserve(caller, size)
        order.append((caller, size))

    await held.reserve("a", 90)
    waiting = [asyncio.ensure_future(reserve("a", size)) for size in (50, 40, 10)]
    await asyncio.wait(waiting, timeout=0)
    await reserve("b", 90)
    waiting[1].cancel()
    await asyncio.wait([waiting[1]])
    held.release("a", 90)
    await asyncio.wait_for(asyncio.gather(waiting[0], waiting[2]), SECONDS)
    assert order == [("b", 90), ("a", 50), ("a", 10)]
    assert (held.bytes, held._waiting) == (150, {})


async def test_room_that_comes_at_the_moment_of_a_cancellation_is_given_back() -> None:
    held = HeldBytes(250, 100)
    await held.reserve("a", 90)
    waiting = asyncio.ensure_future(held.reserve("a", 90))
    await asyncio.wait([waiting], timeout=0)
    held.release("a", 90)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert (held.bytes, held._waiting) == (0, {})


# Fields -----------------------------------------------------------------------------------------------------


def of_fields(count: int) -> list[tuple[Any, bytes]]:
    """Messages with this many fields, small ones, at several depths."""
    outcome = pb.Outcome(complete=pb.Complete(events=[pb.NewJob()] * (count - 2)))
    return [
        (pb.CreateJobsRequest, b"\x0a\x00" * count),
        (pb.SettleRequest, pb.SettleRequest(outcomes=[outcome]).SerializeToString()),
        (pb.FromWorker, pb.FromWorker(hello=pb.Hello(resumed=[pb.Lease()] * (count - 1))).SerializeToString()),
        (pb.ActivateRequest, pb.ActivateRequest(tenants=[""] * count).SerializeToString()),
        (pb.JobRequest, b"\x08\x01" * count),
        (pb.JobRequest, b"\x98\x80\x80\x80\x00\x81\x01" * count),
        (pb.JobRequest, (b"\x09" + bytes(8)) * (count - 1) + b"\x0d" + bytes(4)),
        (jobs_pb2.CreateJobRequest, b"\x1a\x00" * (count // 2) + b"\x0a\x00" * (count % 2)),  # Map entries count twice.
    ]


async def passes() -> None:
    """Nobody else is there."""


async def test_messages_with_more_fields_than_any_valid_one_has_are_refused_before_they_are_parsed() -> None:
    for kind, raw in of_fields(MESSAGE_FIELDS_MAX + 1):
        with pytest.raises(InvalidInput, match=f"at most {MESSAGE_FIELDS_MAX:,} fields"):
            await require_few_fields(kind.DESCRIPTOR, raw, passes)
    for kind, raw in of_fields(MESSAGE_FIELDS_MAX):
        await require_few_fields(kind.DESCRIPTOR, raw, passes)


async def test_the_count_gives_way_and_leaves_malformed_messages_to_the_parser() -> None:
    ways: list[int] = []

    async def give_way() -> None:
        ways.append(1)

    raw = b"\x0a\x00" * LARGE_BYTES
    await require_few_fields(pb.CreateJobsRequest.DESCRIPTOR, raw, give_way)
    assert len(ways) == LARGE_BYTES // fields.STEP
    for end in (b"\x0a", b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x0f", b"\x09", b"\x0b"):
        await require_few_fields(pb.CreateJobsRequest.DESCRIPTOR, raw + end, passes)


# Calls ------------------------------------------------------------------------------------------------------


async def test_a_call_stays_open_and_its_response_is_counted_until_it_is_read(sqlite_server: RunningServer) -> None:
    gateway = sqlite_server.grpc_server.gateway
    key = int(await sqlite_server.create(variables_json='{"text": "%s"}' % ("x" * 10_000)))
    message = attacks.grpc_message(pb.JobRequest(key=key).SerializeToString())
    one = await asyncio.to_thread(Http2, sqlite_server.port)
    await asyncio.to_thread(read_nothing, one)
    one.push(one.open(f"{DESK}/Get", attacks.with_key(KEY)), message, end=True)
    await until(lambda: gateway.undelivered.bytes > 10_000)
    assert (gateway.calls.count, gateway.receiving.requests.bytes) == (1, 0)
    one.close()
    await until(lambda: not gateway.calls.count and not gateway.undelivered.bytes)


async def test_a_read_is_refused_while_too_much_is_unread_and_a_change_is_not(sqlite_server: RunningServer) -> None:
    gateway = sqlite_server.grpc_server.gateway
    key = int(await sqlite_server.create(variables_json='{"text": "%s"}' % ("x" * COUNTED_BYTES)))
    gateway.undelivered = HeldBytes(1_000, 1_000)
    gateway.undelivered.add("environment", 1_000)
    call: Any = sqlite_server.channel.unary_unary(f"{DESK}/Get", None, None)
    request = pb.JobRequest(key=key).SerializeToString()
    code, details = await refused(call(request, metadata=sqlite_server.metadata, timeout=SECONDS))
    assert (code, "do not read what was sent" in details) == (StatusCode.RESOURCE_EXHAUSTED, True)
    create: Any = sqlite_server.channel.unary_unary(attacks.CREATE, None, None)
    jobs = pb.CreateJobsRequest(jobs=[pb.NewJob(type="a")] * COUNTED_BYTES).SerializeToString()
    answer = await create(jobs, metadata=sqlite_server.metadata, timeout=SECONDS)
    assert len(pb.CreateJobsResponse.FromString(answer).jobs) == COUNTED_BYTES
    await until(lambda: gateway.undelivered.bytes == 1_000)


async def test_a_request_waits_for_room_and_is_refused_if_it_waits_too_long(
    sqlite_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everwork.server.grpc.intake.CHECK_SECONDS", 0.05)
    gateway = sqlite_server.grpc_server.gateway
    gateway.receiving.requests = HeldBytes(1_000, 1_000)
    gateway.receiving.requests.add("environment", 1_000)
    call: Any = sqlite_server.channel.unary_unary(attacks.CREATE, None, None)
    request = pb.CreateJobsRequest(jobs=[pb.NewJob(type="a")] * COUNTED_BYTES).SerializeToString()
    waiting = asyncio.ensure_future(call(request, metadata=sqlite_server.metadata, timeout=SECONDS))
    await until(lambda: gateway.receiving.requests._waiting)
    await created(sqlite_server, KEY)  # Small requests need no room.
    gateway.receiving.requests.release("environment", 1_000)
    await waiting
    gateway.receiving.requests.add("environment", 1_000)
    gateway.receiving.seconds = 0.0
    code, _ = await refused(call(request, metadata=sqlite_server.metadata, timeout=SECONDS))
    assert (code, gateway.receiving.requests.bytes) == (StatusCode.RESOURCE_EXHAUSTED, 1_000)


@pytest.mark.parametrize("status", [StatusCode.OK, StatusCode.INVALID_ARGUMENT])
async def test_an_ended_call_leaves_nothing_in_memory(sqlite_server: RunningServer, status: StatusCode) -> None:
    outcome = pb.Outcome(key=1, complete=pb.Complete() if status is StatusCode.OK else None)
    raw = pb.SettleRequest(outcomes=[outcome]).SerializeToString()
    call: Any = sqlite_server.channel.unary_unary(f"{DESK}/Settle", None, None)
    await asyncio.to_thread(gc.collect)
    before = {id(one) for one in _of_calls()}
    gc.disable()
    try:
        for _ in range(5):
            assert await call(raw, metadata=sqlite_server.metadata, timeout=SECONDS).code() is status
        await until(lambda: not [one for one in _of_calls() if id(one) not in before])
    finally:
        gc.enable()


@pytest.mark.parametrize("others", [0, 1])
async def test_outcomes_without_an_attempt_are_counted(sqlite_server: RunningServer, others: int) -> None:
    outcomes = [pb.Outcome(key=1, attempt=1, complete=pb.Complete())] * others
    outcomes.append(pb.Outcome(key=1, complete=pb.Complete()))
    call: Any = sqlite_server.channel.unary_unary(f"{DESK}/Settle", None, None)
    raw = pb.SettleRequest(outcomes=outcomes).SerializeToString()
    await call(raw, metadata=sqlite_server.metadata, timeout=SECONDS)
    assert b'everwork_unfenced_outcomes_total{door="desk"} 1.0' in sqlite_server.metrics.text()


def _of_calls() -> list[object]:
    """What gRPC keeps of a call: its context, and the error that ended it, whose frames hold the request."""
    errors = [*kept(grpc.aio.AbortError), *kept(InvalidInput)]
    contexts = [one for one in kept(object) if type(one).__name__ == "_ServicerContext"]
    return [*contexts, *(error for error in errors if error.__traceback__ is not None)]


async def test_many_outcomes_are_settled_in_steps_while_other_keys_are_active(
    sqlite_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verbs, "SETTLE_FAIR", 2)
    keys = [int(await sqlite_server.create()) for _ in range(5)]
    await sqlite_server.activate(max_jobs_to_activate=5)
    other = await sqlite_server.keys.create("other", ["*"])
    await created(sqlite_server, other.text)
    request = pb.SettleRequest(outcomes=[pb.Outcome(key=key, attempt=1, complete=pb.Complete()) for key in keys])
    call: Any = sqlite_server.channel.unary_unary(f"{DESK}/Settle", None, None)
    raw = await call(request.SerializeToString(), metadata=sqlite_server.metadata, timeout=SECONDS)
    assert [one.verdict for one in pb.SettleResponse.FromString(raw).judged] == [pb.ACCEPTED] * 5
    assert [(await sqlite_server.job(str(key))).state for key in keys] == [State.COMPLETED] * 5


async def test_the_events_of_small_outcomes_count_towards_the_size_of_their_batch(
    sqlite_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "BATCH_BYTES_MAX", 3 * outcomes.EVENT_BYTES)
    service = sqlite_server.service
    jobs, slices = Jobs(service, Caller(ENVIRONMENT, lambda: "here")), service.budgets.slices(ENVIRONMENT)
    small = pb.Outcome(key=1, attempt=1, complete=pb.Complete(events=[pb.NewJob(type="a")] * 2))
    assert small.ByteSize() <= outcomes.SMALL_BYTES
    batch, count = await outcomes._checked(jobs, [small] * 5, 1, slices)
    assert (count, len(batch.outcomes)) == (2, 2)
