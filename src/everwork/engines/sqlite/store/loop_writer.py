"""Writers that commit in an event loop: the engine's own loop, or the loop of an application's callers."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from everwork.engines.contract import Clock
from everwork.engines.sqlite.file_lock import FileLock
from everwork.engines.sqlite.store.connections import Action, Answer, Call, Pause, T, is_undecodable
from everwork.engines.sqlite.store.thread_writer import ThreadWriter
from everwork.engines.sqlite.store.writer import answers_of
from everwork.engines.sqlite.store_url import StoreUrl

SLOW_SECONDS: Final = 0.005
"""After a transaction that took longer than this, the thread writes for a while instead of the callers' loop."""
SLOW_FACTOR: Final = 20
"""For how many times the duration of that transaction."""
CROWD_SECONDS: Final = 0.02
"""How long callers share commits in the thread after two of them wrote in the same iteration of the loop."""
IN_A_ROW_MAX: Final = 16
"""How many transactions a loop runs in a row before other tasks get their turn."""


class LoopWriter(ThreadWriter):
    """Writes in the event loop itself while no other process writes, without a thread switch.

    For event loops that serve nothing but the engine. Calls of one loop iteration share a transaction. If the lock is
    not free immediately, the calls go to the thread, which may wait for it without blocking the loop.
    """

    def __init__(self, url: StoreUrl, connection: sqlite3.Connection, lock: FileLock, clock: Clock) -> None:
        self._calls: list[Call] = []
        self._in_thread = 0
        """Calls and pauses that the thread has not finished; until then, the connection belongs to the thread."""
        super().__init__(url, connection, lock, clock)

    def _put(self, call: Call) -> None:
        if not self._calls:
            self._loop.call_soon(self._run_iteration)
        self._calls.append(call)

    def _run_iteration(self) -> None:
        calls, self._calls = self._calls, []
        if not self._in_thread:
            try:
                calls = self._run_here(calls)
            except BaseException as error:
                self._end_interrupted()
                self._answer([(call.future, None, error) for call in calls], False, False)
                raise
        for call in calls:
            self._put_in_thread(call)

    def _run_here(self, calls: list[Call]) -> list[Call]:
        """Run calls in this thread, if that is possible without waiting; return those that it must leave undone."""
        answers, left = self._peek_first(calls)
        if answers:
            self._answer(answers, False, False)
        return [] if left and self._begin_now() and self._finish_here(left) else left

    def _put_in_thread(self, call: Call) -> None:
        self._in_thread += 1
        super()._put_in_thread(call)

    def _finish_here(self, calls: Sequence[Call]) -> bool:
        """Run calls in the started transaction; False if the thread must run them again, perhaps one by one."""
        try:
            values, woken, finished = self._transact(calls, has_begun=True)
        except BaseException as error:  # noqa: BLE001 - every error goes to the caller, not to the loop
            self._end_interrupted()
            if len(calls) > 1 or is_undecodable(error.__cause__):
                return False
            self._answer([(calls[0].future, None, error)], False, False)
        else:
            self._answer(answers_of(calls, values), woken, finished)
        return True

    def _deliver(self, answers: list[Answer], woken: bool, finished: bool) -> None:
        super()._deliver(answers, woken, finished)
        self._hand_back(len(answers))

    def _hand_back(self, finished: int) -> None:
        with suppress(RuntimeError):  # The loop is closed: the count is no longer used.
            self._loop.call_soon_threadsafe(self._take_back, finished)

    def _take_back(self, finished: int) -> None:
        self._in_thread -= finished

    def _take_calls(self) -> list[Call]:
        calls = super()._take_calls()
        self._take_back(len(calls))
        return calls

    async def close(self) -> None:
        """Finish what was accepted, then stop."""
        if self._calls:
            self._run_iteration()
        await super().close()

    def pause(self) -> Pause:
        """Close the connection between two transactions, until the pause ends. Thread-safe."""
        pause = Pause()
        if self._loop.is_running() and not _runs_here(self._loop):
            self._loop.call_soon_threadsafe(self._pause_in_thread, pause)
        else:  # If the loop is not running, its owner starts it only after the fork.
            self._pause_in_thread(pause)
        return pause

    def _pause_in_thread(self, pause: Pause) -> None:
        self._in_thread += 1
        self._inbox.put(pause)

    def _pause_here(self, pause: Pause) -> None:
        super()._pause_here(pause)
        self._hand_back(1)


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


class CallerWriter(ThreadWriter):
    """Writes in its callers' event loop, without a thread switch, while only one task writes: `do_now`.

    The loop also runs other code, so it never waits for another writer. After a slow transaction, or if several tasks
    write at the same time, callers share commits in the thread. The two threads never use the connection at the same
    time. A fork or a close needs only the thread and not the loop, which may be blocked or may have ended.
    """

    def __init__(self, url: StoreUrl, connection: sqlite3.Connection, lock: FileLock, clock: Clock) -> None:
        self._using = threading.Lock()
        self._task: asyncio.Task[Any] | None = None
        """The first task that has called in this iteration of the loop."""
        self._in_a_row = 0
        self._not_before = 0.0
        super().__init__(url, connection, lock, clock)
        self._unawaited: asyncio.Future[Any] = self._loop.create_future()
        """A placeholder for the future of a call that is run directly."""

    @property
    def must_pass(self) -> bool:
        """Whether a caller must first yield to the loop."""
        return self._in_a_row >= IN_A_ROW_MAX

    def do_now(self, action: Action[T]) -> list[T]:
        """Run an action in this thread; returns an empty list and does nothing if that might take long."""
        began = time.monotonic()
        if not self._comes_alone(began) or self._closing or not self._using.acquire(blocking=False):
            return []
        try:
            if not self._inbox.empty() or not self._begin_now():
                return []
            self._in_a_row += 1
            values, woken, finished = self._transact([Call(self._unawaited, action, None)], has_begun=True)
        except BaseException as error:
            self._end_interrupted()
            if is_undecodable(error.__cause__):
                return []
            raise
        finally:
            self._using.release()
            took = time.monotonic() - began
            if took > SLOW_SECONDS:
                self._not_before = began + took * (1 + SLOW_FACTOR)
        self.after_answers(woken, finished)
        return values

    def _comes_alone(self, now: float) -> bool:
        """Note a caller; returns whether it is the only one in this iteration, with no crowd or slow write before."""
        task = asyncio.current_task()
        if self._task is None:
            self._task, self._in_a_row = task, 0
            self._loop.call_soon(self._end_iteration)
        elif self._task is not task:
            self._not_before = max(self._not_before, now + CROWD_SECONDS)
        return now >= self._not_before

    def _end_iteration(self) -> None:
        self._task = None
        self._in_a_row = 0

    def _serve(self, calls: Sequence[Call]) -> tuple[list[Answer], bool, bool]:
        with self._using:
            return super()._serve(calls)

    def _pause_here(self, pause: Pause) -> None:
        with self._using:
            super()._pause_here(pause)
