"""The workers of a soak: an application, a manager, and programs that work over the stream and over REST.

`python -m tests.soak.fleet stream|rest NAME` runs one of the latter. Every handler logs which job it runs, so that
lost jobs are noticed at the end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx

from everwork import (
    AbstractWorker,
    Event,
    EventCollector,
    Everwork,
    Interval,
    JobContext,
    Process,
    ProcessGroup,
    ProcessManager,
    Trigger,
    TypePolicy,
    WorkerSettings,
)
from everwork.client import ActiveJob, Client
from everwork.exceptions import Fail
from tests.manager.program import sides_of
from tests.soak import observed
from tests.soak.kinds import (
    APP,
    BIG,
    DOOMED,
    DOOMED_ATTEMPTS,
    EVENT,
    FLAKY,
    LATER,
    MANAGED,
    PROBE,
    PROBE_MANAGED,
    QUICK,
    REST,
    SLOW,
    TICK,
)

STORE: Final = "SOAK_STORE"
GRPC: Final = "SOAK_GRPC"
HTTP: Final = "SOAK_HTTP"
KEEP_HOURS: Final = "SOAK_KEEP_HOURS"
SLOW_SECONDS: Final = "SOAK_SLOW_SECONDS"
_POLL_SECONDS: Final = 10
_RESULT: Final = "y" * 20_000


class Ran:
    """The log of the jobs that ran in this process, one line each, written before the handler does anything else."""

    def __init__(self) -> None:
        self._file = -1

    def __call__(self, key: int) -> None:
        """Log a job."""
        if self._file < 0:
            path = Path(os.environ[observed.FOLDER]) / f"ran-{os.getpid()}.txt"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(self._file, b"%d\n" % key)


ran: Final = Ran()


def policy() -> TypePolicy:
    """How long jobs are kept: short, so that the number of rows levels off during a soak."""
    hours = float(os.environ.get(KEEP_HOURS, "0.1"))
    return TypePolicy(keep_completed_hours=hours, keep_failed_hours=hours)


# On the store ---------------------------------------------------------------------------------------

app = Everwork(os.environ.get(STORE, "sqlite:///unused.db"))


@app.job(APP, concurrency=5, policy=policy())
async def in_app(ctx: JobContext, **_: Any) -> dict[str, int]:
    """A job of the application."""
    ran(ctx.key)
    return {"attempt": ctx.attempt}


@app.job(TICK, cron=Interval(seconds=5), policy=policy())
async def on_schedule(ctx: JobContext) -> None:
    """A job of the application's schedule."""


class SoakManaged(AbstractWorker):
    """Runs in the processes of the manager, and sometimes emits an event."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        """The sources of the worker, and a short retention."""
        return WorkerSettings(
            title="soak-managed",
            sources={MANAGED, PROBE_MANAGED, EVENT},
            concurrency=10,
            execution_timeout=30,
            retry=app.functions[APP].retry,
            triggers=[Trigger(title="every 7 s", schedule=Interval(seconds=7), kwargs={"n": 1})],
            policy=policy(),
        )

    async def __call__(self, ctx: JobContext, events: EventCollector, n: int = 0, **_: Any) -> dict[str, float]:
        """Say when it started."""
        ran(ctx.key)
        if n % 20 == 7:
            events.emit(Event(source=EVENT, kwargs={"n": 0}))
        return {"started": time.time()}


def _manager() -> ProcessManager:
    backend, broker = sides_of(os.environ.get(STORE, "sqlite:///unused.db"))
    group = ProcessGroup(process=Process(workers=[SoakManaged], shutdown_timeout=5), replicas=2)
    return ProcessManager(uuid="soak", processes=[group], backend=backend, broker=broker, lease=10)


manager = _manager()


# Over the network -----------------------------------------------------------------------------------


async def quick(job: ActiveJob) -> dict[str, float]:
    """Say when it started."""
    ran(job.key)
    return {"started": time.time()}


async def flaky(job: ActiveJob) -> None:
    """Succeed on the second attempt."""
    ran(job.key)
    if job.attempts < 2:
        raise ConnectionError(f"host {job.variables.get('n', 0)} does not answer")


async def doomed(job: ActiveJob) -> None:
    """Become a dead letter at first; complete after a requeue."""
    ran(job.key)
    if job.attempt <= DOOMED_ATTEMPTS:
        raise ValueError(f"card {job.variables.get('n', 0)} was declined")
    if job.attempt > 50:
        raise Fail("requeued too often")


async def slow(job: ActiveJob) -> None:
    """Run for longer than a lease."""
    ran(job.key)
    await asyncio.sleep(float(os.environ[SLOW_SECONDS]))


async def big(job: ActiveJob) -> dict[str, str]:
    """Return a large result."""
    ran(job.key)
    return {"text": _RESULT}


async def stream(name: str) -> None:
    """Work over the stream until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    handlers = {QUICK: quick, FLAKY: flaky, DOOMED: doomed, SLOW: slow, BIG: big, LATER: quick}
    if name == "1":
        handlers[PROBE] = quick
    async with Client(os.environ[GRPC], key=os.environ["EVERWORK_API_KEY"]) as client:
        await client.work(handlers, concurrency=20, worker=f"stream-{name}-{os.getpid()}", lease=10, stop=stop)


async def rest(name: str) -> None:
    """Work over REST, with long polls, until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    headers = {"X-API-Key": os.environ["EVERWORK_API_KEY"]}
    worker = f"rest-{name}-{os.getpid()}"
    ask = {"type": REST, "worker": worker, "max_jobs": 10, "timeout_ms": 10_000, "wait": _POLL_SECONDS}
    async with httpx.AsyncClient(base_url=os.environ[HTTP], headers=headers, timeout=30) as http:
        while not stop.is_set():
            with suppress(httpx.HTTPError):
                answer = await http.post("/api/v1/jobs/activate", json=ask)
                for job in answer.json().get("jobs", []):
                    ran(int(job["key"]))
                    body = {"attempt": job["attempt"], "variables": {"ok": True}}
                    await http.put(f"/api/v1/jobs/{job['key']}/complete", json=body)


if __name__ == "__main__":
    observed.observe()
    asyncio.run({"stream": stream, "rest": rest}[sys.argv[1]](sys.argv[2]))
