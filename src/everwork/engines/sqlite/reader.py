"""The reader: answers questions in a thread of its own."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from queue import SimpleQueue

from everwork.engines.base import Clock
from everwork.engines.sqlite.calls import Ask, Call, Pause, T, in_daemon, join, look_at, reconnected, resolve
from everwork.engines.sqlite.store_url import Place
from everwork.exceptions import EngineUnavailable
from everwork.logs import get_logger

log = get_logger("everwork.sqlite")


class Reader:
    """Questions never wait for a commit."""

    def __init__(self, place: Place, connection: sqlite3.Connection, clock: Clock) -> None:
        self._place = place
        self._connection = connection
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._inbox: SimpleQueue[Call | Pause | None] = SimpleQueue()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="everwork-sqlite-reader", daemon=True)
        self._thread.start()

    def ask(self, ask: Ask[T]) -> asyncio.Future[T]:
        """Run a question in one snapshot."""
        if self._closing:
            raise EngineUnavailable(f"cannot use {self._place.path}: the engine is closed; open a new one")
        future: asyncio.Future[T] = self._loop.create_future()
        self._inbox.put(Call(future, None, lambda cursor, now_ms: (ask(cursor, now_ms),)))
        return future

    def pause(self) -> Pause:
        """Close the connection between two questions, until the pause ends."""
        pause = Pause()
        self._inbox.put(pause)
        return pause

    async def close(self) -> None:
        """Answer what was asked, then stop."""
        if not self._closing:
            self._closing = True
            self._inbox.put(None)
        await in_daemon(lambda: join(self._thread, self._place.path))

    def _run(self) -> None:
        cursor = self._connection.cursor()
        while (call := self._inbox.get()) is not None:
            if isinstance(call, Pause):
                self._connection = reconnected(self._connection, self._place, call, read_only=True)
                cursor = self._connection.cursor()
                continue
            answer = look_at(call, cursor, self._clock, self._place.path, in_snapshot=True)
            if self._connection.in_transaction:
                cursor.execute("ROLLBACK")
            if answer is not None:
                try:
                    self._loop.call_soon_threadsafe(resolve, answer)
                except RuntimeError:
                    log.warning("an answer came after its event loop was closed")
        self._connection.close()
