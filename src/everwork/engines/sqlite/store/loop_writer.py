"""The writer for event loops that serve nothing but the engine."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import suppress

from everwork.engines.contract import Clock
from everwork.engines.sqlite.file_lock import FileLock
from everwork.engines.sqlite.store.connections import Answer, Call, Pause, is_undecodable
from everwork.engines.sqlite.store.writer import BUSY_MS, ThreadWriter, answers_of
from everwork.engines.sqlite.store_url import StoreUrl
from everwork.exceptions import EngineUnavailable


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
            answers, calls = self._peek_first(calls)
            if answers:
                self._answer(answers, False, False)
            if calls and self._begin_now() and self._finish_here(calls):
                return
        for call in calls:
            self._put_in_thread(call)

    def _put_in_thread(self, call: Call) -> None:
        self._in_thread += 1
        super()._put_in_thread(call)

    def _finish_here(self, calls: Sequence[Call]) -> bool:
        """Run calls in the started transaction; False if the thread must run them again, perhaps one by one."""
        try:
            values, woken, finished = self._transact(calls, has_begun=True)
        except BaseException as error:  # noqa: BLE001 - every error goes to the caller, not to the loop
            if len(calls) > 1 or is_undecodable(error.__cause__):
                return False
            self._answer([(calls[0].future, None, error)], False, False)
        else:
            self._answer(answers_of(calls, values), woken, finished)
        return True

    def _begin_now(self) -> bool:
        """Begin a transaction if that is possible without waiting."""
        if not self._lock.acquire_now():
            return False
        try:
            self._refuse_another_file()
            self._cursor.execute("PRAGMA busy_timeout = 0")
            try:
                self._cursor.execute("BEGIN IMMEDIATE")
            finally:
                self._cursor.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        except (sqlite3.Error, EngineUnavailable):
            # If it is busy, the thread waits; the thread reports any other error.
            self._lock.release()
            return False
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
        else:  # If the loop does not run, its owner does not start it until the fork is over.
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
