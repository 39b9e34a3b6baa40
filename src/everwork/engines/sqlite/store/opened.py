"""What exists while the engine is open: threads, wake-ups, and polling for writes of other processes."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from everwork.aio.clocks import host_clock_ms
from everwork.aio.wakeup import Wake, Watch
from everwork.core.leasing import Demand
from everwork.engines.contract import Clock
from everwork.engines.contract.jobs import JobFlow
from everwork.engines.sqlite import file_lock, processes
from everwork.engines.sqlite.file_lock import FileLock
from everwork.engines.sqlite.hand_over import SqliteHandOver
from everwork.engines.sqlite.processes import DONE, WORK, ProcessNotifier, Wakeup
from everwork.engines.sqlite.store.connections import Pause, Query, Reader, T, data_version
from everwork.engines.sqlite.store.log_watch import LogWatch
from everwork.engines.sqlite.store.writer import Writer, commits
from everwork.engines.sqlite.store_url import StoreUrl, connect
from everwork.exceptions import EngineError, EngineUnavailable
from everwork.logs import get_logger

log = get_logger("everwork.sqlite")

POLL_SECONDS = 0.1
"""How often a waiting process checks whether another one has written, while any might: the fallback if sockets fail."""
COMMITS_PER_CHECKPOINT = 100
START = (0, 0, 0)
FULL_SCAN_EVERY_MS = 3_600_000
Position = tuple[int, int, int]
"""A finished job: queue, state, key."""


class RetentionScan(NamedTuple):
    """How far the search for finished jobs past their retention has progressed.

    Keys roughly follow the age of jobs, so the first jobs of a queue in a state show whether any is old: `after` skips
    the others. A job may finish long after younger ones, though: `full_scan_after` visits every job, slowly, once an
    hour.
    """

    after: Position = START
    full_scan_after: Position = START
    full_scan_since_ms: int = 0

    def is_full_scan_done(self, now_ms: int) -> bool:
        """Whether every job was visited within the last hour."""
        return self.full_scan_after == START and 0 <= now_ms - self.full_scan_since_ms < FULL_SCAN_EVERY_MS


@dataclass(slots=True)
class SweepState:
    """How far the sweep has progressed, when it last tidied up, and when it last checked the counts of running jobs."""

    scan: RetentionScan = field(default_factory=RetentionScan)
    tidied_at_ms: int = 0
    counted_at_ms: int = 0


class OpenStore:
    """Threads, connections and wake-ups of an open engine."""

    def __init__(self, url: StoreUrl, clock: Clock, writer: Writer, lock: FileLock, schema_version: int) -> None:
        self.schema_version = schema_version
        self.pid = os.getpid()
        self.sweep_state = SweepState()
        self._loop = asyncio.get_running_loop()
        self._lock = lock
        folder = None if url.in_memory else Path(url.path + ".wake")
        self.work, self.done = Wakeup(WORK, folder), Wakeup(DONE, folder)
        self.hand_over = SqliteHandOver(self.work, folder)
        self.writer = writer
        self.writer.after_answers = self._notify
        self.writer.deliver = self.hand_over.deliver
        self._reader: Reader | None = None
        self._scanner: Reader | None = None
        self._probe: sqlite3.Connection | None = None
        self._notifier: ProcessNotifier | None = None
        if folder is not None:
            self._reader, self._scanner = (Reader(url, connect(url, read_only=True), clock) for _ in range(2))
            self._probe = connect(url, read_only=True)
            self._notifier = ProcessNotifier(folder)
            self.writer.after_commit = self._notify_processes
        self._url = url
        self._probing = threading.Lock()
        self._data_version = self._read_data_version()
        self._writer_data_version: int | None = None
        """As the writer's connection saw it last: its own commits do not change it."""
        self._timer: asyncio.TimerHandle | None = None
        self._log_watch = LogWatch(f"{url.path}-wal", self._poll_if_awaited)
        if not url.in_memory:
            processes.watch(self)

    async def query(self, query: Query[T]) -> T:
        """Run a query on the reader; a store in memory has only its writer's connection."""
        answer: Any = await (self._reader or self.writer).query(query)
        return answer  # type: ignore[no-any-return]

    async def scan(self, query: Query[T]) -> T:
        """Run a query that may read many jobs on a separate connection, so that queries for single jobs do not wait."""
        answer: Any = await (self._scanner or self.writer).query(query)
        return answer  # type: ignore[no-any-return]

    def hand_over_for(self, demands: Sequence[Demand]) -> SqliteHandOver | None:
        """What parks these demands; None if none of them can be parked."""
        return self.hand_over if self.hand_over.may_park(demands) else None

    async def checkpoint(self) -> None:
        """Checkpoint the write-ahead log in another thread, so that no commit has to.

        Only after many commits: a store that is hardly used does not need more syncs.
        """
        if self._scanner is not None and commits[self._url.path] >= COMMITS_PER_CHECKPOINT:
            commits[self._url.path] = 0
            with suppress(EngineError):  # Then, a commit does it.
                await self._scanner.query(lambda cursor, _: cursor.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone())

    def poll(self) -> None:
        """Check for writes by other processes as long as a caller is waiting: regularly, or once one writes."""
        if self._timer is None and self._probe is not None and not self._log_watch.is_armed:
            self._timer = self._loop.call_later(POLL_SECONDS, self._check_data_version)

    def _poll_if_awaited(self) -> None:
        if self.work.is_awaited or self.done.is_awaited:
            self.poll()

    async def close(self) -> None:
        """Finish what was accepted, then release everything."""
        processes.forget(self)
        if self._timer is not None:
            self._timer.cancel()
        self._log_watch.close(self._loop)
        self.hand_over.close()
        for wakeup in (self.work, self.done):
            wakeup.close(self._loop)
        await self.writer.close()
        for reader in self._readers:
            await reader.close()
        with self._probing:
            if self._probe is not None:
                self._probe.close()
                self._probe = None
        if self._notifier is not None:
            self._notifier.close()
        self.hand_over.release()
        self._lock.close()

    def _notify(self, woken: bool, finished: bool) -> None:
        if woken:
            self.work.notify()
        if finished:
            self.done.notify()

    def _notify_processes(self, woken: bool, finished: bool) -> None:
        if self._notifier is not None and woken:
            self._notifier.notify(WORK, self.work.name)
        if self._notifier is not None and finished:
            self._notifier.notify(DONE, self.done.name)

    def _check_data_version(self) -> None:
        self._timer = None
        version, before = self._read_data_version(), self._data_version
        self._data_version = version
        if version != before:
            self._ask_writer()
        elif (self.work.is_awaited or self.done.is_awaited) and self._log_watch.arm():
            self._stop_polling()
        self._poll_if_awaited()

    def _ask_writer(self) -> None:
        """Wake waiting calls after a write of another process; a write of this process has already woken them."""
        with suppress(EngineUnavailable):
            self.writer.query(data_version).add_done_callback(self._notify_if_changed)

    def _stop_polling(self) -> None:
        """Poll no more until something is written to the log, unless a transaction is in progress.

        What that transaction had written before the log was watched would not be reported at its commit.
        """
        try:
            self.writer.idle_data_version().add_done_callback(self._notify_or_poll)
        except EngineUnavailable:
            self._log_watch.disarm()

    def _notify_or_poll(self, asked: asyncio.Future[int | None]) -> None:
        version = None if asked.cancelled() or asked.exception() is not None else asked.result()
        if version is None:
            self._log_watch.disarm()
            self._poll_if_awaited()
        else:
            self._notify_of(version)

    def _notify_if_changed(self, asked: asyncio.Future[int]) -> None:
        self._notify_of(None if asked.cancelled() or asked.exception() is not None else asked.result())

    def _notify_of(self, version: int | None) -> None:
        if version is None or version != self._writer_data_version:
            self._writer_data_version = version
            self._notify(True, True)

    def _read_data_version(self) -> int:
        with self._probing:
            if self._probe is None:
                return 0
            return data_version(self._probe)

    def drop_in_child(self) -> None:
        """Close what a forked child must not keep open; nothing else of its parent's is touched."""
        for wakeup in (self.work, self.done):
            wakeup.drop_in_child()
        self._log_watch.drop_in_child()

    def pause(self) -> list[Pause]:
        """Close every connection before a fork; calls that arrive during the fork wait."""
        self._probing.acquire()
        if self._probe is not None:
            self._probe.close()
        return [self.writer.pause(), *(reader.pause() for reader in self._readers)]

    def wait_until_paused(self, pauses: Sequence[Pause]) -> None:
        """Wait until the connections are closed, but not forever for a writer that itself waits for another process."""
        writing, *reading = pauses
        while not writing.is_closed.wait(file_lock.WAIT_SECONDS) and not self.writer.may_fork(writing):
            log.warning("a fork waits for a transaction to end", path=self._url.path)
        for pause in reading:
            while not pause.is_closed.wait(file_lock.WAIT_SECONDS):
                log.warning("a fork waits for a query to end", path=self._url.path)

    @property
    def _readers(self) -> list[Reader]:
        return [reader for reader in (self._reader, self._scanner) if reader is not None]

    def resume(self) -> None:
        """Reconnect in the parent after the fork."""
        self._writer_data_version = None  # The writer has a new connection now.
        try:
            if self._probe is not None:
                self._probe = connect(self._url, read_only=True)
        except (sqlite3.Error, EngineError):
            self._probe = None  # The file was removed: writers get an error, but other callers must not be affected.
        finally:
            self._probing.release()


class SqliteBase:
    """What every topic of the engine works on: the URL, the clock, and the store while it is open."""

    def __init__(
        self, url: StoreUrl, clock: Clock | None = None, *, own_loop: bool = False, for_callers: bool = False
    ) -> None:
        """`own_loop`: the loop serves nothing but this engine; `for_callers`: see `Lifecycle.for_callers`."""
        self._url = url
        self._own_loop = own_loop
        self._for_callers = for_callers
        self._clock = clock or host_clock_ms
        self._opened: OpenStore | None = None

    @property
    def _store(self) -> OpenStore:
        if self._opened is None or self._opened.pid != os.getpid():
            raise EngineUnavailable(f"cannot use {self._url.path}: it is not connected yet, or is closed")
        return self._opened


class SqliteWaits(SqliteBase, JobFlow):
    """Waiting for work and for finished jobs."""

    def mark(self) -> int:
        return self._store.work.sequence

    async def wait(self, types: Sequence[str], timeout_ms: int, since: int | None = None) -> bool:  # noqa: ARG002
        # A wake-up is for every type: checking for work without a lock is cheaper than telling types apart.
        self._store.poll()
        return await self._store.work.wait(timeout_ms, since)

    def watch(self, types: Sequence[str], timeout_ms: int, since: int, wake: Wake) -> Watch:  # noqa: ARG002
        self._store.poll()
        return self._store.work.watch(timeout_ms, since, wake)

    def mark_finished(self) -> int:
        return self._store.done.sequence

    async def wait_finished(self, timeout_ms: int, since: int | None = None) -> bool:
        self._store.poll()
        return await self._store.done.wait(timeout_ms, since)
