"""The writer: one connection, one transaction at a time, and group commit."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from everwork.aio.clocks import boot_id, host_clock_ms
from everwork.codec.local_file import require_same_file, unavailable
from everwork.engines.contract import Clock
from everwork.engines.sqlite.file_lock import FileLock, LockWait
from everwork.engines.sqlite.store.clock import ClockGuard
from everwork.engines.sqlite.store.connections import (
    BUSY,
    Action,
    Answer,
    Call,
    Pause,
    Peek,
    Query,
    T,
    damaged_texts,
    data_version,
    is_undecodable,
    reconnected,
    resolve,
    try_peek,
)
from everwork.engines.sqlite.store_url import StoreUrl, identity
from everwork.engines.sqlite.transaction import Handed, Transaction
from everwork.exceptions import EngineBusy, EngineUnavailable
from everwork.logs import get_logger

log = get_logger("everwork.sqlite")

AfterCommit = Callable[[bool, bool], None]
"""Called after a commit: whether work may be ready, whether a job may have finished."""

WAL_BYTES_MAX = 8 * 2**20
OWN: Final = "to enqueue inside your own transaction, use within(session)"
BUSY_MS = 5_000
BUSY_SECONDS: Final = 10.0
"""How long a writer waits for another program's transaction; other programs do not use the lock file."""
CLOCK_CHECK_MS: Final = 1_000
"""How much time passes before the clock is checked for a jump again."""

commits: Final[Counter[str]] = Counter()
"""By path, the number of commits of all engines of this process since one of them checkpointed; may be inexact."""


class Writer(ABC):
    """Runs calls inside transactions; calls that arrive during a commit share the next one."""

    def __init__(self, url: StoreUrl, connection: sqlite3.Connection, lock: FileLock, clock: Clock) -> None:
        self._url = url
        self._connection = connection
        self._cursor = connection.cursor()
        self._busy_ms: int | None = None
        self._lock = lock
        self._clock = clock
        is_guarded = clock is host_clock_ms and not url.in_memory and boot_id()
        self._clock_guard = ClockGuard() if is_guarded else None
        self._clock_checked_ms = 0
        self._file = identity(url)
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._lock_wait: LockWait | None = None
        self.after_commit: AfterCommit = lambda *_: None
        """Called in the thread of the transaction; notifies other processes."""
        self.deliver: Callable[[Sequence[Handed]], None] = lambda _: None
        """Called in the thread of the transaction; sends jobs to waiting workers."""
        self.after_answers: AfterCommit = lambda *_: None
        """Called in the event loop, once the callers have their answers."""

    def submit(self, action: Action[T], peek: Peek[T] | None = None) -> asyncio.Future[T]:
        """Run an action inside a transaction, unless its `peek` function already has the answer."""
        self._put(call := self._call(action, peek))
        return call.future

    def query(self, query: Query[T]) -> asyncio.Future[T]:
        """Run a query outside any transaction (the only way to read a store in memory)."""
        self._put(call := self._call(None, lambda cursor, now_ms: (query(cursor, now_ms),)))
        return call.future

    def idle_data_version(self) -> asyncio.Future[int | None]:
        """The `data_version` while no transaction is in progress anywhere; None if one is."""
        self._put(call := self._call(None, lambda cursor, _: (self._idle_data_version(cursor),)))
        return call.future

    def _idle_data_version(self, cursor: sqlite3.Cursor) -> int | None:
        if not self._begin_now():
            return None
        try:
            return data_version(cursor)
        finally:
            self._end_interrupted()

    def _call(self, action: Action[Any] | None, peek: Peek[Any] | None) -> Call:
        if self._closing:
            raise EngineUnavailable(f"cannot use {self._url.path}: the engine is closed; open a new one")
        return Call(self._loop.create_future(), action, peek)

    @abstractmethod
    def _put(self, call: Call) -> None:
        """Schedule a call."""

    @abstractmethod
    def _put_in_thread(self, call: Call) -> None:
        """Schedule a call that may have to wait for the lock file, which must not block the event loop."""

    @abstractmethod
    async def close(self) -> None:
        """Finish what was accepted, then stop."""

    @abstractmethod
    def pause(self) -> Pause:
        """Close the connection between two transactions, until the pause ends. Thread-safe."""

    def may_fork(self, pause: Pause) -> bool:
        """Whether to fork before the connection is closed: if the writer waits for the lock file, it does not use it.

        Its callers get an error. The child may close its copy of the connection, which is in no transaction.
        """
        wait = self._lock_wait
        if wait is None or not wait.give_up_for(pause.is_over):
            return False
        log.error("forking although the store is locked", path=self._url.path, error=str(self._lock.busy()))
        return True

    def _serve(self, calls: Sequence[Call]) -> tuple[list[Answer], bool, bool]:
        answers, left = self._peek_first(calls)
        done, woken, finished = self._do(left) if left else ([], False, False)
        return answers + done, woken, finished

    def _peek_first(self, calls: Sequence[Call]) -> tuple[list[Answer], list[Call]]:
        """Answer the calls that need only a read without a transaction; return the others."""
        answers: list[Answer] = []
        left: list[Call] = []
        for call in calls:
            if call.peek is not None:
                self._wait_up_to(BUSY_MS)
            answer = try_peek(call, self._cursor, self._clock, self._url.path)
            if answer is not None:
                answers.append(answer)
            elif call.action is not None:
                left.append(call)
        return answers, left

    def _do(self, calls: Sequence[Call]) -> tuple[list[Answer], bool, bool]:
        """Run calls in one transaction; if one of them fails, each is run again in its own transaction."""
        try:
            values, woken, finished = self._transact(calls)
            return answers_of(calls, values), woken, finished
        except EngineBusy as error:
            return [(call.future, None, error) for call in calls], False, False
        except BaseException as error:  # noqa: BLE001 - whatever it is, it goes to the caller, not to this thread
            if is_undecodable(error.__cause__) and self._connection.text_factory is str:
                with damaged_texts(self._connection):
                    return self._do(calls)
            if len(calls) == 1:
                return [(calls[0].future, None, error)], False, False
        each = [self._do([call]) for call in calls]
        return [a for answers, *_ in each for a in answers], any(w for _, w, _ in each), any(f for *_, f in each)

    def _transact(self, calls: Sequence[Call], *, has_begun: bool = False) -> tuple[list[Any], bool, bool]:
        if not has_begun and not self._lock.acquire_now():
            self._wait_for_lock()
        try:
            if not has_begun:
                self._refuse_another_file()
                self._begin()
            tx = Transaction(self._cursor, self._clock())
            if not 0 <= tx.now_ms - self._clock_checked_ms < CLOCK_CHECK_MS:
                self._check_clock(tx)
            values = [call.action(tx) for call in calls if call.action is not None]
            tx.flush()
            self._cursor.execute("COMMIT")
            commits[self._url.path] += 1
        except BaseException as error:
            if self._connection.in_transaction:
                self._cursor.execute("ROLLBACK")
            self._clock_checked_ms = 0
            if isinstance(error, sqlite3.Error):
                raise unavailable(self._url.path, error) from error
            raise
        finally:
            self._lock.release()
        try:
            self.after_commit(tx.woken, tx.finished)
        except OSError as error:
            # The transaction is committed: a failed wake-up must not look like a failed call.
            log.warning("other processes were not woken", path=self._url.path, error=str(error))
        if tx.handed:
            self.deliver(tx.handed)
        return values, tx.woken, tx.finished

    def _refuse_another_file(self) -> None:
        """Refuse to write to a file that was deleted or replaced: the writes would be lost."""
        if self._file is not None:
            require_same_file(self._url.path, self._file)

    def _check_clock(self, tx: Transaction) -> None:
        if self._clock_guard is not None:
            self._clock_guard.check(tx)
        self._clock_checked_ms = tx.now_ms

    def _wait_for_lock(self) -> None:
        """Wait for the lock file until the callers give up (`ThreadWriter`). The kernel serves processes in order."""
        self._lock_wait = wait = LockWait()
        self._watch_wait()
        try:
            self._lock.acquire()
        finally:
            self._lock_wait = None
        if not wait.end():
            self._lock.release()
            wait.wait_for_fork()
            raise EngineBusy("the callers have given up")

    @abstractmethod
    def _watch_wait(self) -> None:
        """Have the event loop watch this wait."""

    def _begin(self) -> None:
        """Begin; wait if a writer without our lock is active, such as the user's own transaction."""
        self._wait_up_to(BUSY_MS)
        until = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self._cursor.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in BUSY or self._closing:
                    raise
                where = self._url.path
                if time.monotonic() >= until:
                    text = f"another transaction has held the write lock for more than {BUSY_SECONDS:g} s"
                    raise EngineBusy(f"cannot write {where}: {text}; nothing was written; {OWN}") from None
                log.warning("waiting for the write lock, which another transaction holds", path=where, hint=OWN)

    def _begin_now(self) -> bool:
        """Begin a transaction if that is possible without waiting."""
        try:
            if not self._lock.acquire_now():
                return False
            self._refuse_another_file()
            self._wait_up_to(0)
            self._cursor.execute("BEGIN IMMEDIATE")
        except (sqlite3.Error, EngineUnavailable):
            # If it is busy, the thread waits; the thread reports any other error.
            self._lock.release()
            return False
        except BaseException:
            self._end_interrupted()
            raise
        return True

    def _end_interrupted(self) -> None:
        """Leave no lock behind after an error anywhere, even between two lines: a signal handler may have raised it.

        This does nothing after a transaction that has ended.
        """
        try:
            if self._connection.in_transaction:
                self._connection.rollback()
        finally:
            self._lock.release()

    def _wait_up_to(self, busy_ms: int) -> None:
        """Set how long SQLite waits for other programs, if that changes: setting it costs as much as writing a row."""
        if self._busy_ms != busy_ms:
            self._cursor.execute(f"PRAGMA busy_timeout = {busy_ms}")
            self._busy_ms = busy_ms

    def _answer(self, answers: list[Answer], woken: bool, finished: bool) -> None:
        for answer in answers:
            resolve(answer)
        self.after_answers(woken, finished)

    async def truncate_wal(self) -> None:
        """Truncate the write-ahead log when a long read has let it grow."""
        wal = Path(self._url.path + "-wal")
        if not self._url.in_memory and wal.exists() and wal.stat().st_size > WAL_BYTES_MAX:  # noqa: ASYNC240 - quick
            call = self._call(None, self._truncate_wal)
            self._put_in_thread(call)
            await call.future

    def _truncate_wal(self, cursor: sqlite3.Cursor, _now_ms: int) -> tuple[None]:
        if not self._lock.acquire_now():
            self._wait_for_lock()
        try:
            self._wait_up_to(50)
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            self._lock.release()
        return (None,)

    def _pause_here(self, pause: Pause) -> None:
        self._connection = reconnected(self._connection, self._url, pause)
        self._cursor = self._connection.cursor()
        self._busy_ms = None


def answers_of(calls: Sequence[Call], values: Sequence[Any]) -> list[Answer]:
    """The answers to calls whose transaction is committed."""
    return [(call.future, value, None) for call, value in zip(calls, values, strict=True)]
