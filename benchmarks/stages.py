"""Stages: where the time of a lone job goes, from `enqueue` in one process to its handler in another.

`python -m benchmarks.stages URL` is the worker process: it notes the moments of each job and prints them when stopped.
For an older version of Everwork, set PYTHONPATH to the `src` of its checkout.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import time
from asyncio.subprocess import PIPE
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.bench import Bench, Row
from benchmarks.tick_worker import TICK
from everwork import Everwork

EVERY_SECONDS = 0.01
WARM_UP_JOBS = 20
START_SECONDS_MAX = 60.0
SEEN_IN_MIN = 0.2
"""A stage is shown if at least this share of the jobs went through it."""
HEARD, ASKED, ANSWERED, DELIVERED, ACCEPTED = "message received", "step begun", "step answered", "delivered", "accepted"
STARTED = "handler started"
NOTED = {
    ("everwork.engines.redis.wake", "Wakeups", "_on_push"): HEARD,
    ("everwork.engines.postgres.wake", "Listener", "_received"): HEARD,
    ("everwork.engines.postgres.wake", "Listener", "_handed"): HEARD,
    ("everwork.engines.sqlite.processes", "Wakeup", "_receive"): HEARD,
    ("everwork.runtime.executor", "Executor", "accept"): ACCEPTED,
    ("everwork.runtime.runtime", "Runtime", "_deliver"): DELIVERED,
}
"""The methods whose calls are moments of a job; those that a version does not have are left out."""
Moment = tuple[str, int]
Sent = tuple[int, int]
"""When a job was enqueued, and when the call returned."""


async def measure_stages(bench: Bench) -> list[Row]:
    """The median of each stage, in microseconds; every job finds an idle worker."""
    jobs = bench.jobs(400, 60)
    with bench.store() as url:
        worker = await asyncio.create_subprocess_exec(sys.executable, "-m", "benchmarks.stages", url, stdout=PIPE)
        try:
            bench.say(f"stages: {jobs} jobs, one every {EVERY_SECONDS * 1000:g} ms")
            sent = await _produce(url, jobs)
        finally:
            if worker.returncode is None:
                worker.terminate()
            output, _ = await worker.communicate()
    return _rows(sent, json.loads((output.splitlines() or [b"[]"])[-1]))


def _rows(sent: Sequence[Sent], moments: Sequence[Moment]) -> list[Row]:
    stages: defaultdict[str, list[int]] = defaultdict(list)
    for (called, returned), seen in zip(sent, _by_job(sent, moments), strict=True):
        stages["enqueue() returns after"].append(returned - called)
        last, before = called, "enqueue()"
        for what, at in seen:
            stages[f"{before} -> {what}"].append(at - last)
            last, before = at, what
        stages["enqueue() -> handler started, in all"].append(last - called)
    shown = {what: sorted(taken) for what, taken in stages.items() if len(taken) >= SEEN_IN_MIN * len(sent)}
    return [
        Row(part="stages", what=f"{what}, {kind}", value=taken[len(taken) * percent // 100] / 1_000, unit="us")
        for what, taken in shown.items()
        for kind, percent in (("median", 50), ("p99", 99))
    ]


def _by_job(sent: Sequence[Sent], moments: Sequence[Moment]) -> Iterable[list[Moment]]:
    """The moments between the call that enqueued a job and the start of its handler: jobs do not overlap."""
    ends = [at for what, at in moments if what == STARTED]
    for called, _ in sent:
        end = next(at for at in ends if at > called)
        yield [moment for moment in moments if called < moment[1] <= end]


async def _produce(url: str, jobs: int) -> list[Sent]:
    sent: list[Sent] = []
    async with Everwork(url) as app:
        last = await app.enqueue(TICK)
        for _ in range(WARM_UP_JOBS - 1):
            await app.result(last, timeout=START_SECONDS_MAX)
            last = await app.enqueue(TICK)
        next_at = time.monotonic()
        for _ in range(jobs):
            called = time.monotonic_ns()
            last = await app.enqueue(TICK)
            sent.append((called, time.monotonic_ns()))
            next_at += EVERY_SECONDS
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))
        await app.result(last, timeout=START_SECONDS_MAX)
    return sent


def main() -> None:
    """Run until SIGTERM, and print the moments."""
    moments: list[Moment] = []
    for (module, kind, method), what in NOTED.items():
        _note_calls(module, kind, method, what, moments)
    _note_steps(moments)
    app = Everwork(sys.argv[1])

    @app.job(TICK, concurrency=10)
    async def tick() -> None:
        moments.append((STARTED, time.monotonic_ns()))

    app.run()
    print(json.dumps(moments))


def _note_calls(module: str, kind: str, method: str, what: str, moments: list[Moment]) -> None:
    try:
        owner = getattr(importlib.import_module(module), kind)
        call: Callable[..., Any] = getattr(owner, method)
    except (ImportError, AttributeError):
        return

    def noted(*args: Any, **named: Any) -> Any:
        moments.append((what, time.monotonic_ns()))
        return call(*args, **named)

    setattr(owner, method, noted)


def _note_steps(moments: list[Moment]) -> None:
    from everwork.runtime.settler import Settler  # noqa: PLC0415 - only the worker process patches it

    step = Settler.step

    async def noted(self: Settler, outcomes: Any, demands: Any) -> Any:
        moments.append((ASKED, time.monotonic_ns()))
        settlement = await step(self, outcomes, demands)
        moments.append((ANSWERED, time.monotonic_ns()))
        return settlement

    Settler.step = noted  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
