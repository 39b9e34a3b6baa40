"""What exists while the engine is open, and how each topic of the engine reaches it."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING

from everwork.engines.contract import Clock
from everwork.engines.redis.connection import Connection
from everwork.engines.redis.server import Server
from everwork.engines.redis.store_url import StoreUrl
from everwork.engines.redis.wake import Wakeups
from everwork.engines.take_back import TakeBack
from everwork.exceptions import EngineUnavailable

if TYPE_CHECKING:
    from everwork.engines.redis.inbox import Inbox


class OpenStore:
    """The resources of an open engine, in the process and event loop that opened it."""

    def __init__(
        self, connection: Connection, schema_version: int, last_wakeups: dict[str, int], take_back: TakeBack
    ) -> None:
        self.pid = os.getpid()
        self.connection = connection
        self.schema_version = schema_version
        self.wakeups = Wakeups(connection, last_wakeups, take_back)

    @cached_property
    def inbox(self) -> Inbox:
        """The open inbox of the types that this process works on."""
        from everwork.engines.redis.inbox import Inbox  # noqa: PLC0415 - it imports redis-py, which takes long

        return Inbox(self.connection)

    @property
    def server(self) -> Server:
        """The server as the latest connection found it."""
        return self.connection.server

    async def close(self) -> None:
        """Stop the background tasks, finish the calls in flight, and disconnect."""
        if "inbox" in vars(self):
            await self.inbox.close()
        await self.wakeups.close()
        await self.connection.close()


class RedisBase:
    """The base of every topic of the engine: the store's URL, and the store while it is open."""

    def __init__(self, url: StoreUrl, clock: Clock | None = None) -> None:
        self._url = url
        self._clock = clock
        self._opened: OpenStore | None = None

    @property
    def _store(self) -> OpenStore:
        if self._opened is None or self._opened.pid != os.getpid():
            raise EngineUnavailable(f"cannot use Redis at {self._url.text}: it is not connected yet, or is closed")
        return self._opened

    @property
    def _connection(self) -> Connection:
        return self._store.connection
