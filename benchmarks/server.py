"""Server: gRPC, streams and REST, with one server process and one client process (this one)."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from benchmarks.bench import Bench, Measure, Row, Timing, check_all, interleave, rate_row
from benchmarks.drain import TYPE
from benchmarks.echo import METHOD
from everwork.client import Client
from everwork.proto import jobs_pb2, work_pb2

KEY = "a-key-for-measurements"
METADATA = (("x-api-key", KEY),)
CALLERS = 64
BULK = 1_000
ECHO_RATIO_MIN = 0.7
STREAM_MIN = 15_000
REST_MIN = 20_000
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


async def measure_server(bench: Bench) -> list[Row]:
    """Unary calls compared with a bare echo, whole jobs through the stream, bulk creation over REST."""
    calls, jobs = bench.jobs(12_800, 1_280), bench.jobs(60_000, 6_000)
    echo, complete = f"bare echo, {CALLERS} callers", f"gRPC CompleteJob, {CALLERS} callers"
    stream, rest = "stream: whole jobs, no-op handler", f"REST: create of {BULK:,}, with full reply"
    measures: dict[str, Measure] = {
        echo: _echoed(calls),
        complete: _completed(bench, calls),
        stream: _streamed(bench, jobs),
        rest: _posted(bench, jobs),
    }
    taken = await interleave(bench, "server", measures)
    is_sqlite = bench.host.name == "sqlite"
    return [
        rate_row("server", echo, taken[echo]),
        rate_row("server", complete, taken[complete], taken[echo], ECHO_RATIO_MIN),
        rate_row("server", stream, taken[stream], value_min=STREAM_MIN if is_sqlite else None),
        rate_row("server", rest, taken[rest], value_min=REST_MIN if is_sqlite else None),
    ]


def _echoed(calls: int) -> Measure:
    async def measure() -> Timing:
        with _process("-m", "benchmarks.echo") as (process, facts):
            async with _channel(facts) as channel:
                call = _unary(channel, METHOD)
                await call(b"warm")
                with _timing(calls, process) as timing:
                    await _by_callers(call, [b"x" * 40] * calls)
                return timing

    return measure


def _completed(bench: Bench, calls: int) -> Measure:
    async def measure() -> Timing:
        async with _serving(bench) as (process, facts), _channel(facts) as channel:
            await _create(channel, calls)
            requests = await _activated(channel, calls)
            call = _unary(channel, "/atom.jobs.v1.JobsService/CompleteJob")
            with _timing(calls, process) as timing:
                answers = await _by_callers(call, requests)
            check_all(sum(jobs_pb2.CompleteJobResponse.FromString(one).success for one in answers), calls)
            return timing

    return measure


def _streamed(bench: Bench, jobs: int) -> Measure:
    async def measure() -> Timing:
        async with _serving(bench) as (process, facts):
            async with _channel(facts) as channel:
                await _create(channel, jobs)
            async with Client(f"grpc://127.0.0.1:{facts['grpc_port']}", key=KEY) as client:
                with _timing(jobs, process) as timing:
                    await _work_off(client, jobs)
                stats = await client.stats(1)
                check_all(sum(count.jobs for count in stats.counts if count.state.label == "completed"), jobs)
                return timing

    return measure


async def _work_off(client: Client, jobs: int) -> None:
    done = asyncio.Event()
    left = jobs

    async def handle(_job: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    working = asyncio.ensure_future(client.work({TYPE: handle}, concurrency=1_000))
    await done.wait()
    # Stopping waits until the last outcomes are confirmed.
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


def _posted(bench: Bench, jobs: int) -> Measure:
    async def measure() -> Timing:
        async with _serving(bench) as (process, facts):
            body = json.dumps([{"type": TYPE, "variables": {"n": n}} for n in range(BULK)])
            with _timing(jobs, process) as timing:
                created = await asyncio.to_thread(_post, facts["http_port"], body, jobs // BULK)
            check_all(created, jobs)
            return timing

    return measure


def _post(port: int, body: str, times: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    created = 0
    for _ in range(times):
        connection.request("POST", "/api/v1/jobs", body, {"X-API-Key": KEY, "Content-Type": "application/json"})
        answer = connection.getresponse()
        created += answer.read().count(b'"key":') if answer.status == 201 else 0
    connection.close()
    return created


def _channel(facts: dict[str, Any]) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"127.0.0.1:{facts['grpc_port']}")


def _unary(channel: grpc.aio.Channel, method: str) -> Any:
    """A call of plain bytes; the type stubs insist on serializers."""
    unary: Any = channel.unary_unary
    return unary(method)


async def _create(channel: grpc.aio.Channel, jobs: int) -> None:
    call = _unary(channel, "/everwork.v1.WorkService/CreateJobs")
    for low in range(0, jobs, BULK):
        batch = [work_pb2.NewJob(type=TYPE, variables=b'{"n":%d}' % n) for n in range(low, min(low + BULK, jobs))]
        await call(work_pb2.CreateJobsRequest(jobs=batch).SerializeToString(), metadata=METADATA)


async def _activated(channel: grpc.aio.Channel, jobs: int) -> list[bytes]:
    """The requests to complete a number of jobs, which have been leased."""
    unary_stream: Any = channel.unary_stream
    call = unary_stream("/atom.jobs.v1.JobsService/ActivateJobs")
    ask = jobs_pb2.ActivateJobsRequest(type=TYPE, worker="bench", timeout=3_600_000, max_jobs_to_activate=100)
    requests: list[bytes] = []
    while len(requests) < jobs:
        async for raw in call(ask.SerializeToString(), metadata=METADATA):
            for job in jobs_pb2.ActivateJobsResponse.FromString(raw).jobs:
                request = jobs_pb2.CompleteJobRequest(job_key=job.job_key, variables={"status": "200"})
                requests.append(request.SerializeToString())
    return requests


async def _by_callers(call: Any, requests: list[bytes]) -> list[bytes]:
    """Make every request, with the measured number of concurrent callers."""
    waiting = iter(requests)
    answers: list[bytes] = []

    async def caller() -> None:
        for request in waiting:
            answers.append(await call(request, metadata=METADATA))  # noqa: PERF401 - it waits each time

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return answers


@asynccontextmanager
async def _serving(bench: Bench) -> AsyncIterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    with bench.store() as url, served(url) as started:
        yield started


@contextmanager
def served(url: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A server on a store, in its own process, and the facts that it prints at startup."""
    arguments = ("-m", "everwork", "serve", "--engine", url, "--grpc-port", "0", "--http-port", "0", "--json")
    with _process(*arguments) as started:
        yield started


@contextmanager
def _process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A server in its own process, and the line with its ports."""
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, text=True, env={**os.environ, "EVERWORK_API_KEY": KEY}
    )
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(30)


def _timing(jobs: int, process: subprocess.Popen[str]) -> Timing:
    return Timing(jobs, lambda: _cpu_seconds(process.pid))


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS
