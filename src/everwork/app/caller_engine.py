"""Creates the jobs of blocking callers in the calling thread, without a switch to the engine's thread."""

from __future__ import annotations

import asyncio
import atexit
import math
import os
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import cache
from typing import Any, Final, TypeVar
from weakref import WeakSet

from everwork.core.job import NewJob
from everwork.core.leasing import Created
from everwork.exceptions import EngineBusy, EngineError, EverworkError
from everwork.logs import get_logger
from everwork.service.service import JobService

log = get_logger("everwork")

T = TypeVar("T")

OPENS_AFTER: Final = 8
"""The engine is opened after this number of calls: programs that make fewer need no second connection."""
CROWD_SECONDS: Final = 0.02
"""How long callers use the engine's thread, where they share commits, after two calls have overlapped."""
NOTIFYING_SECONDS: Final = 5.0
"""How long callers use the engine's thread after one had to wait for a notification: there, none has to wait for it."""
LOOK_SECONDS: Final = 0.001
"""After this time without a call, the loop first checks for connections that were lost in the meantime."""
TRUST_SECONDS: Final = 10.0
"""After this time without a call, a query checks whether the store still answers: networks drop idle connections."""
AWAY_SECONDS: Final = 10.0
"""How long the engine's thread is used after the engine could not be opened or did not answer."""
ANSWER_SECONDS: Final = 2.0
"""How long opening the engine and that query may take."""
CLOSE_SECONDS: Final = 10.0
NESTED: Final = (
    "cannot enqueue here, in the middle of another blocking enqueue of the same thread, such as in a signal handler; "
    "nothing was written; let the handler only set a flag, and enqueue once it has returned"
)


class CallerEngine:
    """The engine of an application's blocking callers, one at a time; concurrent callers use the engine's thread.

    Its event loop runs only during a call, in the thread of the caller. So nothing here may depend on background
    tasks: workers, maintenance and offline mode stay in the engine's thread.
    """

    def __init__(self, make_service: Callable[[], JobService | None]) -> None:
        """`make_service` returns None if the store cannot be opened twice in this process: it is not asked again."""
        self._make_service = make_service
        self._lock = threading.Lock()
        self._holder = 0
        """The thread that holds the lock."""
        self._opened: _CallerLoop | None = None
        self._is_local = False
        self._calls = 0
        self._not_before = 0.0
        self._has_failed = False
        """Whether opening the engine has failed unexpectedly, which is logged only once."""
        self._is_closed = False
        self._pid = os.getpid()
        _engines.add(self)

    def create(self, jobs: list[NewJob]) -> list[Created] | None:
        """Create jobs in this thread; None, and nothing is created, if the caller must use the engine's thread."""
        if self._is_local and self._holder == threading.get_ident():
            # The engine's thread would wait for the lock of the transaction that cannot go on until this returns.
            raise EngineBusy(NESTED)
        if _is_loop_running():
            return None
        if self._lock.locked():
            self._not_before = max(self._not_before, time.monotonic() + CROWD_SECONDS)
            return None
        return self._alone(lambda: self._create(jobs))

    def _create(self, jobs: list[NewJob]) -> list[Created] | None:
        usable = self._usable()
        if usable is None:
            return None
        created = self._run(usable.create(jobs))
        if usable.has_waited:
            self._not_before = time.monotonic() + NOTIFYING_SECONDS
        return created

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Close the engine permanently, once the running call has ended."""
        self._is_closed = True
        # In a signal handler, this thread may be in the middle of a call, which then closes the engine when it ends.
        if self._holder != threading.get_ident() and self._lock.acquire(timeout=seconds):
            try:
                self._drop()
            finally:
                self._lock.release()

    def _alone(self, act: Callable[[], T]) -> T:
        """Hold the lock for a call. `with` releases it even if a signal handler raises an error between two lines."""
        thread = threading.get_ident()
        with self._lock:
            try:
                self._holder = thread
                try:
                    return act()
                finally:
                    if self._is_closed:
                        self._drop()
            finally:
                self._holder = 0

    def _usable(self) -> _CallerLoop | None:
        now = time.monotonic()
        if self._is_closed or now < self._not_before:
            return None
        if self._opened is None:
            self._calls += 1
            if self._calls >= OPENS_AFTER:
                self._calls = 0
                # In a separate thread: connecting can take longer than many creates, and no caller should wait for it.
                with suppress(RuntimeError):  # No more threads can be started.
                    threading.Thread(target=self._open, name="everwork-caller-engine", daemon=True).start()
        elif now - self._opened.used_at > TRUST_SECONDS and not self._run(self._opened.answers()):
            self._give_up()
        return self._opened

    def _open(self) -> None:
        self._alone(self._open_now)

    def _open_now(self) -> None:
        if self._opened is not None or self._is_closed:
            return
        is_open = False
        try:
            service = self._make_service()
            if service is None:
                self._not_before = math.inf
                return
            if not service.is_remote:
                self._is_local = True
                _watch_forks()
            self._opened = _CallerLoop(service)
            is_open = self._run(self._opened.open())
        except Exception:
            if not self._has_failed:
                log.exception("blocking callers use the engine's thread: they could not open an engine of their own")
            self._has_failed = True
        finally:
            if not is_open:
                self._give_up()

    def _give_up(self) -> None:
        self._drop()
        self._not_before = max(self._not_before, time.monotonic() + AWAY_SECONDS)

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        assert self._opened is not None, "it was opened by this call or before"  # noqa: S101 - for the type checker
        loop = self._opened.loop
        task: asyncio.Task[T] | None = None
        try:
            task = asyncio.Task(call, loop=loop)
            try:
                return loop.run_until_complete(task)
            finally:
                if loop.error is not None:
                    raise loop.error
        except BaseException as error:
            is_answer = task is not None and task.done() and isinstance(error, EverworkError)
            if loop.error is not None or not is_answer:
                self._drop()  # A signal handler may have raised this anywhere in the loop, whose state is unknown.
                if task is not None and task.done() and not task.cancelled():
                    task.exception()  # Marked as seen: it is not logged in addition.
            raise

    def _drop(self) -> None:
        opened, self._opened = self._opened, None
        if opened is None:
            return
        if not _is_loop_running():
            opened.close()
            return
        closing = threading.Thread(target=opened.close, name="everwork-close", daemon=True)
        closing.start()
        closing.join()

    # Around a fork ------------------------------------------------------------------------------

    def pause(self) -> bool:
        """Block callers of a local store during a fork, which pauses it; returns whether `resume` must be called.

        A remote store needs no pause: the child has its own application state, and never uses these connections.
        """
        if not self._is_local or self._pid != os.getpid() or self._holder == threading.get_ident():
            return False
        return self._lock.acquire()

    def resume(self) -> None:
        """Let callers in again."""
        self._lock.release()


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that an error in a callback stops, and that counts as closed in a forked child.

    asyncio would only log such an error, which a signal handler may have raised, and the caller could wait forever.
    In a forked child, the interpreter would close the loop and its connections at exit, and remove their descriptors
    from the poll set, which the child shares with the parent.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pid = os.getpid()
        self.error: BaseException | None = None
        """The error that has stopped the loop."""
        self.is_closing = False
        """Whether the loop only closes the engine: everything there has a deadline, and nothing is worth stopping."""

    def is_closed(self) -> bool:
        return super().is_closed() or self._pid != os.getpid()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Stop the loop after an error in a callback or protocol; log an error that a task leaves behind."""
        error = context.get("exception")
        if error is None or self.is_closing or not ("handle" in context or "protocol" in context):
            super().call_exception_handler(context)
            return
        self.error = self.error or error
        self.stop()


class _CallerLoop:
    """An open service and its event loop, which runs only during calls."""

    def __init__(self, service: JobService) -> None:
        # Not uvloop: starting and stopping this one costs less.
        self.loop = _Loop()
        self.loop.set_task_factory(self._new_task)
        self.service = service
        self.used_at = 0.0
        self.has_waited = False
        """Whether the last call had to wait for tasks of the engine after the jobs were created."""
        self._tasks: list[asyncio.Task[Any]] = []
        """The tasks that the engine has started during this call, such as one that sends a notification."""

    def _new_task(self, loop: asyncio.AbstractEventLoop, call: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(call, loop=loop, **options)
        self._tasks.append(task)
        return task

    async def open(self) -> bool:
        """Open the service, and a connection; False if the store is unavailable."""
        is_open = await self._succeeds(self.service.open(upkeep=False)) and await self.answers()
        await self._finish_tasks()  # What prepares the first calls would use up one of their connections.
        return is_open

    async def answers(self) -> bool:
        """Whether the store still answers; the engine may reconnect for this."""
        return await self._succeeds(self.service.now())

    async def create(self, jobs: list[NewJob]) -> list[Created]:
        """Create jobs, and wait for the tasks that the engine has started for this."""
        if time.monotonic() - self.used_at > LOOK_SECONDS:
            # The first iteration reads what has arrived since the last call, the second notifies lost connections.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        self._tasks.clear()
        try:
            return await self.service.create(jobs)
        finally:
            self.has_waited = await self._finish_tasks()
            self.used_at = time.monotonic()

    async def _finish_tasks(self) -> bool:
        """Wait for the tasks that the engine has started, and return whether there were any: the loop stops now."""
        left = [task for task in self._tasks if not task.done()]
        if left:
            await asyncio.wait(left, timeout=ANSWER_SECONDS)
        return bool(left)

    async def _succeeds(self, call: Coroutine[Any, Any, object]) -> bool:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await call
        except (EngineError, TimeoutError):
            return False
        self.used_at = time.monotonic()
        return True

    def close(self) -> None:
        """Close the service, if possible, and the loop."""
        self.loop.is_closing = True
        try:
            # Not from the task factory: an interrupted create waits for the tasks that it seems to have started.
            self.loop.run_until_complete(asyncio.Task(self._close(), loop=self.loop))
        finally:
            self.loop.close()

    async def _close(self) -> None:
        if left := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=ANSWER_SECONDS)
        with suppress(EngineError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.service.close()
        await asyncio.sleep(0)  # Aborted connections end in the next iteration.


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_engines: Final[WeakSet[CallerEngine]] = WeakSet()
_paused: Final[list[CallerEngine]] = []


@atexit.register
def _close_at_exit() -> None:
    for engine in [one for one in _engines if one._pid == os.getpid()]:  # noqa: SLF001 - of this module
        with suppress(Exception):  # The interpreter may no longer start threads.
            engine.close(0)


@cache
def _watch_forks() -> None:
    """Called after a local engine has registered its fork handlers, so that `_before_fork` runs before these."""
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_paused.clear)


def _before_fork() -> None:
    _paused.extend(engine for engine in list(_engines) if engine.pause())


def _after_fork() -> None:
    paused = _paused.copy()
    _paused.clear()  # Before the first is resumed: another thread that forks may be waiting for it.
    for engine in paused:
        engine.resume()
