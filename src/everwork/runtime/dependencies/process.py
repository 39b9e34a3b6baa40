"""Process scope: the state that a lifespan yields, and shared dependencies, kept while the workers are running."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from everwork.core.checks import shown
from everwork.core.texts import error_text
from everwork.exceptions import BadConfiguration
from everwork.logs import get_logger
from everwork.runtime.dependencies.opened import MISSING, LoopSteps, Opened
from everwork.runtime.dependencies.plan import Overrides, Plan, is_async, name_of
from everwork.runtime.shutdown import StopSignal
from everwork.runtime.threads import HandlerThreads

log = get_logger("everwork")

T = TypeVar("T")
Step = tuple[Coroutine[Any, Any, Any], "Future[Any]"]


class OneTask:
    """Runs coroutines one after the other in one task: a context manager must be exited by the task that entered it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._inbox: asyncio.Queue[Step | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._is_busy = False
        self._is_step_cancelled = False

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine; can be called from any thread."""
        future: Future[T] = Future()
        try:
            self._loop.call_soon_threadsafe(self._put, (coroutine, future))
        except RuntimeError:
            coroutine.close()
            raise
        return future

    def cancel_step(self) -> None:
        """Cancel the running coroutine, if any; called in the event loop."""
        if self._is_busy and self._task is not None:
            self._is_step_cancelled = True
            self._task.cancel()

    def close(self) -> None:
        """End the task; called in the event loop."""
        if self._task is not None:
            self._inbox.put_nowait(None)

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this task."""
        return self._task is not None and asyncio.current_task() is self._task

    def _put(self, step: Step) -> None:
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._run())
        self._inbox.put_nowait(step)

    async def _run(self) -> None:
        while (step := await self._inbox.get()) is not None:
            coroutine, future = step
            if not future.set_running_or_notify_cancel():
                coroutine.close()  # Its caller has stopped waiting.
                continue
            self._is_busy = True
            try:
                await self._step(coroutine, future)
            finally:
                self._is_busy = self._is_step_cancelled = False

    async def _step(self, coroutine: Coroutine[Any, Any, Any], future: Future[Any]) -> None:
        try:
            value = await coroutine
        except BaseException as error:
            future.set_exception(error)
            if _ends_task(error) and not self._is_step_cancelled:
                raise
        else:
            future.set_result(value)
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()


def _ends_task(error: BaseException) -> bool:
    """Whether an error ends the event loop or the program, and not only the coroutine."""
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError):
        return task is not None and task.cancelling() > 0
    return not isinstance(error, Exception)


class ThreadSteps:
    """For plain handlers: every step runs in the handler's thread, except async ones."""

    def __init__(self, task: OneTask) -> None:
        self._task = task

    async def blocking(self, call: Callable[[], T]) -> T:
        """Call the function in this thread."""
        return call()

    async def awaiting(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine in the event loop while this thread waits."""
        return self._task.submit(coroutine).result()


class ProcessScope:
    """The lifespan state and the shared dependencies of one worker process, opened and closed in one event loop."""

    def __init__(self, overrides: Overrides | None = None) -> None:
        self.state: Any = None
        self.overrides = overrides or Overrides()
        self._threads = HandlerThreads()
        self._opened = Opened(LoopSteps(self._threads), self.overrides)
        self._task: OneTask | None = None
        self._is_closed = False

    async def open(self, lifespan: Plan) -> None:
        """Enter the lifespan and keep the value it yields."""
        try:
            self.state = await self.value(lifespan)
        except asyncio.CancelledError:
            if self._task is not None:
                self._task.cancel_step()
            raise
        except BadConfiguration:
            raise
        except Exception as error:
            raise BadConfiguration(f"lifespan: failed on entry: {_located(error)}") from error

    def found(self, plan: Plan) -> Any:
        """The value of a dependency that is open, or `MISSING`."""
        return MISSING if self._is_closed else self._opened.found(plan)

    async def value(self, plan: Plan) -> Any:
        """The value of a shared dependency, opened on first use."""
        if self._is_closed:  # A thread has outlived the workers: a dependency opened now would never be closed.
            raise asyncio.CancelledError("the workers have stopped")
        if self._task is None:
            self._task = OneTask()
        return await asyncio.wrap_future(self._task.submit(self._opened.value(plan)))

    async def close(self, seconds: float) -> None:
        """Close the shared dependencies, last opened first, and exit the lifespan, within the given seconds."""
        self._is_closed = True
        if self._task is None:
            return
        try:
            self._task.cancel_step()  # No job is waiting for a dependency that is still being opened.
            closing = asyncio.wrap_future(self._task.submit(self._opened.close(None)))
        except RuntimeError:
            return  # Its event loop is closed.
        try:
            error = await asyncio.wait_for(closing, seconds)
        except TimeoutError:
            log.error("lifespan and shared dependencies did not close in time", seconds=seconds)
            self._task.cancel_step()
        else:
            if error is not None:
                log.error("lifespan or shared dependency failed on exit", error=_located(error), exc_info=error)
        finally:
            self._task.close()
            self._threads.close()

    @property
    def is_current(self) -> bool:
        """Whether the caller is one of the coroutines of this scope."""
        return self._task is not None and self._task.is_current


class ProcessScopes:
    """The process scopes of an application: the workers and ticks of one event loop share one scope."""

    def __init__(self, lifespan: Plan | None, overrides: Overrides) -> None:
        self._lifespan = lifespan
        self._overrides = overrides
        self._shared: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = WeakKeyDictionary()

    @asynccontextmanager
    async def entered(self, stopped: StopSignal, close_seconds: float) -> AsyncIterator[ProcessScope | None]:
        """The scope of this loop, entered by the first user and exited by the last; None if stopped first."""
        loop = asyncio.get_running_loop()
        shared = self._shared.setdefault(loop, _Shared(ProcessScope(self._overrides)))
        shared.users += 1
        try:
            async with shared.lock:
                is_open = await self._open(shared, stopped)
            yield shared.scope if is_open else None
        finally:
            shared.users -= 1
            async with shared.lock:
                if not shared.users:
                    await self._close(shared, close_seconds)

    async def _open(self, shared: _Shared, stopped: StopSignal) -> bool:
        if self._lifespan is None or shared.is_open:
            return True
        shared.is_open = not await stopped.comes_before(shared.scope.open(self._lifespan))
        return shared.is_open

    async def _close(self, shared: _Shared, close_seconds: float) -> None:
        try:
            await shared.scope.close(close_seconds)
        finally:
            shared.scope, shared.is_open = ProcessScope(self._overrides), False

    @property
    def is_current(self) -> bool:
        """Whether the caller is the lifespan or a shared dependency, which must not wait for itself to finish."""
        return any(shared.scope.is_current for shared in self._shared.values())


@dataclass(slots=True, eq=False)
class _Shared:
    scope: ProcessScope
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    is_open: bool = False


def lifespan_plan(function: object, *given: object) -> Plan | None:
    """A validated lifespan, which can take the given argument or none."""
    if function is None:
        return None
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise BadConfiguration(f"lifespan: must be a function with @asynccontextmanager, not {shown(function)}")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    required = [
        one for one in parameters if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if len(required) > len(given) or any(one.kind is one.KEYWORD_ONLY for one in required):
        takes = "the application or no argument" if given else "no argument"
        raise BadConfiguration(f"lifespan: {name_of(function)} must take {takes}, not '{required[-1].name}'")
    call = partial(function, *given[: len(positional)])
    return Plan(
        function=call,
        key=call,
        name="lifespan",
        scope="process",
        is_cached=False,
        is_async=is_async(call),
        is_manager=True,
    )


def _located(error: BaseException) -> str:
    """An error and the innermost line of the user's program in its traceback, as one line."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if not one.filename.startswith(_LIBRARIES) and "site-packages" not in one.filename]
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error_text(error)}{where}"


_LIBRARIES: Final = (str(Path(__file__).parents[2]), str(Path(traceback.__file__).parent), "<")
