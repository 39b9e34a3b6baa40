"""What a noisy neighbor does to a server: each noise is a function that runs in its own process until it is terminated.

`NOISES` is the registry: a name, and a module-level function that takes a `Target`. A function may also be an attack
that needs no key; it must keep going until its process is terminated.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from typing import Any

import grpc.aio

from everwork.aio.loops import new_loop
from everwork.client import Client
from everwork.proto import jobs_pb2, work_pb2

NICENESS = 10
"""The nice value of the noise: with two cores, its CPU use would otherwise be measured, too."""
CONNECTIONS = 64
HAY = "haystack"
"""The type of the prepared jobs: many small ones to search, and some large ones to list."""
SMALL_JOBS, SMALL_BYTES = 8_000, 4_000
LARGE_JOBS, LARGE_BYTES = 180, 100_000
BULK = 1_000
BULK_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Target:
    """The server, and the key of the noisy tenant."""

    http_port: int
    grpc_port: int
    key: str
    pid: int


Noise = Callable[[Target], None]


def run_noise(noise: Noise, target: Target, started: Event) -> None:
    """Run one noise in this process, with a lower priority than the server and the quiet client."""
    started.set()  # On a busy machine, starting takes longer than the ramp-up time.
    os.nice(NICENESS)
    noise(target)


# REST ------------------------------------------------------------------------------------------------


def request(method: str, path: str, key: str | None, body: bytes = b"") -> bytes:
    """An HTTP/1.1 request."""
    own = "" if key is None else f"X-API-Key: {key}\r\n"
    sized = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
    return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{own}{sized}\r\n".encode() + body


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The status and body of the next response; the server always sends its length."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
    return int(head[9:12]), await reader.readexactly(length)


async def _ask_forever(port: int, requests: Iterator[bytes]) -> None:
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
            for one in requests:
                writer.write(one)
                await answer(reader)
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.05)


def _flood(requests: Callable[[Target], Iterator[bytes]], connections: int = CONNECTIONS) -> Noise:
    return _Flood(requests, connections)


@dataclass(frozen=True, slots=True)
class _Flood:
    """REST requests, one after the other on every connection, as fast as the server responds."""

    requests: Callable[[Target], Iterator[bytes]]
    connections: int

    def __call__(self, target: Target) -> None:
        _run(*(_ask_forever(target.http_port, self.requests(target)) for _ in range(self.connections)))


def _run(*programs: Awaitable[Any]) -> None:
    async def all_of_them() -> None:
        await asyncio.gather(*programs)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(all_of_them())


def jobs_body(jobs: int, size: int = 10, type: str = "noise") -> bytes:
    """New jobs with variables of about this many bytes each."""
    return json.dumps([{"type": type, "variables": {"text": "x" * size}}] * jobs).encode()


def _creates(target: Target) -> Iterator[bytes]:
    return itertools.repeat(request("POST", "/api/v1/jobs", target.key, jobs_body(1)))


def _bulk_creates(target: Target) -> Iterator[bytes]:
    return itertools.repeat(request("POST", "/api/v1/jobs", target.key, jobs_body(BULK)))


def _largest_creates(target: Target) -> Iterator[bytes]:
    return itertools.repeat(request("POST", "/api/v1/jobs", target.key, jobs_body(BULK_MAX)))


def _payloads(target: Target) -> Iterator[bytes]:
    return itertools.repeat(request("POST", "/api/v1/jobs", target.key, jobs_body(1, 1_000_000)))


def _hot_polls(target: Target) -> Iterator[bytes]:
    body = json.dumps({"type": "nothing", "worker": "noise", "max_jobs": 100}).encode()
    return itertools.repeat(request("POST", "/api/v1/jobs/activate", target.key, body))


def _searches(target: Target) -> Iterator[bytes]:
    return itertools.repeat(request("GET", "/api/v1/jobs?variables=needle&limit=1000", target.key))


def _lists(target: Target) -> Iterator[bytes]:
    return itertools.repeat(request("GET", "/api/v1/jobs?limit=1000", target.key))


def _statistics(target: Target) -> Iterator[bytes]:
    paths = itertools.cycle(["/api/v1/stats", "/api/v1/types", "/api/v1/dead?limit=1000"])
    return (request("GET", path, target.key) for path in paths)


def _new_types(target: Target) -> Iterator[bytes]:
    start = random.randrange(10**12)
    for number in itertools.count(start):
        yield request("POST", "/api/v1/jobs", target.key, jobs_body(1, type=f"type-{number}"))


def _wrong_keys(_target: Target) -> Iterator[bytes]:
    return itertools.repeat(request("POST", "/api/v1/jobs", "ew_0123456789ab_" + "x" * 40, jobs_body(1)))


# gRPC ------------------------------------------------------------------------------------------------


def grpc_creates(target: Target) -> None:
    """Unary calls by many callers over one connection."""

    async def call_forever() -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{target.grpc_port}") as channel:
            unary: Any = channel.unary_unary
            call = unary("/atom.jobs.v1.JobsService/CreateJob")
            sent = jobs_pb2.CreateJobRequest(job_type="noise", variables={"n": "1"}).SerializeToString()
            await asyncio.gather(*(_calls(call, sent, target.key) for _ in range(CONNECTIONS)))

    _run(call_forever())


async def _calls(call: Any, sent: bytes, key: str) -> None:
    while True:
        try:
            await call(sent, metadata=(("x-api-key", key),))
        except grpc.aio.AioRpcError:
            await asyncio.sleep(0)


def waiting_polls(target: Target) -> None:
    """Polls that wait: as many as one key may have for each of four types, and jobs that wake one type."""

    async def poll_forever(channel: grpc.aio.Channel, type: str) -> None:
        unary_stream: Any = channel.unary_stream
        call = unary_stream("/atom.jobs.v1.JobsService/ActivateJobs")
        sent = jobs_pb2.ActivateJobsRequest(type=type, worker="noise", timeout=60_000, max_jobs_to_activate=10)
        while True:
            try:
                async for _ in call(sent.SerializeToString(), metadata=(("x-api-key", target.key),)):
                    pass
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.1)

    async def all_polls() -> None:
        channels = [
            grpc.aio.insecure_channel(f"127.0.0.1:{target.grpc_port}", options=[("grpc.use_local_subchannel_pool", 1)])
            for _ in range(40)
        ]
        polls = (poll_forever(channels[at % 40], f"waiting-{at % 4}") for at in range(2_000))
        waker = _ask_forever(target.http_port, _paced_creates(target))
        await asyncio.gather(*polls, waker)

    _run(all_polls())


def _paced_creates(target: Target) -> Iterator[bytes]:
    return itertools.repeat(request("POST", "/api/v1/jobs", target.key, jobs_body(1, type="waiting-0")))


def stream_worker(target: Target) -> None:
    """A worker stream with a huge throughput, and bulk creates that feed it."""

    async def handle(_job: object) -> None:
        return None

    async def work() -> None:
        async with Client(f"grpc://127.0.0.1:{target.grpc_port}", key=target.key) as client:
            await client.work({"noise": handle}, concurrency=1_000)

    async def create() -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{target.grpc_port}") as channel:
            unary: Any = channel.unary_unary
            call = unary("/everwork.v1.WorkService/CreateJobs")
            batch = [work_pb2.NewJob(type="noise", variables=b"{}", tenant="noisy") for _ in range(BULK)]
            sent = work_pb2.CreateJobsRequest(jobs=batch).SerializeToString()
            await asyncio.gather(*(_calls(call, sent, target.key) for _ in range(2)))

    _run(work(), create())


NOISES: dict[str, Noise] = {
    "creates over REST": _flood(_creates),
    "creates over gRPC": grpc_creates,
    f"bulk creates of {BULK:,}": _flood(_bulk_creates, 16),
    f"bulk creates of {BULK_MAX:,}": _flood(_largest_creates, 4),
    "payloads of 1 MB": _flood(_payloads, 16),
    "waiting polls": waiting_polls,
    "hot polls": _flood(_hot_polls),
    "searches in variables": _flood(_searches, 16),
    "lists of 16 MiB": _flood(_lists, 8),
    "statistics and types": _flood(_statistics, 16),
    "new types": _flood(_new_types, 16),
    "wrong API keys": _flood(_wrong_keys),
    "a worker stream": stream_worker,
}
"""Every noise by name. Further ones (name, function) are measured the same way."""


def hay() -> Iterable[bytes]:
    """The bodies that create the noisy tenant's own jobs, for searches and lists."""
    yield from [jobs_body(500, SMALL_BYTES, HAY)] * (SMALL_JOBS // 500)
    yield from [jobs_body(60, LARGE_BYTES, HAY)] * (LARGE_JOBS // 60)
