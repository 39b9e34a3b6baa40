"""The Redis engine: it joins the topics and adds the lifecycle of the store: open, check, sweep, close."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from everwork.core.states import State
from everwork.engines.contract import Clock, Engine
from everwork.engines.redis.change import RedisChanges
from everwork.engines.redis.connection import Connection
from everwork.engines.redis.jobs import RedisJobs
from everwork.engines.redis.move import RedisMoving
from everwork.engines.redis.opened import OpenStore
from everwork.engines.redis.read import RedisQuestions
from everwork.engines.redis.registry import RedisRegistry, upgrade
from everwork.engines.redis.scripts import SCHEMA_VERSION
from everwork.engines.redis.store_url import StoreUrl
from everwork.engines.redis.sweep import KEEP_MS, sweep
from everwork.engines.redis.verify import verify
from everwork.engines.redis.wake import DONE, WORK
from everwork.engines.take_back import TakeBack
from everwork.engines.values import Durability, Health, Schema, StoreProblem, Swept
from everwork.exceptions import BadConfiguration, EngineUnavailable, SchemaMismatch
from everwork.logs import get_logger

log = get_logger("everwork.redis")

HOT_SCRIPTS: Final = ("create", "activate", "settle")
"""The scripts of a job's life. The first call of one that the server does not know takes a millisecond longer."""


class RedisEngine(RedisJobs, RedisChanges, RedisQuestions, RedisRegistry, RedisMoving, Engine):
    """Jobs in one namespace of a Redis server or cluster, shared by any number of hosts."""

    @classmethod
    def from_url(cls, url: str, *, clock: Clock | None = None) -> RedisEngine:
        """The engine for a `redis:` URL."""
        return cls(StoreUrl.from_url(url), clock)

    async def open(self, *, create: bool = True) -> None:
        if self._opened is None or self._opened.pid != os.getpid():
            self._opened = await _open_store(self._url, self._clock, TakeBack(self.settle), create=create)

    async def close(self) -> None:
        store, self._opened = self._opened, None
        if store is not None and store.pid == os.getpid():
            await store.close()

    def fresh(self) -> RedisEngine:
        return RedisEngine(self._url, self._clock)

    @property
    def durability(self) -> Durability:
        return self._store.server.durability

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
        await store.connection.read("open", store.schema_version, 0)
        server = store.server
        details = {
            "place": self._url.text,
            "namespace": self._url.namespace,
            "server": f"{server.name} {server.version}",
            "maxmemory_policy": server.maxmemory_policy,
            "appendonly": "yes" if server.has_append_only_file else "no",
            "appendfsync": server.appendfsync or "unknown",
            "replicas": f"{self._url.replicas} required",
        }
        return Health("redis", server.version, store.schema_version, server.durability, details)

    async def schema(self) -> Schema:
        connection = Connection(self._url, None)
        try:
            reply = await connection.read("open", SCHEMA_VERSION, 0)
        finally:
            await connection.close()
        return Schema(None if reply is None else _parse_version(self._url, reply[0]), SCHEMA_VERSION)

    async def verify(self) -> list[StoreProblem]:
        return await verify(self._connection)

    async def now(self) -> int:
        return int(await self._connection.read("now"))

    async def sweep(self, holder: str) -> Swept:
        return await sweep(self._connection, holder)


async def _open_store(url: StoreUrl, clock: Clock | None, take_back: TakeBack, *, create: bool) -> OpenStore:
    """Connect, check the server, and create the store or bring it up to date."""
    connection = Connection(url, clock)
    try:
        last_wakeups = await _prepare(connection, create=create)
        await connection.load(HOT_SCRIPTS)
        store = OpenStore(connection, SCHEMA_VERSION, last_wakeups, take_back)
    except BaseException:
        await connection.close()
        raise
    if store.server.durability is Durability.NONE:
        log.warning(
            "this Redis server does not persist data, so a crash loses jobs; run: CONFIG SET appendonly yes",
            place=url.text,
        )
    return store


async def _prepare(connection: Connection, *, create: bool) -> dict[str, int]:
    """Create or upgrade the store; returns the number of the last wake-up of each kind."""
    url = connection.url
    reply = await connection.call("open", SCHEMA_VERSION, int(create))
    if reply is None:
        raise EngineUnavailable(f"Redis at {url.text} holds no jobs in the namespace '{url.namespace}'")
    stored_version, last_work, last_done = reply
    version = _parse_version(url, stored_version)
    if version > SCHEMA_VERSION:
        raise SchemaMismatch(
            f"Redis at {url.text}, namespace '{url.namespace}', was written by a newer Everwork "
            f"(schema {version}, this one supports {SCHEMA_VERSION}); upgrade this program"
        )
    await connection.call("registry", "index")
    if version < SCHEMA_VERSION:
        await upgrade(connection)
    return {WORK: int(last_work), DONE: int(last_done)}


def _parse_version(url: StoreUrl, stored: bytes) -> int:
    if not stored.isdigit():
        raise BadConfiguration(
            f"Redis at {url.text}: the key {url.tag}:version is not Everwork's; use another ?namespace="
        )
    return int(stored)
