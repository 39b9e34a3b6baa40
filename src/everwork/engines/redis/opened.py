"""What exists while the engine is open: the way to the store, the bells, and the bridge from the streams."""

from __future__ import annotations

import os

from everwork.engines.contract import Clock
from everwork.engines.redis.connection import Connection
from everwork.engines.redis.inbox import Inbox
from everwork.engines.redis.registry import upgrade
from everwork.engines.redis.scripts import SCHEMA_VERSION
from everwork.engines.redis.server import Server
from everwork.engines.redis.store_url import StoreUrl
from everwork.engines.redis.wake import Wakeups
from everwork.engines.values import Durability, Schema
from everwork.exceptions import BadConfiguration, EngineUnavailable, SchemaMismatch
from everwork.logs import get_logger

log = get_logger("everwork.redis")


class OpenStore:
    """An engine at work, in the process and event loop that opened it."""

    def __init__(self, link: Connection, schema_version: int, known: dict[str, int]) -> None:
        self.pid = os.getpid()
        self.link = link
        self.schema_version = schema_version
        self.bells = Wakeups(link, known)
        self.inbox = Inbox(link)

    @property
    def server(self) -> Server:
        """The server as it was found by the last connection."""
        return self.link.server

    async def close(self) -> None:
        """Stop what runs beside the calls, finish these, and hang up."""
        await self.inbox.close()
        await self.bells.close()
        await self.link.close()


async def stored_schema(place: StoreUrl) -> Schema:
    """The version of the store, without changing anything."""
    link = Connection(place, None)
    try:
        reply = await link.read("open", SCHEMA_VERSION, 0)
    finally:
        await link.close()
    return Schema(None if reply is None else _version(link, reply[0]), SCHEMA_VERSION)


async def opened(place: StoreUrl, clock: Clock | None, *, create: bool) -> OpenStore:
    """Connect, check the server, and begin the store or find out its version."""
    link = Connection(place, clock)
    try:
        reply = await link.call("open", SCHEMA_VERSION, int(create))
        if reply is None:
            raise EngineUnavailable(f"Redis at {place.text} holds no jobs in the namespace '{place.namespace}'")
        version = _version(link, reply[0])
        if version > SCHEMA_VERSION:
            raise SchemaMismatch(
                f"Redis at {place.text}, namespace '{place.namespace}', was written by a newer Everwork "
                f"(schema {version}, this one knows {SCHEMA_VERSION}); upgrade this program"
            )
        await link.call("registry", "index")
        if version < SCHEMA_VERSION:
            await upgrade(link)
        parts = OpenStore(link, SCHEMA_VERSION, {"w": int(reply[1]), "d": int(reply[2])})
    except BaseException:
        await link.close()
        raise
    if parts.server.durability is Durability.NONE:
        log.warning(
            "this Redis keeps nothing on disk, a crash of the server loses jobs; run: CONFIG SET appendonly yes",
            place=place.text,
        )
    return parts


def _version(link: Connection, told: bytes) -> int:
    if not told.isdigit():
        raise BadConfiguration(
            f"Redis at {link.place.text}: the key {link.place.tag}:version is not Everwork's; use another ?namespace="
        )
    return int(told)
