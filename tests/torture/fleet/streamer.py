"""A worker of the fleet on our gRPC stream: `python -m tests.torture.fleet.streamer`."""

from __future__ import annotations

import asyncio
from typing import Final

from everwork.client import ActiveJob
from everwork.exceptions import Fail, Reject, Retry
from tests.torture import plan
from tests.torture.fleet.parts import SERVED, Eyes, client_of, main, read_caller
from tests.torture.history import HistoryWriter
from tests.torture.process import Life

_CONCURRENCY: Final = 20


async def work(life: Life, history: HistoryWriter, stop: asyncio.Event) -> None:
    """Run jobs until SIGTERM."""
    caller = read_caller()
    eyes = Eyes(history, caller.tenant)

    async def run(job: ActiveJob) -> str:
        eyes.look("stream", job._source.variables)
        return await handle(history, job.key, job.attempt, job.variables["r"], life.lease_ms)

    async with client_of(caller) as client:
        name, lease = f"{life.name}.{life.life}", life.lease_ms / 1000
        await client.work(dict.fromkeys(SERVED, run), concurrency=_CONCURRENCY, worker=name, lease=lease, stop=stop)


async def handle(history: HistoryWriter, key: int, attempt: int, name: str, lease_ms: int) -> str:
    """Run a job as planned; its start and end are logged in the history of the process."""
    history.begin(key, attempt)
    chosen, how = plan.action(name, attempt), "cancelled"
    try:
        await _act(chosen, lease_ms)
        how = chosen
    except (Fail, Reject, Retry, ValueError):
        how = chosen
        raise
    finally:
        history.end(key, attempt, how)
    return f"{key}@{attempt}"


async def _act(chosen: str, lease_ms: int) -> None:
    match chosen:
        case "hang" | "slow":
            await asyncio.sleep(lease_ms / 1000 * 1.1)
        case "fail-now" | "fail-retries":
            raise ValueError("failed")
        case "fail-later":
            raise Retry("failed for a while", delay=0.06)
        case "retry" | "release":
            raise Retry("again", delay=0)
        case "fail-final" | "throw":
            raise Fail("failed for good")
        case "reject":
            raise Reject("makes no sense")
        case _:
            pass


if __name__ == "__main__":
    main(work)
