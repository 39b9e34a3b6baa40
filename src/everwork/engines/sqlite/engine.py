"""The SQLite engine: opening and closing a store. Every other topic of the contract has its own module."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Mapping

from everwork.aio.clocks import host_clock_ms
from everwork.codec.local_file import create_private
from everwork.core.retention import KEEP_MS
from everwork.core.states import State
from everwork.engines.contract import Clock, Engine
from everwork.engines.sqlite.activate import SqliteActivate
from everwork.engines.sqlite.change import SqliteChanges
from everwork.engines.sqlite.create import SqliteCreate
from everwork.engines.sqlite.file_lock import FileLock
from everwork.engines.sqlite.migrate import migrate, migrations, stored_version
from everwork.engines.sqlite.move import SqliteMoving
from everwork.engines.sqlite.own_transaction import SqliteTransactions
from everwork.engines.sqlite.read import SqliteQuestions
from everwork.engines.sqlite.reclaim import SqliteReclaim
from everwork.engines.sqlite.registry import SqliteRegistry
from everwork.engines.sqlite.settle import SqliteSettle
from everwork.engines.sqlite.store.connections import in_daemon
from everwork.engines.sqlite.store.loop_writer import CallerWriter, LoopWriter
from everwork.engines.sqlite.store.opened import OpenStore, SqliteWaits
from everwork.engines.sqlite.store.thread_writer import ThreadWriter
from everwork.engines.sqlite.store.verify import verify
from everwork.engines.sqlite.store_url import StoreUrl, check_file, connect, require_jobs
from everwork.engines.sqlite.sweep import SqliteSweep
from everwork.engines.values import Durability, Health, Schema, StoreProblem


class SqliteEngine(
    SqliteCreate,
    SqliteActivate,
    SqliteSettle,
    SqliteReclaim,
    SqliteTransactions,
    SqliteWaits,
    SqliteChanges,
    SqliteQuestions,
    SqliteRegistry,
    SqliteMoving,
    SqliteSweep,
    Engine,
):
    """Jobs in one SQLite file, shared by any number of processes on one machine."""

    @classmethod
    def from_url(cls, url: str, *, clock: Clock | None = None, own_loop: bool = False) -> SqliteEngine:
        """The engine for a `sqlite:` URL."""
        return cls(StoreUrl.from_url(url), clock, own_loop=own_loop)

    async def open(self, *, create: bool = True) -> None:
        if self._opened is None or self._opened.pid != os.getpid():
            connection, lock, schema_version = await in_daemon(lambda: self._connect(create))
            make = CallerWriter if self._for_callers else LoopWriter if self._own_loop else ThreadWriter
            writer = make(self._url, connection, lock, self._clock)
            self._opened = store = OpenStore(self._url, self._clock, writer, lock, schema_version)
            store.hand_over.take_back = self._take_back

    def _connect(self, create: bool) -> tuple[sqlite3.Connection, FileLock, int]:
        check_file(self._url)
        if not create:
            require_jobs(self._url)
        lock = FileLock(None if self._url.in_memory else self._url.path)
        try:
            lock.acquire_soon()
            try:
                return self._migrated(lock)
            finally:
                lock.release()
        except BaseException:
            lock.close()
            raise

    def _migrated(self, lock: FileLock) -> tuple[sqlite3.Connection, FileLock, int]:
        if not self._url.in_memory:
            create_private(self._url.path)
        connection = connect(self._url)
        try:
            return connection, lock, migrate(connection, self._url.path)
        except BaseException:
            connection.close()
            raise

    async def close(self) -> None:
        store, self._opened = self._opened, None
        if store is not None and store.pid == os.getpid():
            await store.close()

    def fresh(self) -> SqliteEngine:
        return SqliteEngine(self._url, self._clock, own_loop=self._own_loop, for_callers=self._for_callers)

    def for_callers(self) -> Engine | None:
        return None if self._url.in_memory else SqliteEngine(self._url, self._clock, for_callers=True)

    @property
    def durability(self) -> Durability:
        if self._url.in_memory:
            return Durability.NONE
        return Durability.POWER_LOSS if self._url.synchronous == "FULL" else Durability.PROCESS_CRASH

    @property
    def is_remote(self) -> bool:
        return False

    @property
    def has_real_clock(self) -> bool:
        return self._clock is host_clock_ms

    @property
    def retention(self) -> Mapping[State, int]:
        return KEEP_MS

    async def health(self) -> Health:
        (mode,) = await self._store.query(lambda cursor, _: cursor.execute("PRAGMA journal_mode").fetchone())
        details = {"path": self._url.path, "journal_mode": mode, "synchronous": self._url.synchronous}
        return Health("sqlite", sqlite3.sqlite_version, self._store.schema_version, self.durability, details)

    async def schema(self) -> Schema:
        return Schema(await asyncio.to_thread(stored_version, self._url), max(migrations()))

    async def verify(self) -> list[StoreProblem]:
        self._store  # noqa: B018 - it must be open
        return [] if self._url.in_memory else await in_daemon(lambda: verify(self._url))

    async def now(self) -> int:
        self._store  # noqa: B018 - it must be open
        return self._clock()
