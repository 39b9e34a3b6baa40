"""Calls handlers and turns their results into outcomes."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from types import CoroutineType
from typing import Any, Final

from everwork.codec.json import decode_stored_object, encode
from everwork.codec.values import not_stored
from everwork.core import ending
from everwork.core import outcome as o
from everwork.core.limits import PAYLOAD_BYTES_MAX
from everwork.exceptions import BadConfiguration, Fail, InvalidInput
from everwork.runtime.attempt import Attempt
from everwork.runtime.context import CompletesInTransaction, JobContext
from everwork.runtime.events import EventCollector, collector_of_call
from everwork.runtime.handler import Arguments, Handler
from everwork.runtime.job_log import log_not_stored
from everwork.runtime.middleware import Call, chained
from everwork.runtime.threads import HandlerThreads


class ArgumentsCall:
    """Calls a handler with the job's variables as its arguments, inside its middleware."""

    waits_for_threads: Final = True
    """During a shutdown, a handler in a thread can finish."""

    def __init__(
        self, handler: Handler, arguments: Arguments, threads: HandlerThreads, transactions: CompletesInTransaction
    ) -> None:
        self._handler = handler
        self._middleware = handler.middleware
        self._bind = arguments.bind
        self._context_name = arguments.context_name
        self._collector_name = arguments.collector_name
        self._threads = threads
        self._transactions = transactions
        self._state = None if handler.process is None else handler.process.state

    async def run(self, attempt: Attempt) -> o.Outcome:
        """Bind the arguments, call the handler, and turn its return value into an outcome."""
        job: Any = attempt.job  # A `LeasedJob`: only jobs from a store have arguments.
        if self._middleware:
            call = chained(self._middleware, functools.partial(self._innermost, attempt))
            try:
                described = Call.of(job)
            except InvalidInput as error:
                return ending.unusable(job.key, job.attempt, error)
            return _completed(attempt, await call(described))
        try:
            arguments = self._bind(decode_stored_object("variables", job.variables))
        except InvalidInput as error:
            return ending.unusable(attempt.job.key, attempt.job.attempt, f"argument {error}")
        value = await self._invoke(attempt, arguments)
        if type(value) is CoroutineType:
            value = await value  # A plain decorator around an async function returned a coroutine not yet run.
        return _completed(attempt, value)

    def why_unfinished(self, attempt: Attempt) -> str:
        """The text to add to the error of an attempt that is still running after its timeout."""
        return "; its thread is still running" if attempt.is_in_thread else "; it ignored cancellation"

    async def _innermost(self, attempt: Attempt, call: Call) -> Any:
        """The call itself, inside all middleware."""
        if attempt.is_in_thread:
            raise BadConfiguration("the previous call is still running in its thread")
        try:
            arguments = self._bind(dict(call.arguments))
        except InvalidInput as error:
            raise Fail(f"argument {error}") from None
        value = await self._invoke(attempt, arguments)
        return await value if type(value) is CoroutineType else value

    def _invoke(self, attempt: Attempt, arguments: dict[str, Any]) -> Awaitable[Any]:
        """Return an awaitable for the handler's result; an extra coroutine here would slow down every job."""
        handler = self._handler
        collector = EventCollector(handler.events_max) if handler.can_emit else None
        if self._context_name is not None:
            arguments[self._context_name] = JobContext(attempt, self._transactions, collector, self._state)
        if collector is not None:
            return self._collecting(attempt, arguments, collector)
        if handler.is_async:
            result: Awaitable[Any] = handler.function(**arguments)
            return result
        return _in_thread(self._threads, attempt, handler.function, **arguments)

    async def _collecting(self, attempt: Attempt, arguments: dict[str, Any], collector: EventCollector) -> Any:
        """Call the handler with its own event collector, shared by the tasks and threads that it starts."""
        if self._collector_name is not None:
            arguments[self._collector_name] = collector
        token = collector_of_call.set(collector)
        handler = self._handler
        try:
            if handler.is_async:
                result = await handler.function(**arguments)
            else:
                result = await _in_thread(self._threads, attempt, handler.function, **arguments)
            if type(result) is CoroutineType:
                result = await result
            attempt.collector = collector  # Events of a call that failed are not published.
            return result
        finally:
            collector_of_call.reset(token)
            collector.close()


class WholeJobCall:
    """Calls a handler with the job itself."""

    waits_for_threads: Final = False
    """During a shutdown, the attempt of a handler in a thread is released."""

    def __init__(self, handler: Handler, threads: HandlerThreads) -> None:
        self._function = handler.function
        self._is_async = handler.is_async
        self._threads = threads

    async def run(self, attempt: Attempt) -> o.Outcome:
        """Call the handler and turn its return value into an outcome."""
        if self._is_async:
            return _completed(attempt, await self._function(attempt.job))
        return _completed(attempt, await _in_thread(self._threads, attempt, self._function, attempt.job))

    def why_unfinished(self, attempt: Attempt) -> str:  # noqa: ARG002 - the same for all
        """The text to add to the error of an attempt that is still running after its timeout."""
        return "; it is still running"


HandlerCall = ArgumentsCall | WholeJobCall


def _in_thread(
    threads: HandlerThreads, attempt: Attempt, function: Callable[..., Any], *given: Any, **arguments: Any
) -> asyncio.Future[Any]:
    """Call the handler in a thread, in a copy of this context, because middleware may have set context variables."""
    attempt.thread = threads.run(functools.partial(copy_context().run, function, *given, **arguments))
    return asyncio.shield(attempt.thread)


def _completed(attempt: Attempt, value: Any) -> o.Outcome:
    events = () if attempt.collector is None else tuple(attempt.collector.jobs)
    if value is None:
        # If the handler has committed its completion itself, this repeats it and changes nothing.
        return attempt.completion or o.Complete(attempt.job.key, attempt.job.attempt, None, events)
    return o.Complete(attempt.job.key, attempt.job.attempt, _stored(attempt, value), events)


def _stored(attempt: Attempt, value: Any) -> str:
    """The result to store. If it cannot be stored, a note replaces it, because the work is already done."""
    values = attempt.handler.result
    try:
        dumped = value if values is None else values.dump("result", value, may_narrow=True)
        return encode("result", dumped, PAYLOAD_BYTES_MAX)
    except Exception as error:  # noqa: BLE001 - also user code: the validators of a model
        log_not_stored(attempt, error)
        return not_stored(attempt.job.key, error)
