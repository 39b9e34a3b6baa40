"""Alternates with the same program on another version of Everwork: one slice of each kind per line of input.

It uses the public API and the engine contract, so that it runs on any recent commit; started by beside.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from everwork import Everwork
from everwork.client import ActiveJob, Client
from everwork.core.job import NewJob
from everwork.core.leasing import Demand
from everwork.core.outcome import Complete
from everwork.engines.contract import Engine
from everwork.engines.open import open_engine

KEY = "ek-benchmark-0123456789"
ONE_BY_ONE, CALLERS, EACH, BULK, HANDLED, STREAMED, COMPLETED = 250, 64, 16, 3_000, 3_000, 4_000, 640
THREADS, FROM_THREAD = 16, 32
DRAINED, BATCH, LONE = 10_000, 100, 60
LANES: dict[str, Callable[[NewJob, int], NewJob]] = {
    "": lambda job, _: job,
    ", 10 tenants": lambda job, n: job._replace(tenant=f"tenant-{n % 10}"),
    ", a limit key each": lambda job, n: job._replace(limit_key=f"key-{n}"),
}
"""The n-th job in its lane, by the end of the slice's name."""
Slice = Callable[[], Awaitable[object]]
Slices = dict[str, tuple[int, Slice, Slice]]
"""By name: the number of jobs, the preparation, and the measured call."""


async def main(url: str, *only: str) -> None:
    """Measure one slice of each kind for each line of input; of the kinds with one of these parts in their names."""
    with Server(url) as server:
        client = Client(f"grpc://127.0.0.1:{server.facts['grpc_port']}", key=KEY)
        async with Everwork(url) as producer, Everwork(url) as worker, client, _opened(url) as engine:
            slices = _of_producer(producer) | _of_worker(worker) | _of_stream(client) | _of_calls(client, server)
            async with _of_lone_jobs(producer, client, url) as lone:
                slices |= _of_engine(engine) | lone
                slices = {name: one for name, one in slices.items() if not only or any(part in name for part in only)}
                while await asyncio.to_thread(sys.stdin.readline):
                    print(json.dumps({name: await _timed(*one, server) for name, one in slices.items()}), flush=True)


async def _timed(jobs: int, prepare: Slice, run: Slice, server: Server) -> tuple[float, float]:
    """Microseconds per job: CPU of this process and the server, and wall time."""
    await prepare()
    cpu, wall = time.process_time() + server.cpu_seconds(), time.perf_counter()
    await run()
    cpu, wall = time.process_time() + server.cpu_seconds() - cpu, time.perf_counter() - wall
    return cpu * 1e6 / jobs, wall * 1e6 / jobs


async def _nothing() -> None:
    pass


def _of_producer(app: Everwork) -> Slices:
    @app.job("accepted")
    async def accepted(n: int) -> None:
        """Jobs that are created but never run."""

    async def one_by_one() -> None:
        for n in range(ONE_BY_ONE):
            await accepted.enqueue(n=n)

    async def callers() -> None:
        await asyncio.gather(*(caller() for _ in range(CALLERS)))

    async def caller() -> None:
        for n in range(EACH):
            await accepted.enqueue(n=n)

    async def blocking() -> None:
        await asyncio.to_thread(_from_thread, app, ONE_BY_ONE)

    async def threads() -> None:
        await asyncio.gather(*(asyncio.to_thread(_from_thread, app, FROM_THREAD) for _ in range(THREADS)))

    async def bulk() -> None:
        await app.enqueue_many([("accepted", {"n": n}) for n in range(BULK)])

    return {
        "enqueue, one by one": (ONE_BY_ONE, _nothing, one_by_one),
        f"enqueue, {CALLERS} callers": (CALLERS * EACH, _nothing, callers),
        "app.sync.enqueue, one by one": (ONE_BY_ONE, _nothing, blocking),
        f"app.sync.enqueue, {THREADS} threads": (THREADS * FROM_THREAD, _nothing, threads),
        f"enqueue_many of {BULK:,}": (BULK, _nothing, bulk),
    }


def _from_thread(app: Everwork, jobs: int) -> None:
    for n in range(jobs):
        app.sync.enqueue("accepted", n=n)


def _of_worker(app: Everwork) -> Slices:
    left = Countdown()

    @app.job("handled")
    async def handled() -> None:
        left.count()

    async def fill() -> None:
        left.start(HANDLED)
        await app.enqueue_many([("handled", {})] * HANDLED)

    async def work() -> None:
        working = asyncio.ensure_future(app.work())
        await left.done.wait()
        app.stop()
        await working

    return {"functions, from start to stop": (HANDLED, fill, work)}


def _of_stream(client: Client) -> Slices:
    left = Countdown()

    async def handle(_: ActiveJob) -> None:
        left.count()

    async def fill() -> None:
        left.start(STREAMED)
        await client.create_many([("streamed", {})] * STREAMED)

    async def work() -> None:
        stop = asyncio.Event()
        working = asyncio.ensure_future(client.work({"streamed": handle}, stop=stop))
        await left.done.wait()
        stop.set()
        await working

    return {"gRPC stream, from start to stop": (STREAMED, fill, work)}


def _of_calls(client: Client, server: Server) -> Slices:
    body = json.dumps([{"type": "rest"}] * BULK).encode()
    headers = {"X-API-Key": KEY, "Content-Type": "application/json"}

    async def fill() -> None:
        await client.create_many([("completed", {})] * COMPLETED)

    async def complete() -> None:
        jobs: list[ActiveJob] = []
        while len(jobs) < COMPLETED:
            jobs += await client.activate("completed", limit=COMPLETED - len(jobs))
        await asyncio.gather(*(_complete(client, jobs[n::CALLERS]) for n in range(CALLERS)))

    def post() -> None:
        address = f"http://127.0.0.1:{server.facts['http_port']}/api/v1/jobs"
        urllib.request.urlopen(urllib.request.Request(address, body, headers)).read()

    async def gets() -> None:
        key = (await client.create("accepted")).key
        for _ in range(ONE_BY_ONE):
            await client.get(key)

    return {
        "gRPC get, one by one": (ONE_BY_ONE, _nothing, gets),
        f"gRPC complete, {CALLERS} callers": (COMPLETED, fill, complete),
        f"REST create of {BULK:,}": (BULK, _nothing, lambda: asyncio.to_thread(post)),
    }


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[Engine]:
    engine = open_engine(url)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


def _of_engine(engine: Engine) -> Slices:
    slices: Slices = {}
    for lanes, make in LANES.items():
        slices[f"engine, drain in steps of {BATCH}{lanes}"] = (DRAINED, *_drain(engine, f"drained{lanes}", make))
    return slices


def _drain(engine: Engine, type: str, make: Callable[[NewJob, int], NewJob]) -> tuple[Slice, Slice]:
    """Each kind has its own type: a queue that once had several lanes takes turns ever after."""

    async def fill() -> None:
        await engine.create([make(NewJob(type, "{}"), n) for n in range(DRAINED)])

    async def drain() -> None:
        outcomes: list[Complete] = []
        while leased := (await engine.settle(outcomes, [Demand(type, "worker", BATCH)])).activation.jobs:
            outcomes = [Complete(job.key, job.attempt) for job in leased]

    return fill, drain


@asynccontextmanager
async def _of_lone_jobs(producer: Everwork, client: Client, url: str) -> AsyncIterator[Slices]:
    """Jobs that are created one at a time, each when the one before has started in a worker that waits."""
    started, stop = asyncio.Event(), asyncio.Event()

    async def handle(_: ActiveJob) -> None:
        started.set()

    async with Everwork(url) as worker:

        @worker.job("lone-function")
        async def function() -> None:
            started.set()

        working = asyncio.gather(worker.work(), client.work({"lone-stream": handle}, stop=stop))

        async def functions() -> None:
            for _ in range(LONE):
                started.clear()
                await producer.enqueue("lone-function")
                await started.wait()

        async def streamed() -> None:
            for _ in range(LONE):
                started.clear()
                await client.create("lone-stream")
                await started.wait()

        yield {
            "lone job to its start, function": (LONE, _nothing, functions),
            "lone job to its start, gRPC stream": (LONE, _nothing, streamed),
        }
        worker.stop()
        stop.set()
        await working


async def _complete(client: Client, jobs: Sequence[ActiveJob]) -> None:
    for job in jobs:
        await client.complete(job)


class Countdown:
    """Counts the jobs that remain to be handled."""

    def __init__(self) -> None:
        self._left = 0
        self.done = asyncio.Event()

    def start(self, jobs: int) -> None:
        """Restart the count."""
        self._left = jobs
        self.done.clear()

    def count(self) -> None:
        """Count one job as handled."""
        self._left -= 1
        if not self._left:
            self.done.set()


class Server:
    """`everwork serve` on the same store."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-P", "-m", "everwork", "serve", "--engine", url, "--json"]
        ports = ["--grpc-port", "0", "--http-port", "0"]
        environment = os.environ | {"EVERWORK_API_KEY": KEY}
        self._process = subprocess.Popen(
            [*command, *ports], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        self.facts: dict[str, Any] = json.loads(self._process.stdout.readline())

    def cpu_seconds(self) -> float:
        """CPU time so far."""
        fields = open(f"/proc/{self._process.pid}/stat").read().rpartition(")")[2].split()  # noqa: PTH123, SIM115
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(20)


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(*sys.argv[1:]))
