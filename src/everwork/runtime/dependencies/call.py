"""Calls handlers that have dependencies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any, Final

from everwork.runtime.attempt import Attempt, Stop
from everwork.runtime.calls import ArgumentsCall
from everwork.runtime.context import CompletesInTransaction, JobContext
from everwork.runtime.dependencies.opened import LoopSteps, Opened
from everwork.runtime.dependencies.process import OneTask, ProcessScope, ThreadSteps
from everwork.runtime.handler import Arguments, Handler
from everwork.runtime.threads import HandlerThreads

UNNAMED: Final = " context"
"""Passes the context to a call whose handler has no parameter for it; no parameter can have this name."""


class DependentCall(ArgumentsCall):
    """Opens a handler's dependencies before each call and closes them after it; both are part of the call.

    For a plain handler, dependencies run in its thread, except async ones. For an async handler, dependencies that are
    not async run in threads, so that they do not block the event loop.
    """

    def __init__(
        self, handler: Handler, arguments: Arguments, threads: HandlerThreads, transactions: CompletesInTransaction
    ) -> None:
        super().__init__(replace(handler, function=self._call, is_async=True), arguments, threads, transactions)
        self._context_name = arguments.context_name or UNNAMED
        self._dependent = handler
        self._plans = arguments.dependencies
        self._process = handler.process or ProcessScope()

    async def _call(self, **arguments: Any) -> Any:
        name = self._context_name or UNNAMED
        context: JobContext = arguments.pop(name) if name == UNNAMED else arguments[name]
        attempt = context._attempt  # noqa: SLF001 - the context is made for this call
        call_in = self._call_in_loop if self._dependent.is_async else self._call_in_thread
        return await call_in(attempt, context, arguments)

    async def _call_in_loop(self, attempt: Attempt, context: JobContext, arguments: dict[str, Any]) -> Any:
        opened = Opened(LoopSteps(self._threads), self._process.overrides, context, self._process)
        return await self._calling(opened, attempt, arguments)()

    async def _call_in_thread(self, attempt: Attempt, context: JobContext, arguments: dict[str, Any]) -> Any:
        task = OneTask()
        opened = Opened(ThreadSteps(task), self._process.overrides, context, self._process)
        call = partial(copy_context().run, _run_here, self._calling(opened, attempt, arguments))
        attempt.thread = self._threads.run(call)
        attempt.thread.add_done_callback(lambda _: task.close())
        try:
            return await asyncio.shield(attempt.thread)
        except asyncio.CancelledError:
            task.cancel_step()
            raise

    def _calling(
        self, opened: Opened, attempt: Attempt, arguments: dict[str, Any]
    ) -> Callable[[], Coroutine[Any, Any, Any]]:
        handler = self._dependent
        is_void = partial(_is_void, attempt)
        return partial(
            opened.call, handler.function, arguments, self._plans, is_async=handler.is_async, is_void=is_void
        )


def _is_void(attempt: Attempt) -> bool:
    """Whether the outcome of a call will be discarded, so that its dependencies must not commit anything."""
    is_stopped = attempt.stop is not None and attempt.stop is not Stop.SHUTDOWN
    return is_stopped or attempt.is_overdue(time.monotonic())


def _run_here(call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine that never suspends, in a thread without an event loop."""
    try:
        call().send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("a step of a plain handler was suspended")
