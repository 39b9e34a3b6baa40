"""The threads that own the connections: one writer, with group commit, and one reader."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

from everwork.engines.base import Clock
from everwork.engines.sqlite.lock import FileLock
from everwork.engines.sqlite.place import Place, connect, identity, unavailable
from everwork.engines.sqlite.transaction import Transaction
from everwork.exceptions import EngineUnavailable
from everwork.logs import get_logger

log = get_logger("everwork.sqlite")

T = TypeVar("T")
Act = Callable[[Transaction], T]
Look = Callable[[sqlite3.Cursor, int], T | None]
Ask = Callable[[sqlite3.Cursor, int], T]

CALLS_PER_COMMIT_MAX = 1_000
CLOSE_SECONDS = 10.0
WAL_BYTES_MAX = 8 * 2**20
BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


class Call(NamedTuple):
    """Something to do, and who waits for it. A look that answers makes the act unnecessary."""

    future: asyncio.Future[Any]
    act: Act[Any] | None
    look: Look[Any] | None


class Pause:
    """Asks a thread to close its connection until it is told to go on: SQLite must not be open across a fork."""

    def __init__(self) -> None:
        self.is_closed = threading.Event()
        self.goes_on = threading.Event()


Answer = tuple[asyncio.Future[Any], Any, BaseException | None]
Told = Callable[[bool, bool], None]
"""Told in the loop after a commit: work may be ready; a job may have finished."""


class Writer:
    """Runs calls in one thread; those that arrive while a transaction commits share the next one."""

    def __init__(self, place: Place, connection: sqlite3.Connection, lock: FileLock, clock: Clock) -> None:
        self._place = place
        self._connection = connection
        self._cursor = connection.cursor()
        self._lock = lock
        self._clock = clock
        self._file = identity(place)
        self._loop = asyncio.get_running_loop()
        self._inbox: SimpleQueue[Call | Pause | None] = SimpleQueue()
        self._closing = False
        self.after_commit: Callable[[bool, bool], None] = lambda *_: None
        """Told in the writer's thread, after each commit, for other processes."""
        self.told: Told = lambda *_: None
        self._thread = threading.Thread(target=self._run, name="everwork-sqlite-writer", daemon=True)
        self._thread.start()

    def submit(self, act: Act[T], look: Look[T] | None = None) -> asyncio.Future[T]:
        """Run an operation inside a transaction."""
        return self._put(act, look)

    def ask(self, ask: Ask[T]) -> asyncio.Future[T]:
        """Run a question outside any transaction (the only way to read a store in memory)."""
        return self._put(None, lambda cursor, now_ms: (ask(cursor, now_ms),))

    def _put(self, act: Act[Any] | None, look: Look[Any] | None) -> asyncio.Future[Any]:
        if self._closing:
            raise EngineUnavailable(f"cannot use {self._place.path}: the engine is closed; open a new one")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._inbox.put(Call(future, act, look))
        return future

    async def close(self) -> None:
        """Finish what was accepted, then stop."""
        if not self._closing:
            self._closing = True
            self._inbox.put(None)
        await asyncio.to_thread(_join, self._thread, self._place.path)

    def pause(self) -> Pause:
        """Close the connection between two transactions, until the pause ends."""
        pause = Pause()
        self._inbox.put(pause)
        return pause

    def _run(self) -> None:
        has_ended = False
        while not has_ended:
            calls, then = self._next_calls()
            answers, woken, finished = self._serve(calls)
            if answers:
                self._deliver(answers, woken, finished)
            if isinstance(then, Pause):
                self._connection = _reconnected(self._connection, self._place, then)
                self._cursor = self._connection.cursor()
            has_ended = then is None
        self._connection.close()

    def _next_calls(self) -> tuple[list[Call], Call | Pause | None]:
        """What has come in, and what ended the collecting: nothing more, a pause, or None for the end."""
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

    def _serve(self, calls: Sequence[Call]) -> tuple[list[Answer], bool, bool]:
        answers: list[Answer] = []
        to_do: list[Call] = []
        for call in calls:
            answer = _look(call, self._cursor, self._clock, self._place.path)
            if answer is not None:
                answers.append(answer)
            elif call.act is not None:
                to_do.append(call)
        woken = finished = False
        if to_do:
            try:
                values, woken, finished = self._transact(to_do)
                answers += [(call.future, value, None) for call, value in zip(to_do, values, strict=True)]
            except BaseException as error:  # noqa: BLE001 - whatever it is, it goes to the caller, not to this thread
                if len(to_do) == 1:
                    answers.append((to_do[0].future, None, error))
                else:
                    # One of them spoils the batch: each gets a transaction of its own.
                    for call in to_do:
                        more, *told = self._serve([call._replace(look=None)])
                        answers += more
                        woken, finished = woken or told[0], finished or told[1]
        return answers, woken, finished

    def _transact(self, calls: Sequence[Call]) -> tuple[list[Any], bool, bool]:
        with self._lock:
            try:
                self._refuse_another_file()
                self._begin()
                tx = Transaction(self._cursor, self._clock())
                values = [call.act(tx) for call in calls if call.act is not None]
                tx.flush()
                self._cursor.execute("COMMIT")
            except BaseException as error:
                if self._connection.in_transaction:
                    self._cursor.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise unavailable(self._place.path, error) from error
                raise
        try:
            self.after_commit(tx.woken, tx.finished)
        except OSError as error:
            # What is committed is committed: a wake-up that fails must not look like a refusal.
            log.warning("other processes were not woken", path=self._place.path, error=str(error))
        return values, tx.woken, tx.finished

    def _refuse_another_file(self) -> None:
        """A file that was removed or replaced still takes writes, and nobody would ever find them."""
        if self._file is not None and identity(self._place) != self._file:
            raise EngineUnavailable(
                f"cannot use {self._place.path}: the file was removed or replaced while it was open; start again"
            )

    def _begin(self) -> None:
        """Wait as long as it takes: somebody without our lock (the user's own transaction) may be writing."""
        while True:
            try:
                self._cursor.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in BUSY or self._closing:
                    raise
                log.warning("waiting for another program's write transaction", path=self._place.path)

    def _deliver(self, answers: list[Answer], woken: bool, finished: bool) -> None:
        try:
            self._loop.call_soon_threadsafe(self._answer, answers, woken, finished)
        except RuntimeError:
            log.warning("answers came after their event loop was closed", answers=len(answers))

    def _answer(self, answers: list[Answer], woken: bool, finished: bool) -> None:
        for future, value, error in answers:
            if future.cancelled():
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)
        self.told(woken, finished)

    def truncate_wal(self) -> None:
        """Cut the write-ahead log when a long reader has let it grow. Runs in the writer's thread."""
        wal = Path(self._place.path + "-wal")
        if self._place.in_memory or not wal.exists() or wal.stat().st_size <= WAL_BYTES_MAX:
            return
        with self._lock:
            self._cursor.execute("PRAGMA busy_timeout = 50")
            try:
                self._cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                self._cursor.execute("PRAGMA busy_timeout = 5000")


class Reader:
    """Answers questions in a thread of its own, so that they never wait for a commit."""

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
        await asyncio.to_thread(_join, self._thread, self._place.path)

    def _run(self) -> None:
        cursor = self._connection.cursor()
        while (call := self._inbox.get()) is not None:
            if isinstance(call, Pause):
                self._connection = _reconnected(self._connection, self._place, call, read_only=True)
                cursor = self._connection.cursor()
                continue
            answer = _look(call, cursor, self._clock, self._place.path, in_snapshot=True)
            if self._connection.in_transaction:
                cursor.execute("ROLLBACK")
            if answer is not None:
                try:
                    self._loop.call_soon_threadsafe(_resolve, answer)
                except RuntimeError:
                    log.warning("an answer came after its event loop was closed")
        self._connection.close()


def _join(thread: threading.Thread, path: str) -> None:
    """Wait for a thread, but not for ever: another process may hold the lock it waits for."""
    thread.join(CLOSE_SECONDS)
    if thread.is_alive():
        log.error("the store is held by another process, not waiting for it any longer", path=path)


def _reconnected(
    connection: sqlite3.Connection, place: Place, pause: Pause, *, read_only: bool = False
) -> sqlite3.Connection:
    connection.close()
    pause.is_closed.set()
    pause.goes_on.wait()
    return connect(place, read_only=read_only)


def _look(call: Call, cursor: sqlite3.Cursor, clock: Clock, path: str, *, in_snapshot: bool = False) -> Answer | None:
    """Answer a call by looking, if it can be. A question's answer comes in a tuple, so that None is an answer too."""
    if call.look is None:
        return None
    try:
        if in_snapshot:
            cursor.execute("BEGIN")
        value = call.look(cursor, clock())
    except sqlite3.Error as error:
        return call.future, None, unavailable(path, error)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it goes to the caller, not to this thread
        return call.future, None, error
    if value is None:
        return None
    return call.future, value[0] if call.act is None else value, None


def _resolve(answer: Answer) -> None:
    future, value, error = answer
    if not future.cancelled():
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
