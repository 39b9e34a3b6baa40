"""Open dependencies: their values, and how they are closed, in reverse order."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import copy_context
from functools import partial
from types import AsyncGeneratorType, GeneratorType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from everwork.aio.loops import within
from everwork.core.checks import shown
from everwork.core.texts import error_text
from everwork.exceptions import BadConfiguration, Signal
from everwork.logs import get_logger
from everwork.runtime.context import JobContext
from everwork.runtime.dependencies.plan import Overrides, Plan
from everwork.runtime.threads import HandlerThreads

if TYPE_CHECKING:
    from everwork.runtime.dependencies.process import ProcessScope

log = get_logger("everwork")

T = TypeVar("T")

CLOSE_SECONDS: Final = 5.0
"""How long closing one dependency of a stopped attempt can take."""
MISSING: Final = object()


class Steps(Protocol):
    """How opening and closing are run: from the event loop or from a handler's thread."""

    async def blocking(self, call: Callable[[], T]) -> T:
        """Call a function that may block."""
        ...

    async def awaiting(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop."""
        ...


class LoopSteps:
    """For async handlers: calls that may block run in threads."""

    def __init__(self, threads: HandlerThreads) -> None:
        self._threads = threads

    async def blocking(self, call: Callable[[], T]) -> T:
        """Call the function in a thread. A thread cannot be stopped, so wait briefly even if the attempt is stopped."""
        running = self._threads.run(partial(copy_context().run, call))
        try:
            result: T = await asyncio.shield(running)
        except asyncio.CancelledError:
            if not running.done():
                await asyncio.wait([running], timeout=CLOSE_SECONDS)
            raise
        return result

    async def awaiting(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await the coroutine."""
        return await coroutine


class Exit(NamedTuple):
    """How a dependency is closed."""

    name: str
    manager: AbstractContextManager[Any] | AbstractAsyncContextManager[Any]
    is_async: bool


class Opened:
    """The dependencies of one attempt, or of one process."""

    def __init__(
        self,
        steps: Steps,
        overrides: Overrides,
        context: JobContext | None = None,
        process: ProcessScope | None = None,
    ) -> None:
        self._steps = steps
        self._overrides = overrides
        self._context = context
        self._process = process
        self._values: dict[object, Any] = {}
        self._opening: set[object] = set()
        self._exits: list[Exit] = []
        self._is_closed = False
        self._pid = os.getpid()

    async def call(
        self,
        function: Callable[..., Any],
        arguments: dict[str, Any],
        plans: Mapping[str, Plan],
        *,
        is_async: bool,
        is_void: Callable[[], bool],
    ) -> Any:
        """Open a handler's dependencies, call the handler, and close them; only then does the call end.

        If the attempt was stopped in the meantime, they are closed as if the call had been cancelled.
        """
        try:
            for name, plan in plans.items():
                arguments[name] = await self.value(plan)
            if is_void():  # The attempt was stopped while a thread, which cannot be cancelled, was opening them.
                raise asyncio.CancelledError("the attempt was stopped")
            result = function(**arguments)
            if is_async:
                result = await result
            elif isinstance(result, Coroutine):  # A plain decorator around an async function returned a coroutine.
                result = await self._steps.awaiting(result)
            if is_void():
                raise asyncio.CancelledError("the attempt was stopped")
        except GeneratorExit:
            raise
        except BaseException as error:
            closed = await self.close(error)
            if closed is None or closed is error:
                raise
            raise closed  # noqa: B904 - the handler's error is its context
        closed = await self.close(None)
        if closed is not None:
            raise closed
        return result

    def found(self, plan: Plan) -> Any:
        """The value of a dependency that is open, or `MISSING`."""
        return self._values.get(plan.key, MISSING) if plan.is_cached else MISSING

    async def value(self, plan: Plan) -> Any:
        """The value of a dependency, opened if necessary."""
        plan = self._overrides.current(plan)
        if plan.scope == "process" and self._process is not None:
            found = self._process.found(plan)
            return await self._steps.awaiting(self._process.value(plan)) if found is MISSING else found
        found = self.found(plan)
        if found is not MISSING:
            return found
        if plan.key in self._opening:
            raise BadConfiguration(f"overrides: dependency '{plan.name}' depends on itself")
        self._opening.add(plan.key)
        try:
            value = await self._open(plan, {name: await self.value(one) for name, one in plan.needs.items()})
        finally:
            self._opening.discard(plan.key)
        if plan.is_cached:
            self._values[plan.key] = value
        return value

    async def close(self, error: BaseException | None) -> BaseException | None:
        """Close everything, last opened first, even if something fails; returns the error that counts.

        Each exit gets the error so far. An exit that swallows the error does not turn the failure into a success.
        """
        self._is_closed = True
        if os.getpid() != self._pid:
            return error  # The handler forked: open dependencies belong to the parent process.
        while self._exits:
            one = self._exits.pop()
            try:
                await self._leave(one, error)
            except BaseException as raised:  # noqa: BLE001 - user code
                error = _after(one, error, raised)
        return error

    # Open ---------------------------------------------------------------------------------------

    async def _open(self, plan: Plan, arguments: dict[str, Any]) -> Any:
        if plan.context_name is not None:
            arguments[plan.context_name] = self._context
        call = partial(plan.function, **arguments)
        made = call() if plan.is_async else await self._steps.blocking(partial(self._call, plan, call))
        if isinstance(made, Coroutine):
            return await self._steps.awaiting(made)
        if isinstance(made, AsyncGeneratorType):
            value = await self._steps.awaiting(_first_awaited(plan.name, made))
            self._exits.append(Exit(plan.name, asynccontextmanager(lambda: made)(), is_async=True))
            return value
        is_async_manager = plan.is_manager and hasattr(made, "__aenter__")
        if is_async_manager or isinstance(made, contextlib._AsyncGeneratorContextManager):  # noqa: SLF001 - not public
            value = await self._steps.awaiting(made.__aenter__())
            self._exits.append(Exit(plan.name, made, is_async=True))
            return value
        return made

    def _call(self, plan: Plan, call: Callable[[], Any]) -> Any:
        """Call a dependency that is not async, and enter the context manager it returned, in the same thread."""
        made = call()
        if isinstance(made, GeneratorType):
            value = _first(plan.name, made)
            self._keep(Exit(plan.name, contextmanager(lambda: made)(), is_async=False))
            return value
        if isinstance(made, contextlib._GeneratorContextManager):  # noqa: SLF001 - it has no public name
            value = made.__enter__()
            self._keep(Exit(plan.name, made, is_async=False))
            return value
        return self._entered(plan, made) if plan.is_manager else made

    def _entered(self, plan: Plan, made: Any) -> Any:
        if hasattr(made, "__aenter__") or isinstance(made, Coroutine | AsyncGeneratorType):
            return made
        if not hasattr(made, "__enter__"):
            raise BadConfiguration(f"{plan.name}: must return a context manager, not {shown(made)}")
        value = made.__enter__()
        self._keep(Exit(plan.name, made, is_async=False))
        return value

    def _keep(self, exit: Exit) -> None:
        """Keep an exit for the end. If the attempt was stopped and everything is closed already, run it now."""
        self._exits.append(exit)
        if self._is_closed:
            with contextlib.suppress(IndexError):
                _leave_blocking(self._exits.pop(), asyncio.CancelledError("the attempt was stopped"))

    # Close --------------------------------------------------------------------------------------

    async def _leave(self, one: Exit, error: BaseException | None) -> None:
        if not one.is_async:
            await self._steps.blocking(partial(_leave_blocking, one, error))
            return
        manager: Any = one.manager
        leaving = manager.__aexit__(type(error) if error else None, error, error.__traceback__ if error else None)
        is_stopped = isinstance(error, asyncio.CancelledError)
        await self._steps.awaiting(within(CLOSE_SECONDS, leaving) if is_stopped else leaving)


def _leave_blocking(one: Exit, error: BaseException | None) -> None:
    manager: Any = one.manager
    manager.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)


def _after(one: Exit, error: BaseException | None, raised: BaseException) -> BaseException:
    """The error that counts: the first, unless the second is a signal or a cancellation of this task."""
    if raised is error:
        return raised
    is_signal = isinstance(raised, Signal) and isinstance(error, Exception)
    if error is None or is_signal or (isinstance(raised, asyncio.CancelledError) and _is_cancelled()):
        raised.add_note(f"raised on exit of dependency '{one.name}'")
        return raised
    error.add_note(f"dependency '{one.name}' also failed on exit: {type(raised).__name__}: {error_text(raised)}")
    log.warning("dependency failed on exit", dependency=one.name, exc_info=raised)
    return error


def _is_cancelled() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task.cancelling() > 0


def _first(name: str, generator: GeneratorType[Any, Any, Any]) -> Any:
    try:
        return next(generator)
    except StopIteration:
        raise BadConfiguration(f"dependency '{name}': its generator did not yield") from None


async def _first_awaited(name: str, generator: AsyncGeneratorType[Any, Any]) -> Any:
    try:
        return await anext(generator)
    except StopAsyncIteration:
        raise BadConfiguration(f"dependency '{name}': its generator did not yield") from None
