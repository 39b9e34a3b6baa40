"""Thousands of hostile calls: no UNKNOWN, no INTERNAL, the server lives, and no lease leaks."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2

from everwork.client.errors import WRITE_FAILED
from everwork.core.limits import KEY_MAX
from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.proto import gateway_pb2, jobs_pb2, work_pb2
from tests.app.waiting import until
from tests.server.grpc.running import KEY, SECONDS, TYPE, RunningServer, running_server
from tests.stores import ENGINES, url_of

CASES: Final = 6_000 // len(ENGINES)
"""On each engine."""
AT_ONCE: Final = 50
JOBS: Final = 300
SEED: Final = 20
FORBIDDEN: Final = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
ENDLESS: Final = ("StreamActivatedJobs", "Watch", "Work", "Result")
"""Calls that last as long as the caller wants."""
EXTENDING: Final = ("UpdateJobTimeout", "Extend")
"""Calls that make a lease the caller's own: its worker may go on elsewhere, so the server leaves it alone."""
NO_JOBS: Final = "a type without jobs"

TEXTS: Final = (
    "",
    " ",
    "\0",
    "a\nb",
    "'; DROP TABLE job; --",
    "../../etc/passwd",
    "%s%n{0}$1",
    "ключ-🔑",
    "\u202e\ufeff",
    "x" * 255,
    "x" * 256,
    "y" * 70_000,
    "{}",
    "{",
    '{"a": 1e999}',
    '{"a":' * 80 + "1" + "}" * 80,
    '{"a":' + "[" * 1_010 + "1234567890123456789" + "]" * 1_010 + "}",
    "[" * 1_020 + "]" * 1_020,
    '{"n": 99999999999999999999999}',
    '{"\\u0000": "\\u0000"}',
    '{"s": "\\ud800"}',
    "[1, 2]",
    "null",
    "NaN",
    "0",
    "-1",
    "1",
    "9223372036854775807",
    "9223372036854775808",
    "1e3",
    "١٢٣",
    "2030-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999+14:00",
    "0001-01-01T00:00:00-23:59",
    "created_at",
    "deadline",
    "ACTIVATABLE",
    "failed",
    "24h",
    "<default>",
    "acme,,umbrella, ",
    TYPE,
    "w1",
)
NUMBERS: Final = (0, 1, 2, 3, 10, 99, 100, 101, 1_000, 1_001, 9_990, 10_000, 86_400_000, -1, -2)
EDGES: Final = {32: (2**31 - 1, -(2**31)), 64: (2**63 - 1, -(2**63))}


class Target(NamedTuple):
    """A call that may be made."""

    path: str
    method: MethodDescriptor


class Seen(NamedTuple):
    """What the callers saw: how calls ended, and which leases they were given."""

    statuses: Counter[tuple[str, grpc.StatusCode]]
    leases: set[tuple[int, int]]


def targets() -> list[Target]:
    files = (jobs_pb2.DESCRIPTOR, gateway_pb2.DESCRIPTOR, work_pb2.DESCRIPTOR, health_pb2.DESCRIPTOR)
    services = [service for file in files for service in file.services_by_name.values()]
    found = [Target(f"/{s.full_name}/{m.name}", m) for s in services for m in s.methods]
    return [target for target in found if target.path != "/grpc.health.v1.Health/List"]


@pytest.mark.every_engine
async def test_hostile_calls_are_refused_properly_and_leak_nothing(engine_name: str, tmp_path: Path) -> None:
    async with running_server(url_of(engine_name, tmp_path), long_poll_seconds=0.01) as server:
        await attack(server, random.Random(f"{SEED} {engine_name}"))


async def attack(server: RunningServer, chance: random.Random) -> None:
    for n in range(JOBS):
        await server.create(variables={"n": str(n)}, tenant_id=chance.choice(["", "acme"]))
    seen = Seen(Counter(), set())
    everything = targets()
    for _ in range(CASES // AT_ONCE):
        await asyncio.gather(*(strike(server, chance, chance.choice(everything), seen) for _ in range(AT_ONCE)))
    told = Counter({status.name: 0 for _, status in seen.statuses})
    for (_, status), times in seen.statuses.items():
        told[status.name] += times
    print(f"\n{sum(seen.statuses.values())} hostile calls: {dict(told)}")
    assert {ended: times for ended, times in seen.statuses.items() if ended[1] in FORBIDDEN} == {}
    assert (await server.call("ListJobs")).success
    await until(lambda: nothing_leaked(server, seen))
    assert await leases(server), "nothing was leased: nothing could leak"
    assert told["OK"] > CASES / 20, "hardly anything got through: the cases are too wild to test much"


async def strike(server: RunningServer, chance: random.Random, target: Target, seen: Seen) -> None:
    raw = hostile_bytes(chance, target.method)
    is_endless = target.method.name in ENDLESS
    timeout = 0.05 if is_endless else SECONDS
    metadata = hostile_metadata(chance)
    if target.method.client_streaming:
        await strike_stream(server, [raw, *(hostile_bytes(chance, target.method) for _ in range(3))], target, seen)
        return
    open_call = server.channel.unary_stream if target.method.server_streaming else server.channel.unary_unary
    call: Any = open_call(target.path, None, None)(raw, metadata=metadata, timeout=timeout)
    try:
        if target.method.server_streaming:
            async for answer in call:
                note_leases(target, answer, seen)
        else:
            await call
    except grpc.aio.AioRpcError:
        pass
    status = await call.code()
    seen.statuses[target.path, status] += 1
    if status is grpc.StatusCode.OK and target.method.name in EXTENDING:
        note_extension(target, raw, seen)


async def strike_stream(server: RunningServer, messages: list[bytes], target: Target, seen: Seen) -> None:
    """Say several things, and hang up. The first may even be a proper greeting."""
    hello = work_pb2.FromWorker(hello=work_pb2.Hello(worker="w1"), grants=[work_pb2.Grant(type=TYPE, credits=3)])
    said = [hello.SerializeToString(), *messages] if len(messages[0]) % 2 else messages
    open_call: Any = server.channel.stream_stream(target.path, None, None)
    call = open_call(metadata=(("x-api-key", KEY),), timeout=0.2)
    await asyncio.gather(say(call, said), hear(call))
    # The client's own words, not the server's: it was still writing when the server had ended the call.
    is_own = await call.details() == WRITE_FAILED
    seen.statuses[target.path, grpc.StatusCode.CANCELLED if is_own else await call.code()] += 1


async def say(call: Any, messages: list[bytes]) -> None:
    """Write messages and hang up, unless the call ends before.

    Not left to gRPC's own writer: if the deadline passes while it hangs up, it cancels the call, and whoever listens.
    """
    with suppress(grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
        for message in messages:
            await call.write(message)
        await call.done_writing()


async def hear(call: Any) -> None:
    """Listen until the call ends."""
    with suppress(grpc.aio.AioRpcError):
        async for _ in call:
            pass


def note_leases(target: Target, answer: bytes, seen: Seen) -> None:
    message: Any = GetMessageClass(target.method.output_type).FromString(answer)
    for job in getattr(message, "jobs", ()):
        key = int(getattr(job, "job_key", 0) or job.key)
        # Zeebe's messages name no attempt: any of the job's may have been given.
        seen.leases.update([(key, job.attempt)] if hasattr(job, "attempt") else any_attempt(key))


def note_extension(target: Target, request: bytes, seen: Seen) -> None:
    message: Any = GetMessageClass(target.method.input_type).FromString(request)
    key = next(int(getattr(message, name)) for name in ("key", "job_key", "jobKey") if hasattr(message, name))
    seen.leases.update(any_attempt(key))


def any_attempt(key: int) -> list[tuple[int, int]]:
    return [(key, attempt) for attempt in range(1, 200)]


async def nothing_leaked(server: RunningServer, seen: Seen) -> bool:
    """Whether every lease was given to somebody; what a stream had goes back a moment after its end."""
    return (await leases(server)) <= seen.leases


async def leases(server: RunningServer) -> set[tuple[int, int]]:
    page = await server.service.find(JobFilter(states=frozenset([State.PROCESSING])), 1_000, KEY_MAX)
    return {(job.key, job.attempt) for job in page.jobs}


# What is sent -----------------------------------------------------------------------------------------


def hostile_bytes(chance: random.Random, method: MethodDescriptor) -> bytes:
    """Noise, a message that was damaged, or a message with values that nobody expects."""
    kind = chance.random()
    if kind < 0.1:
        return chance.randbytes(chance.choice([0, 1, 2, 10, 100, 5_000]))
    raw = hostile_message(chance, method.input_type).SerializeToString()
    if method.name == "StreamActivatedJobs":
        raw += gateway_pb2.StreamActivatedJobsRequest(type=NO_JOBS).SerializeToString()
    if kind < 0.25 and raw and method.name != "StreamActivatedJobs":
        damaged = bytearray(raw)
        for _ in range(chance.randint(1, 5)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        return bytes(damaged[: chance.randint(1, len(damaged))])
    return raw


def hostile_message(chance: random.Random, kind: Descriptor) -> Message:
    message = GetMessageClass(kind)()
    is_mild = chance.random() < 0.4
    for field in kind.fields:
        if chance.random() < (0.8 if is_mild else 0.5):
            fill(chance, message, field, is_mild)
    return message


def fill(chance: random.Random, message: Message, field: FieldDescriptor, is_mild: bool) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        held = getattr(message, field.name)
        for _ in range(chance.randint(0, 4)):
            held[chance.choice(TEXTS)] = chance.choice(TEXTS)
    elif field.message_type is not None:
        inner = [hostile_message(chance, field.message_type) for _ in range(chance.randint(0, 3))]
        if is_repeated(field):
            getattr(message, field.name).extend(inner)
        elif inner:
            getattr(message, field.name).CopyFrom(inner[0])
    elif is_repeated(field) and field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
        getattr(message, field.name).extend(chance.choice(NUMBERS[:5]) for _ in range(chance.randint(0, 5)))
    elif is_repeated(field):
        getattr(message, field.name).extend(chance.choice(TEXTS) for _ in range(chance.randint(0, 5)))
    else:
        setattr(message, field.name, value_for(chance, field, is_mild))


def is_repeated(field: FieldDescriptor) -> bool:
    """The same on every supported version of protobuf: older ones have only the label, newer ones do not have it."""
    described: Any = field
    return bool(described.is_repeated if hasattr(field, "is_repeated") else described.label == described.LABEL_REPEATED)


def value_for(chance: random.Random, field: FieldDescriptor, is_mild: bool) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return chance.choice(TEXTS).encode()
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return text_for(chance, field.name) if is_mild else chance.choice(TEXTS)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return chance.random() < 0.5
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return chance.choice([0, 1, 2, 3, 99])
    return number_for(chance, field, is_mild)


def text_for(chance: random.Random, name: str) -> str:
    if "key" in name:
        return str(chance.randint(1, JOBS))
    return TYPE if name in ("type", "job_type", "worker") else chance.choice(("", "{}", "1", TYPE))


def number_for(chance: random.Random, field: FieldDescriptor, is_mild: bool) -> int:
    if is_mild:
        # What leaks must not be back by itself.
        return 3_600_000 if field.name in ("timeout", "lease_ms") else chance.randint(1, 100)
    bits = 64 if field.cpp_type in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64) else 32
    value = chance.choice(NUMBERS + EDGES[bits])
    is_unsigned = field.cpp_type in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64)
    return abs(value) if is_unsigned else value


def hostile_metadata(chance: random.Random) -> tuple[tuple[str, Any], ...]:
    """Mostly the right key, so that calls get somewhere."""
    right = ("x-api-key", KEY)
    if chance.random() < 0.8:
        return (right,)
    return chance.choice(
        [
            (),
            (("x-api-key", ""),),
            (("x-api-key", "k" * 3_000),),
            (right, right),
            (right, ("authorization", f"Bearer {KEY}")),
            (right, ("x-api-key-bin", chance.randbytes(20))),
            (("x-api-key-bin", b"\xff\xfe\x00"),),
            (("authorization", "Bearer"),),
            (("authorization", "Bearer " + "é".encode("unicode_escape").decode()),),
            (("authorization", f"bearer {KEY}"),),
            (right, ("grpc-timeout-x", "1S"), ("x-forwarded-for", "127.0.0.1"), ("te-bin", chance.randbytes(200))),
            (right, *((f"h{n}", "v" * 50) for n in range(40))),
            (right, ("large", "z" * 9_000)),
        ]
    )


def test_the_cases_are_of_every_kind() -> None:
    chance = random.Random(SEED)
    method = jobs_pb2.DESCRIPTOR.services_by_name["JobsService"].methods_by_name["CreateJob"]
    kinds: Counter[bool] = Counter()
    for _ in range(500):
        try:
            jobs_pb2.CreateJobRequest.FromString(hostile_bytes(chance, method))
            kinds[True] += 1
        except DecodeError:
            kinds[False] += 1
    assert min(kinds[True], kinds[False]) > 50
