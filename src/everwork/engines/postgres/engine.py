"""The PostgreSQL engine: its lifecycle. The calls of each topic are in their own module."""

from __future__ import annotations

import os
from collections.abc import Mapping

from everwork.core.retention import KEEP_MS
from everwork.core.states import State
from everwork.engines.contract import Clock, Engine
from everwork.engines.postgres.change import PostgresChanges
from everwork.engines.postgres.jobs import PostgresJobs
from everwork.engines.postgres.move import PostgresMoving
from everwork.engines.postgres.opened import open_store, stored_schema
from everwork.engines.postgres.own_transaction import PostgresTransactions
from everwork.engines.postgres.read import PostgresQuestions
from everwork.engines.postgres.registry import PostgresRegistry
from everwork.engines.postgres.store_url import StoreUrl
from everwork.engines.postgres.sweep import PostgresSweep
from everwork.engines.postgres.verify import verify
from everwork.engines.take_back import TakeBack
from everwork.engines.values import Durability, Health, Schema, StoreProblem


class PostgresEngine(
    PostgresJobs,
    PostgresTransactions,
    PostgresChanges,
    PostgresQuestions,
    PostgresSweep,
    PostgresRegistry,
    PostgresMoving,
    Engine,
):
    """Jobs in one schema of a PostgreSQL database, shared by any number of hosts."""

    @classmethod
    def from_url(cls, url: str, *, clock: Clock | None = None) -> PostgresEngine:
        """The engine for a `postgresql:` URL."""
        return cls(StoreUrl.from_url(url), clock)

    async def open(self, *, create: bool = True) -> None:
        if self._opened is None or self._opened.pid != os.getpid():
            self._opened = await open_store(self._url, self._clock, TakeBack(self.settle), create=create)

    async def close(self) -> None:
        store, self._opened = self._opened, None
        if store is not None and store.pid == os.getpid():
            await store.close()

    def fresh(self) -> PostgresEngine:
        return PostgresEngine(self._url, self._clock)

    @property
    def durability(self) -> Durability:
        settings = self._opened.settings if self._opened is not None else {}
        if settings.get("synchronous_commit", "on") == "off" or settings.get("fsync", "on") == "off":
            # Without fsync, a killed server still loses nothing: everything was already written to the operating
            # system.
            return Durability.PROCESS_CRASH if settings.get("synchronous_commit") != "off" else Durability.NONE
        return Durability.POWER_LOSS

    @property
    def is_remote(self) -> bool:
        return True

    @property
    def has_real_clock(self) -> bool:
        return self._clock is None

    @property
    def retention(self) -> Mapping[State, int]:
        return KEEP_MS

    async def health(self) -> Health:
        store = self._store
        await store.connections.read("SELECT 1")
        wakes = "notify" if self._url.notify else "poll"
        details = {"schema": self._url.schema, "wake-ups": wakes, **store.settings}
        return Health("postgres", store.server_version, store.schema_version, self.durability, details)

    async def schema(self) -> Schema:
        return await stored_schema(self._url)

    async def verify(self) -> list[StoreProblem]:
        return await verify(self._store)

    async def now(self) -> int:
        store = self._store
        [[now_ms]] = await store.connections.read(store.sql("now")["now"], store.now_ms())
        return int(now_ms)
