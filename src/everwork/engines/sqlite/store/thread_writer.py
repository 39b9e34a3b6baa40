"""The writer that commits in a thread of its own."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

from everwork.engines.contract import Clock
from everwork.engines.sqlite.file_lock import FileLock
from everwork.engines.sqlite.store.connections import Answer, Call, Pause, in_daemon, join, resolve
from everwork.engines.sqlite.store.writer import Writer
from everwork.engines.sqlite.store_url import StoreUrl
from everwork.logs import get_logger

log = get_logger("everwork.sqlite")

CALLS_PER_COMMIT_MAX = 1_000
WATCH_SECONDS: Final = 1.0
WATCHES_MAX: Final = 10
"""The event loop checks every second whether the writer waits for the lock file, until this many checks in a row find
that it does not."""


class ThreadWriter(Writer):
    """Writes in its own thread: the disk does not block the event loop."""

    def __init__(self, url: StoreUrl, connection: sqlite3.Connection, lock: FileLock, clock: Clock) -> None:
        super().__init__(url, connection, lock, clock)
        self._inbox: SimpleQueue[Call | Pause | None] = SimpleQueue()
        self._serving: Sequence[Call] = ()
        self._watches_left = 0
        self._watching = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="everwork-sqlite-writer", daemon=True)
        self._thread.start()

    def _put(self, call: Call) -> None:
        self._inbox.put(call)

    def _put_in_thread(self, call: Call) -> None:
        self._inbox.put(call)

    def _watch_wait(self) -> None:
        with self._watching:
            is_watched, self._watches_left = self._watches_left > 0, WATCHES_MAX
        if not is_watched:
            with suppress(RuntimeError):  # The loop is closed, so there are no callers.
                self._loop.call_soon_threadsafe(self._check_wait)

    def _check_wait(self) -> None:
        """Fail the waiting calls if another process does not release the lock file; runs in the event loop."""
        wait = self._lock_wait
        if wait is not None and wait.give_up():
            self._refuse_waiting()
        with self._watching:
            self._watches_left = WATCHES_MAX if wait is not None else self._watches_left - 1
            is_watched = self._watches_left > 0
        if is_watched:
            self._loop.call_later(WATCH_SECONDS, self._check_wait)

    def _refuse_waiting(self) -> None:
        """Fail the calls that wait for the lock, and those queued behind them. The thread keeps waiting."""
        busy = self._lock.busy()
        for call in [*self._serving, *self._take_calls()]:
            resolve((call.future, None, busy))

    def _take_calls(self) -> list[Call]:
        """Take the calls out of the inbox, and leave the rest there."""
        items: list[Call | Pause | None] = []
        with suppress(Empty):
            while True:
                items.append(self._inbox.get_nowait())
        for item in items:
            if not isinstance(item, Call):
                self._inbox.put(item)
        return [item for item in items if isinstance(item, Call)]

    async def close(self) -> None:
        """Finish what was accepted, then stop."""
        if not self._closing:
            self._closing = True
            self._inbox.put(None)
        await in_daemon(lambda: join(self._thread, self._url.path))

    def pause(self) -> Pause:
        """Close the connection between two transactions, until the pause ends."""
        pause = Pause()
        self._inbox.put(pause)
        return pause

    def _run(self) -> None:
        has_ended = False
        while not has_ended:
            calls, then = self._next_calls()
            self._serving = calls
            answers, woken, finished = self._serve(calls)
            if answers:
                self._deliver(answers, woken, finished)
            if isinstance(then, Pause):
                self._pause_here(then)
            has_ended = then is None
        self._connection.close()

    def _next_calls(self) -> tuple[list[Call], Call | Pause | None]:
        """The next batch of calls, and the item that ended it: a call, a pause, or None to stop."""
        calls: list[Call] = []
        item = self._inbox.get()
        while isinstance(item, Call):
            calls.append(item)
            if len(calls) == CALLS_PER_COMMIT_MAX:
                break
            try:
                item = self._inbox.get_nowait()
            except Empty:
                break
        return calls, item

    def _deliver(self, answers: list[Answer], woken: bool, finished: bool) -> None:
        try:
            self._loop.call_soon_threadsafe(self._answer, answers, woken, finished)
        except RuntimeError:
            log.warning("results arrived after their event loop was closed", answers=len(answers))
