"""Handlers with queues of their own, run by the runtime without an application."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from everwork import Everwork
from everwork.runtime.fetcher import Fetcher
from everwork.runtime.handler import Arguments, Handler, QueueKey
from everwork.runtime.job_log import JobLog
from everwork.runtime.ledger import Ledger, bytes_for
from everwork.runtime.runtime import Runtime
from everwork.runtime.shutdown import StopSignal
from tests.app.waiting import DEADLINE_S


def a_handler(function: Callable[..., Any], *types: str, **settings: Any) -> Handler:
    """A handler as a worker has it: its name, and one or more queues."""
    given = {"name": types[0], "is_final": True, "concurrency": 1, "timeout": 60.0, **settings}
    return Handler(
        queues=tuple(QueueKey(type) for type in types),
        function=function,
        arguments=Arguments(function),
        is_async=inspect.iscoroutinefunction(function),
        **given,
    )


def a_ledger(slots: int = 8) -> Ledger:
    """A table as a child process sees it; the parent's is `Ledger(ledger._memory)`."""
    return Ledger(memoryview(bytearray(bytes_for(slots))))


def a_runtime(
    app: Everwork, stopped: StopSignal, *handlers: Handler, ledger: Ledger | None = None, owns_name: bool = False
) -> Runtime:
    """A runtime on the store of an application that is open."""
    make_fetcher = partial(Fetcher, app.service, app.worker, job_log=JobLog("p1"), ledger=ledger, owns_name=owns_name)
    return Runtime(make_fetcher, app._host.portal, stopped, app._host.transactions, handlers=handlers, ledger=ledger)


@asynccontextmanager
async def handling(
    app: Everwork, *handlers: Handler, ledger: Ledger | None = None, owns_name: bool = False
) -> AsyncIterator[Runtime]:
    """Handlers at work on the application's store; at the end everything they began has been settled."""
    await app.open()
    stopped = StopSignal()
    runtime = a_runtime(app, stopped, *handlers, ledger=ledger, owns_name=owns_name)
    running = asyncio.create_task(runtime.run(None))
    try:
        yield runtime
    except BaseException:
        stopped.request()  # A failed test may have left a handler waiting: do not wait for it.
        raise
    finally:
        stopped.request()
        await asyncio.wait_for(running, 2 * DEADLINE_S)


def fetcher_of(runtime: Runtime) -> Fetcher:
    """Where a runtime's jobs come from; use it in the engine's loop."""
    assert isinstance(runtime._source, Fetcher)
    return runtime._source
