"""The registry entry of a process that runs an application's functions, written as managers write theirs."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from everwork.aio.clocks import host_clock_ms
from everwork.runtime.handler import Handler
from everwork.runtime.portal import Portal, Use
from everwork.runtime.runtime import Runtime, WorkerName
from everwork.service.fleet.entries import APPLICATION, ProcessEntry
from everwork.service.fleet.live import heartbeat, memory_bytes
from everwork.service.service import JobService

LEAVE_SECONDS: Final = 2.0
"""How long a stop waits for a store that does not reply. The entry expires on its own later."""


@asynccontextmanager
async def registered(
    portal: Portal[JobService],
    name: WorkerName,
    runtime: Runtime,
    handlers: Sequence[Handler],
    is_stopping: Callable[[], bool],
) -> AsyncIterator[None]:
    """Keep this process registered as a worker inside this context."""
    started_at_ms = host_clock_ms()
    types = tuple(sorted(queue.type for handler in handlers for queue in handler.queues))
    concurrency = sum(handler.concurrency for handler in handlers)

    def entry() -> ProcessEntry:
        return ProcessEntry(
            name=name.process,
            kind=APPLICATION,
            worker="" if name.is_unique else name.text,
            types=types,
            concurrency=concurrency,
            host=socket.gethostname(),
            pid=os.getpid(),
            state="stopping" if is_stopping() else "running",
            started_at_ms=started_at_ms,
            running=runtime.running,
            ended=runtime.ended_jobs,
            memory_bytes=memory_bytes(),
        )

    async def keep(service: JobService) -> None:
        fleet, process = service.fleet, name.process
        async with heartbeat(
            "everwork-registry", lambda: fleet.beat(None, [entry()]), lambda: fleet.end_processes([process])
        ):
            await asyncio.Event().wait()

    async with beside(portal, keep):
        yield


@asynccontextmanager
async def beside(portal: Portal[JobService], use: Use[JobService, Any]) -> AsyncIterator[None]:
    """Run a coroutine in the engine's loop inside this context. It is cancelled at the end, and can clean up."""
    ended, cancel = portal.start(use)
    # It ends only by cancellation, which is not an error.
    ended.add_done_callback(lambda future: future.cancelled() or future.exception())
    try:
        yield
    finally:
        cancel()
        await asyncio.wait([ended], timeout=LEAVE_SECONDS)
