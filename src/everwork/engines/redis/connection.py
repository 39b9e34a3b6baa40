"""The way to the store: one connection that is made again when it is lost, on whichever node has the namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from redis.crc import key_slot

from everwork.engines.contract import Clock
from everwork.engines.redis import errors
from everwork.engines.redis.scripts import script
from everwork.engines.redis.server import UNKNOWN, Server, checked, parse_info
from everwork.engines.redis.store_url import StoreUrl
from everwork.engines.redis.wire import ConnectionLost, ReplyError, Wire, Word, pack
from everwork.exceptions import BadConfiguration, EngineError, EngineUnavailable, InvalidInput

CONNECT_SECONDS = 5.0
CLOSE_SECONDS = 10.0
MOVES_MAX = 5
PACKED_BYTES_MAX = 500_000_000
"""Redis hangs up on a command of more than a gigabyte."""


class Connection:
    """Calls scripts. A call that was sent and not answered is `EngineUnavailable`: its effect is unknown."""

    def __init__(self, place: StoreUrl, clock: Clock | None) -> None:
        self.place = place
        self.server = UNKNOWN
        self._clock = clock
        self._tag = place.tag.encode()
        self._ssl = place.ssl_context()
        self._wire: Wire | None = None
        self._nodes = list(place.hosts)
        self._attempt: asyncio.Task[Wire] | None = None
        self._under_way = 0
        self._is_idle = asyncio.Event()
        self._is_closed = False

    async def call(self, name: str, *words: Word) -> Any:
        """Run one script of the contract; one attempt, except where the server has certainly done nothing."""
        return await self.run(name, words)

    async def read(self, name: str, *words: Word) -> Any:
        """`call` of a script that only reads: tried again once when the connection was lost."""
        try:
            return await self.run(name, words)
        except EngineUnavailable:
            return await self.run(name, words)

    async def run(self, name: str, words: Sequence[Word]) -> Any:
        """The reply to a script; errors of the server are raised."""
        if self._is_closed:
            raise EngineUnavailable(f"cannot use Redis at {self.place.text}: the engine is closed")
        text, sha = script(name)
        now = "" if self._clock is None else self._clock()
        packed = pack((b"EVALSHA", sha, 1, self._tag, now, *words))
        if len(packed) > PACKED_BYTES_MAX:
            raise InvalidInput("jobs", f"must be at most {PACKED_BYTES_MAX:,} bytes in one call, not {len(packed):,}")
        self._under_way += 1
        try:
            reply = await self._answered(packed)
            if type(reply) is ReplyError:
                if str(reply).startswith("NOSCRIPT"):
                    packed = pack((b"EVAL", text, 1, self._tag, now, *words))
                    reply = await self._answered(packed)
                if type(reply) is ReplyError:
                    raise errors.of_reply(reply, self.place.text)
            return reply
        finally:
            self._under_way -= 1
            if self._under_way == 0:
                self._is_idle.set()

    async def connect(self, heard: Callable[[list[Any]], None] | None = None) -> Wire:
        """A new connection to the node that has the namespace, checked."""
        if not self.place.is_cluster:
            host, port = self.place.hosts[0] if self.place.hosts else ("", 0)
            wire, self.server = await self._opened(host, port, heard)
            if self.server.is_cluster:
                wire.close()
                raise BadConfiguration(f"Redis at {self.place.text} is a node of a cluster; use redis+cluster://")
            return wire
        host, port = await self._owner()
        wire, self.server = await self._opened(host, port, heard)
        return wire

    async def close(self) -> None:
        """Wait for the answers that are owed, then hang up."""
        self._is_closed = True
        if self._under_way:
            self._is_idle.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_idle.wait(), CLOSE_SECONDS)
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.wait((self._attempt,))
        if self._wire is not None:
            self._wire.close()
            await self._wire.ended

    # Inside -------------------------------------------------------------------------------------

    async def _answered(self, packed: bytes) -> Any:
        for moves_left in reversed(range(MOVES_MAX)):
            wire = self._wire
            if wire is None or not wire.is_open:
                wire = await self._connected()
            try:
                reply = await wire.send(packed)
            except ConnectionLost as error:
                raise errors.lost(self.place.text, error) from None
            if type(reply) is ReplyError and errors.loses_its_node(reply):
                wire.close()
                if str(reply).startswith("MOVED") and self.place.is_cluster and moves_left:
                    continue
            return reply
        raise AssertionError("unreachable")

    async def _connected(self) -> Wire:
        """The connection that everybody waits for together; who gives up does not disturb the others."""
        if self._attempt is None:
            self._attempt = asyncio.get_running_loop().create_task(self.connect())
            self._attempt.add_done_callback(self._attempted)
        attempt = self._attempt
        try:
            return await asyncio.shield(attempt)
        except asyncio.CancelledError:
            if attempt.cancelled():
                raise EngineUnavailable(f"cannot use Redis at {self.place.text}: the engine is closed") from None
            raise

    def _attempted(self, attempt: asyncio.Task[Wire]) -> None:
        self._attempt = None
        if not attempt.cancelled() and attempt.exception() is None:
            self._wire = attempt.result()

    async def _opened(self, host: str, port: int, heard: Callable[[list[Any]], None] | None) -> tuple[Wire, Server]:
        wire = await self._dialled(host, port, heard)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._enter(wire)
                return wire, await self._checked(wire)
        except (ConnectionLost, TimeoutError) as error:
            wire.close()
            raise errors.unreachable(self.place.text, error) from None
        except BaseException:
            wire.close()
            raise

    async def _dialled(self, host: str, port: int, heard: Callable[[list[Any]], None] | None) -> Wire:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if self.place.socket_path is not None:
                    return (await loop.create_unix_connection(lambda: Wire(heard), self.place.socket_path))[1]
                return (await loop.create_connection(lambda: Wire(heard), host, port, ssl=self._ssl))[1]
        except (OSError, TimeoutError) as error:
            raise errors.unreachable(self.place.text, error) from None

    async def _enter(self, wire: Wire) -> None:
        """Speak RESP3 from here on, as the user that the URL names, in its database."""
        account: list[Word] = []
        if self.place.password is not None:
            account = ["AUTH", self.place.username or "default", self.place.password]
        hello = await wire.ask("HELLO", 3, *account)
        if type(hello) is ReplyError:
            if "unknown command" in str(hello):
                raise BadConfiguration(f"Redis at {self.place.text} is older than 6.2; Everwork needs 6.2 or newer")
            raise errors.of_reply(hello, self.place.text)
        if self.place.db:
            chosen = await wire.ask("SELECT", self.place.db)
            if type(chosen) is ReplyError:
                raise errors.of_reply(chosen, self.place.text)

    async def _checked(self, wire: Wire) -> Server:
        info = await wire.ask("INFO")
        if type(info) is ReplyError:
            raise errors.of_reply(info, self.place.text)
        fsync = await wire.ask("CONFIG", "GET", "appendfsync")
        told = fsync.get(b"appendfsync") if isinstance(fsync, dict) else None  # Hosted servers often forbid CONFIG.
        return checked(parse_info(_text(info)), _text(told) if told else None, f"Redis at {self.place.text}")

    async def _owner(self) -> tuple[str, int]:
        """The node that has the namespace's slot, as any node that can be reached tells it."""
        problem: EngineError = EngineUnavailable(f"Redis at {self.place.text} has no nodes")
        for host, port in list(dict.fromkeys((*self._nodes, *self.place.hosts))):
            try:
                wire = await self._dialled(host, port, None)
            except EngineUnavailable as error:
                problem = error
                continue
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await self._enter(wire)
                    return await self._told_owner(wire, host)
            except (ConnectionLost, TimeoutError) as error:
                problem = errors.unreachable(self.place.text, error)
            except EngineUnavailable as error:
                problem = error
            finally:
                wire.close()
        raise problem

    async def _told_owner(self, wire: Wire, asked: str) -> tuple[str, int]:
        ranges = await wire.ask("CLUSTER", "SLOTS")
        if type(ranges) is ReplyError:
            if "cluster support disabled" in str(ranges):
                raise BadConfiguration(f"Redis at {self.place.text} is not a cluster; use redis:// instead")
            raise errors.of_reply(ranges, self.place.text)
        slot, owner = key_slot(self._tag), None
        self._nodes = []
        for first, last, *nodes in ranges:
            known = [(_text(node[0]) if node[0] else asked, int(node[1])) for node in nodes]
            self._nodes += [node for node in known if node not in self._nodes]
            if first <= slot <= last:
                owner = known[0]
        if owner is None:
            raise EngineUnavailable(f"Redis at {self.place.text} serves no slot {slot}; look at CLUSTER INFO")
        return owner


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()
