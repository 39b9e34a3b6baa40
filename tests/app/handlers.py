"""Handlers with queues of their own, run by the runtime without an application."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from everwork import Everwork
from everwork.runtime.handler import Arguments, Handler, QueueKey
from everwork.runtime.ledger import Ledger, bytes_for
from everwork.runtime.runtime import Runtime
from everwork.runtime.shutdown import StopSignal
from tests.app.waiting import DEADLINE_S, until


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


@asynccontextmanager
async def handling(app: Everwork, *handlers: Handler, ledger: Ledger | None = None) -> AsyncIterator[Runtime]:
    """Handlers at work on the application's store; at the end everything they began has been settled."""
    await app.open()
    stopped = StopSignal()
    runtime = Runtime(
        app._host.portal, app.worker, stopped, app._host.transactions, process="p1", handlers=handlers, ledger=ledger
    )
    running = asyncio.create_task(runtime.run(None))
    await until(lambda: running.done() or runtime._fetcher is not None)
    try:
        yield runtime
    except BaseException:
        stopped.request()  # A failed test may have left a handler waiting: do not wait for it.
        raise
    finally:
        stopped.request()
        await asyncio.wait_for(running, 2 * DEADLINE_S)
