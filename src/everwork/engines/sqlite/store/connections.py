"""Calls to a connection in another thread; the reader, which runs queries in its own thread."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from everwork.codec.local_file import unavailable
from everwork.engines.contract import Clock
from everwork.engines.rules import damaged_text
from everwork.engines.sqlite.store_url import StoreUrl, connect
from everwork.engines.sqlite.transaction import Transaction
from everwork.exceptions import EngineError, EngineUnavailable
from everwork.logs import get_logger

log = get_logger("everwork.sqlite")

T = TypeVar("T")
Action = Callable[[Transaction], T]
Peek = Callable[[sqlite3.Cursor, int], T | None]
Query = Callable[[sqlite3.Cursor, int], T]

CLOSE_SECONDS = 10.0
BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


class Call(NamedTuple):
    """An action and the future of its caller. If `peek` returns a value, the action is not needed."""

    future: asyncio.Future[Any]
    action: Action[Any] | None
    peek: Peek[Any] | None


class Pause:
    """Makes a thread close its connection until it is resumed: SQLite must not be open across a fork."""

    def __init__(self) -> None:
        self.is_closed = threading.Event()
        self.is_over = threading.Event()


Answer = tuple[asyncio.Future[Any], Any, BaseException | None]


async def in_daemon(act: Callable[[], T]) -> T:
    """Run a function that may have to wait for another process.

    Its thread does not delay exit, unlike the event loop's own threads.
    """
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()
    threading.Thread(target=_answer, args=(act, done), name="everwork-sqlite-wait", daemon=True).start()
    return await asyncio.wrap_future(done)


def _answer(act: Callable[[], T], done: Future[T]) -> None:
    try:
        done.set_result(act())
    except BaseException as error:  # noqa: BLE001 - it goes to the caller
        done.set_exception(error)


def join(thread: threading.Thread, path: str) -> None:
    """Wait for a thread, but not forever: another process may hold the lock that the thread is waiting for."""
    thread.join(CLOSE_SECONDS)
    if thread.is_alive():
        log.error("the store is locked by another process, no longer waiting for it", path=path)


def reconnected(
    connection: sqlite3.Connection, url: StoreUrl, pause: Pause, *, read_only: bool = False
) -> sqlite3.Connection:
    """Close a connection for the duration of a pause."""
    connection.close()
    pause.is_closed.set()
    pause.is_over.wait()
    try:
        return connect(url, read_only=read_only)
    except (sqlite3.Error, EngineError):
        # The file was removed. The thread continues without tables: calls get errors, and the next fork does not have
        # to wait.
        return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)


def try_peek(
    call: Call, cursor: sqlite3.Cursor, clock: Clock, path: str, *, in_snapshot: bool = False
) -> Answer | None:
    """Answer a call with its `peek` function, if possible. A query's result is wrapped in a tuple, so that None can
    be a result.
    """
    if call.peek is None:
        return None
    try:
        if in_snapshot:
            cursor.execute("BEGIN")
        value = _peeked(call.peek, cursor, clock)
    except sqlite3.Error as error:
        return call.future, None, unavailable(path, error)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it goes to the caller, not to this thread
        return call.future, None, error
    if value is None:
        return None
    return call.future, value[0] if call.action is None else value, None


def _peeked(peek: Peek[T], cursor: sqlite3.Cursor, clock: Clock) -> T | None:
    try:
        return peek(cursor, clock())
    except sqlite3.OperationalError as error:
        if not is_undecodable(error):
            raise
    with damaged_texts(cursor.connection):
        return peek(cursor, clock())


def is_undecodable(error: BaseException | None) -> bool:
    """Whether a statement failed because a text in the file is not UTF-8."""
    return isinstance(error, sqlite3.OperationalError) and str(error).startswith("Could not decode to UTF-8")


@contextmanager
def damaged_texts(connection: sqlite3.Connection) -> Iterator[None]:
    """Read texts that are not UTF-8 instead of failing; not always, because this is slower for every text."""
    connection.text_factory = damaged_text
    try:
        yield
    finally:
        connection.text_factory = str


def data_version(cursor: sqlite3.Cursor | sqlite3.Connection, _now_ms: int = 0) -> int:
    """A number that changes with the commits of other connections, but not with the connection's own."""
    (version,) = cursor.execute("PRAGMA data_version").fetchone()
    return int(version)


def resolve(answer: Answer) -> None:
    """Resolve the future of a caller; runs in the event loop."""
    future, value, error = answer
    if not future.done():
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)


class Reader:
    """Runs queries in its own thread: they never wait for a commit."""

    def __init__(self, url: StoreUrl, connection: sqlite3.Connection, clock: Clock) -> None:
        self._url = url
        self._connection = connection
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._inbox: SimpleQueue[Call | Pause | None] = SimpleQueue()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="everwork-sqlite-reader", daemon=True)
        self._thread.start()

    def query(self, query: Query[T]) -> asyncio.Future[T]:
        """Run a query in one snapshot."""
        if self._closing:
            raise EngineUnavailable(f"cannot use {self._url.path}: the engine is closed; open a new one")
        future: asyncio.Future[T] = self._loop.create_future()
        self._inbox.put(Call(future, None, lambda cursor, now_ms: (query(cursor, now_ms),)))
        return future

    def pause(self) -> Pause:
        """Close the connection between two queries, until the pause ends."""
        pause = Pause()
        self._inbox.put(pause)
        return pause

    async def close(self) -> None:
        """Answer pending queries, then stop."""
        if not self._closing:
            self._closing = True
            self._inbox.put(None)
        await in_daemon(lambda: join(self._thread, self._url.path))

    def _run(self) -> None:
        cursor = self._connection.cursor()
        while (call := self._inbox.get()) is not None:
            if isinstance(call, Pause):
                self._connection = reconnected(self._connection, self._url, call, read_only=True)
                cursor = self._connection.cursor()
                continue
            answer = try_peek(call, cursor, self._clock, self._url.path, in_snapshot=True)
            if self._connection.in_transaction:
                cursor.execute("ROLLBACK")
            if answer is not None:
                try:
                    self._loop.call_soon_threadsafe(resolve, answer)
                except RuntimeError:
                    log.warning("a result arrived after its event loop was closed")
        self._connection.close()
