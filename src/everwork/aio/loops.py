"""Event loops: background work with a bounded tick and a stop that waits, and calls that wait for another loop."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from types import FrameType
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from everwork.aio.retrying import backoff_delays, engine_outage
from everwork.aio.wakeup import Wakeup
from everwork.exceptions import EngineError
from everwork.logs import get_logger

log = get_logger("everwork")

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class BackgroundLoop:
    """Calls `tick` until stopped. If a tick returns True, the next one follows immediately."""

    def __init__(self, name: str, tick: Callable[[], Awaitable[bool]], seconds: float) -> None:
        self._name = name
        self._tick = tick
        self._seconds = seconds
        self._stop = asyncio.Event()
        self._woken = Wakeup()
        self._task: asyncio.Task[None] | None = None
        self._outage = engine_outage(name)
        self.errors = 0

    def start(self) -> None:
        """Start ticking in the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    def wake(self) -> None:
        """Tick now, or once more if a tick is running; must be called in the event loop it was started in."""
        self._woken.notify()

    async def stop(self) -> None:
        """Stop after the tick that is running."""
        self._stop.set()
        self._woken.notify()
        if self._task is not None:
            await self._task

    async def abort(self) -> None:
        """Stop immediately, even in the middle of a tick that could wait forever."""
        self._stop.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        delays = backoff_delays()
        while not self._stop.is_set():
            again, seconds = False, self._seconds
            self._woken.clear()
            try:
                again = await self._tick()
                self._outage.over()
                delays = backoff_delays()
            except EngineError as error:
                self.errors += 1
                self._outage.report(error)
                # The work is not done yet: a lost connection must not cost a whole interval.
                seconds = min(seconds, next(delays))
            except Exception:
                self.errors += 1
                log.exception("background loop failed, continuing", loop=self._name, errors=self.errors)
            if not again:
                await self._sleep(seconds)

    async def _sleep(self, seconds: float) -> None:
        await self._woken.wait(seconds * random.uniform(0.6, 1.0))  # noqa: S311 - jitter, not a secret


class LoopLock:
    """A lock for an object that moves between event loops, one at a time: each loop gets its own."""

    def __init__(self) -> None:
        self._current: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    def here(self) -> asyncio.Lock:
        """The lock of the running loop."""
        loop = asyncio.get_running_loop()
        if self._current is None or self._current[0] is not loop:
            self._current = (loop, asyncio.Lock())
        return self._current[1]


async def first_of(
    *events: asyncio.Event, work: asyncio.Future[Any] | None = None, seconds: float | None = None
) -> None:
    """Wait until one of the events is set or `work` is done, for at most `seconds`."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    everything: list[asyncio.Future[Any]] = [*waiting] if work is None else [*waiting, work]
    try:
        await asyncio.wait(everything, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waiting:
            one.cancel()


async def within(seconds: float, call: Awaitable[T]) -> T:
    """The result of a call, or a `TimeoutError`: like `asyncio.timeout`, at a third of its cost."""
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"  # noqa: S101 - for the type checker
    cancelled_before, is_over = task.cancelling(), False

    def give_up() -> None:
        nonlocal is_over
        is_over = True
        task.cancel()

    timer = asyncio.get_running_loop().call_later(seconds, give_up)
    try:
        return await call
    except asyncio.CancelledError:
        if is_over and task.cancelling() - 1 <= cancelled_before:
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()
        if is_over:
            task.uncancel()  # Even if the call has swallowed it.


class TimeLimit:
    """A time limit for calls made one at a time: `with limit: await call`.

    All calls share one timer, and none is wrapped in a coroutine. A call that exceeds its limit ends at the next check,
    with a `TimeoutError`.
    """

    def __init__(self, seconds: float, check_seconds: float) -> None:
        self._seconds = seconds
        self._check_seconds = check_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelled_before = 0
        self._ends_at = 0.0
        self._is_over = False

    def start(self) -> None:
        """Start checking, in the running event loop."""
        self._loop = self._loop or asyncio.get_running_loop()
        if self._task is not None and not self._is_over and time.monotonic() > self._ends_at:
            self._is_over = True
            self._task.cancel()
        self._timer = self._loop.call_later(self._check_seconds, self.start)

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()

    def __enter__(self) -> None:
        # Finding the running loop costs a system call.
        self._task = task = asyncio.current_task(self._loop)
        assert task is not None, "a coroutine runs in a task"  # noqa: S101 - for the type checker
        self._cancelled_before = task.cancelling()
        self._ends_at = time.monotonic() + self._seconds

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        task, self._task = self._task, None
        if self._is_over and task is not None:
            self._is_over = False
            is_ours = task.cancelling() - 1 <= self._cancelled_before
            task.uncancel()  # Even if the call has swallowed it.
            if is_ours and isinstance(error, asyncio.CancelledError):
                raise TimeoutError from None


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop where it is available."""
    try:
        import uvloop  # noqa: PLC0415 - not available on every platform
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def shielded(work: Awaitable[T], on_cancel: Callable[[], None] = lambda: None) -> T:
    """Run `work` to its end even if the caller is cancelled; the cancellation is raised once it is done."""
    task = asyncio.ensure_future(work)
    _unfinished.add(task)
    task.add_done_callback(_unfinished.discard)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        on_cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # Otherwise, asyncio would log that the exception was never retrieved.
        raise


_unfinished: Final[set[asyncio.Future[Any]]] = set()


class Facade(Protocol[T_co]):
    """A blocking stand-in for an object with coroutine methods."""

    def _run(self, use: Callable[[T_co], Coroutine[Any, Any, R]]) -> R:
        """Run a coroutine of the object to its end, and return its result."""
        ...


def blocking(method: Callable[Concatenate[T, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Facade[T], P], R]:
    """A blocking version of a coroutine method: `cancel = blocking(Client.cancel)` in the body of `SyncClient`."""

    @wraps(method)
    def call(facade: Facade[T], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return facade._run(lambda target: method(target, *args, **kwargs))  # noqa: SLF001 - users see verbs only

    call.__qualname__ = f"Sync{method.__qualname__}"
    return call


def warn_if_loop_runs(facade: str, instead: str) -> bool:
    """Warn about a blocking call in a thread with a running event loop; returns whether there is one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    log.warning("blocking call inside a running event loop", call=facade, instead=f"await {instead}...", at=_caller())
    return True


def _caller() -> str:
    """The file and line of the calling user code."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - as Python's own warnings do
    while frame is not None and frame.f_globals.get("__name__", "").startswith("everwork."):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
