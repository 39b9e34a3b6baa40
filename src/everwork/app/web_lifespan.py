"""An application inside a web application: opened, run and closed together with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final

from everwork.aio.loops import first_of
from everwork.aio.retrying import backoff_delays
from everwork.app.workers import Workers
from everwork.logs import get_logger

log = get_logger("everwork")

RESTART_SECONDS: Final = 1.0
RESTART_SECONDS_MAX: Final = 60.0

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]
"""The type that Starlette and FastAPI accept as `lifespan`; it yields the request state, a mapping or None."""


def make_lifespan(
    open_app: Callable[[], Awaitable[None]],
    close_app: Callable[[], Awaitable[None]],
    work: Callable[[], AbstractAsyncContextManager[None]] | None,
    inner: Lifespan | None,
) -> Lifespan:
    """A lifespan: opens the application, enters `inner`, starts the workers, and undoes this in reverse order.

    It yields the state of `inner`.
    """

    @asynccontextmanager
    async def lifespan(web: Any) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(close_app)
            await open_app()
            state = None if inner is None else await stack.enter_async_context(inner(web))
            if work is not None:
                await stack.enter_async_context(work())
            yield state

    return lifespan


@asynccontextmanager
async def working(workers: Workers, shutdown_timeout: float) -> AsyncIterator[None]:
    """Run the workers in the background; at the end, let running jobs finish.

    A crash is logged and the workers are restarted; it does not affect the rest of the process.
    """
    workers.require_startable(shutdown_timeout)
    is_over = asyncio.Event()
    task = asyncio.create_task(_work(workers, shutdown_timeout, is_over), name="everwork-workers")
    try:
        yield
    finally:
        is_over.set()
        workers.stop()
        await task


async def _work(workers: Workers, shutdown_timeout: float, is_over: asyncio.Event) -> None:
    delays = backoff_delays(RESTART_SECONDS, RESTART_SECONDS_MAX)
    while not is_over.is_set():
        try:
            await workers.work(shutdown_timeout)
        except Exception as error:  # a crash of the runtime itself; errors in handlers do not get here
            delay = next(delays)
            log.error("workers crashed, restarting", in_seconds=round(delay, 1), exc_info=error)
            await first_of(is_over, seconds=delay)
        else:
            return
