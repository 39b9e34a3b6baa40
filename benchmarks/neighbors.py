"""Neighbors: the latency of a quiet tenant, alone and next to a noisy one, in turns, with one server process.

The quiet tenant creates a job, polls for it, completes it and gets it, at a low, steady rate, over REST and over gRPC.
The noisy one runs in its own process with a lower priority, so that its own CPU use is not measured.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import grpc.aio

from benchmarks.attacks import ATTACKS
from benchmarks.bench import Bench, Row
from benchmarks.noise import NOISES, Noise, Target, answer, hay, request, run_noise
from benchmarks.server import KEY, served
from everwork.proto import jobs_pb2 as pb

ROUNDS = 2
EVERY_SECONDS = 0.05
WARM_UP_SECONDS = 1.0
NOISE_SECONDS = 2.0
"""How long a noise may take to ramp up: thousands of polls do not start in a second."""
IDLE_SECONDS_MAX = 20.0
RATIO_MAX = 2.0
HEALTH_MS_MAX = 100.0
REST, GRPC, HEALTH = "REST", "gRPC", "/healthz"
FAILED = "failed"
"""The quiet tenant's failed gRPC cycles: gRPC itself drops calls of any tenant while too many are pending."""

Samples = dict[str, list[tuple[float, float]]]
"""Wall time, and the CPU time that the server used during it, in milliseconds."""
Cycle = Callable[[], Awaitable[None]]


async def measure_neighbors(bench: Bench) -> list[Row]:
    """Measure every noise, each with its own server and store."""
    only = os.environ.get("NOISES", "")
    known = {**NOISES, **ATTACKS}
    chosen = {name: noise for name, noise in known.items() if not only or any(one in name for one in only.split(","))}
    rows = []
    for name, noise in chosen.items():
        with bench.store() as url, served(url) as (process, facts):
            rows += await _beside(bench, name, noise, (process, facts))
    return rows


@dataclass(slots=True)
class _Taken:
    """Latencies in milliseconds, alone and next to the noise, and memory in MiB."""

    alone: Samples = field(default_factory=dict)
    beside: Samples = field(default_factory=dict)
    before_mib: float = 0.0
    peak_mib: float = 0.0


async def _beside(
    bench: Bench, name: str, noise: Noise, started: tuple[subprocess.Popen[str], dict[str, Any]]
) -> list[Row]:
    process, facts = started
    http_port, grpc_port = facts["http_port"], facts["grpc_port"]
    quiet, noisy = [await _new_key(http_port, tenant) for tenant in ("quiet", "noisy")]
    for body in hay():
        await _post(http_port, noisy, "/api/v1/jobs", body)
    target = Target(http_port, grpc_port, noisy, process.pid)
    seconds = 3.0 if bench.is_quick else 4.0
    taken = _Taken()
    async with _quiet_cycles(http_port, grpc_port, quiet) as cycles:
        await _measured(cycles, WARM_UP_SECONDS, process.pid)
        for number in range(1, 2 if bench.is_quick else ROUNDS + 1):
            bench.say(f"neighbors: {name}: round {number}")
            await _idle(process.pid)
            _add(taken.alone, await _measured(cycles, seconds, process.pid))
            taken.before_mib = _memory_mib(process.pid, "VmRSS")
            _reset_peak(process.pid)
            async with _noise(noise, target):
                await _measured(cycles, NOISE_SECONDS, process.pid)
                _add(taken.beside, await _measured(cycles, seconds, process.pid))
            taken.peak_mib = max(taken.peak_mib, _memory_mib(process.pid, "VmHWM"))
    return _rows(name, taken)


# The quiet tenant --------------------------------------------------------------------------------------


@asynccontextmanager
async def _quiet_cycles(http_port: int, grpc_port: int, key: str) -> AsyncIterator[Mapping[str, Cycle]]:
    rest, health = [await asyncio.open_connection("127.0.0.1", http_port, limit=2**20) for _ in range(2)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        yield {
            REST: lambda: _rest_cycle(*rest, key),
            GRPC: lambda: _grpc_cycle(channel, key),
            HEALTH: lambda: _healthy(*health),
        }
    for _, writer in (rest, health):
        writer.close()


async def _measured(cycles: Mapping[str, Cycle], seconds: float, pid: int) -> Samples:
    """The times of every cycle; cycles start at a steady rate, but never before the previous one has ended."""
    taken: Samples = {name: [] for name in (*cycles, FAILED)}

    async def repeat(name: str, cycle: Cycle) -> None:
        loop = asyncio.get_running_loop()
        ends = next_at = loop.time() + seconds
        next_at -= seconds
        while next_at < ends:
            await asyncio.sleep(next_at - loop.time())
            began, cpu = time.perf_counter(), _cpu_ms(pid)
            try:
                await cycle()
            except grpc.aio.AioRpcError:
                taken[FAILED].append((1.0, 0.0))
            else:
                taken[name].append(((time.perf_counter() - began) * 1e3, _cpu_ms(pid) - cpu))
            next_at = max(next_at + EVERY_SECONDS, loop.time())

    await asyncio.gather(*(repeat(name, cycle) for name, cycle in cycles.items()))
    return taken


async def _rest_cycle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str) -> None:
    async def call(method: str, path: str, body: Any = None) -> Any:
        writer.write(request(method, path, key, b"" if body is None else json.dumps(body).encode()))
        status, text = await answer(reader)
        if status not in (200, 201):
            raise RuntimeError(f"the quiet tenant's {method} {path} got {status}: {text.decode()}")
        return json.loads(text)

    await call("POST", "/api/v1/jobs", {"type": "quiet-rest", "variables": {"n": 1}})
    [job] = (await call("POST", "/api/v1/jobs/activate", {**_REST_POLL}))["jobs"]
    await call("PUT", f"/api/v1/jobs/{job['key']}/complete", {"attempt": job["attempt"]})
    await call("GET", f"/api/v1/jobs/{job['key']}")


_REST_POLL = {"type": "quiet-rest", "worker": "quiet", "max_jobs": 1, "wait": 20}
_GRPC_POLL = pb.ActivateJobsRequest(type="quiet-grpc", worker="quiet", timeout=60_000, max_jobs_to_activate=1)


async def _grpc_cycle(channel: grpc.aio.Channel, key: str) -> None:
    jobs: Any = _Stub(channel)
    metadata = (("x-api-key", key),)
    created = await jobs.unary("CreateJob", pb.CreateJobRequest(job_type="quiet-grpc", variables={"n": "1"}), metadata)
    job_key, attempt = pb.CreateJobResponse.FromString(created).job_key, 0
    async for raw in jobs.stream("ActivateJobs", _GRPC_POLL, metadata):
        [job] = pb.ActivateJobsResponse.FromString(raw).jobs
        job_key, attempt = job.job_key, job.attempt  # After a failed cycle, this may be an older job.
    done = pb.CompleteJobRequest(job_key=job_key, attempt=attempt)
    if not pb.CompleteJobResponse.FromString(await jobs.unary("CompleteJob", done, metadata)).success:
        raise RuntimeError("the quiet tenant's job was not completed")
    await jobs.unary("GetJob", pb.GetJobRequest(job_key=job_key), metadata)


class _Stub:
    """Unary calls with raw bytes; the type stubs require serializers."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def unary(self, name: str, message: Any, metadata: Any) -> Any:
        return self._channel.unary_unary(f"/atom.jobs.v1.JobsService/{name}")(
            message.SerializeToString(), metadata=metadata
        )

    def stream(self, name: str, message: Any, metadata: Any) -> Any:
        return self._channel.unary_stream(f"/atom.jobs.v1.JobsService/{name}")(
            message.SerializeToString(), metadata=metadata
        )


async def _healthy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(request("GET", "/healthz", None))
    status, text = await answer(reader)
    if status != 200:
        raise RuntimeError(f"/healthz answered {status}: {text.decode()}")


# The server and its noise ------------------------------------------------------------------------------


async def _new_key(port: int, tenant: str) -> str:
    body = {"name": tenant, "permissions": ["jobs"], "tenants": [tenant]}
    key: str = json.loads(await _post(port, KEY, "/api/v1/keys", json.dumps(body).encode()))["key"]
    return key


async def _post(port: int, key: str, path: str, body: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    writer.write(request("POST", path, key, body))
    status, text = await answer(reader)
    writer.close()
    if status != 201:
        raise RuntimeError(f"POST {path} got {status}: {text[:500].decode()}")
    return text


@asynccontextmanager
async def _noise(noise: Noise, target: Target) -> AsyncIterator[None]:
    context = multiprocessing.get_context("spawn")
    started = context.Event()
    process = context.Process(target=run_noise, args=(noise, target, started), daemon=True)
    process.start()
    try:
        await asyncio.to_thread(started.wait)
        yield
        if process.exitcode is not None:
            raise RuntimeError(f"the noise process exited with code {process.exitcode}")
    finally:
        process.terminate()
        process.join()


async def _idle(pid: int) -> None:
    """Wait until the server has finished the work that the previous noise left behind."""
    ends = time.monotonic() + IDLE_SECONDS_MAX
    while time.monotonic() < ends:
        before = _cpu_ms(pid)
        await asyncio.sleep(0.5)
        if _cpu_ms(pid) - before < 50:
            return


def _cpu_ms(pid: int) -> float:
    """The CPU time of all threads, more precise than the ticks of /proc/PID/stat."""
    spent = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            spent += int((thread / "schedstat").read_text("utf-8").split()[0])
    return spent / 1e6


def _memory_mib(pid: int, name: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1_024


def _reset_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5", "utf-8")


# The table ---------------------------------------------------------------------------------------------


def _add(all_of_them: Samples, more: Samples) -> None:
    for name, taken in more.items():
        all_of_them.setdefault(name, []).extend(taken)


def _rows(name: str, taken: _Taken) -> list[Row]:
    rows = []
    for api in (REST, GRPC):
        for what, at in (("", 0), ("server CPU per cycle, ", 1)):
            alone, beside = ([one[at] for one in samples[api]] for samples in (taken.alone, taken.beside))
            for named, of in (("median", median), ("p99", _p99)):
                value, before = of(beside), of(alone)
                rows.append(_row(f"{name}: {api} alone, {what}{named}", before))
                limit = RATIO_MAX if named == "p99" and at == 0 else None
                rows.append(_row(f"{name}: {api} beside it, {what}{named}", value, value / before, limit))
    health = _p99([wall for wall, _ in taken.beside[HEALTH]])
    rows.append(_row(f"{name}: /healthz beside it, p99", health, value_max=HEALTH_MS_MAX))
    failed = len(taken.beside[FAILED])
    rows.append(Row(part="neighbors", what=f"{name}: failed gRPC cycles", value=failed, unit="", value_max=0))
    for what, mib in (("memory before", taken.before_mib), ("memory, peak", taken.peak_mib)):
        rows.append(Row(part="neighbors", what=f"{name}: {what}", value=mib, unit="MiB"))
    return rows


def _row(
    what: str,
    value: float,
    ratio: float | None = None,
    ratio_max: float | None = None,
    *,
    value_max: float | None = None,
) -> Row:
    return Row(
        part="neighbors", what=what, value=value, unit="ms", ratio=ratio, ratio_max=ratio_max, value_max=value_max
    )


def _p99(taken: list[float]) -> float:
    return sorted(taken)[len(taken) * 99 // 100]
