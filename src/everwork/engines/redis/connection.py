"""The connection to the store: reconnects when it is lost, to the node that has the namespace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

from everwork.engines.contract import Clock
from everwork.engines.redis import errors
from everwork.engines.redis.scripts import script
from everwork.engines.redis.server import UNKNOWN, Server, checked, parse_info
from everwork.engines.redis.store_url import StoreUrl
from everwork.engines.redis.wire import Arg, ConnectionLost, PushHandler, ReplyError, Wire, pack
from everwork.exceptions import BadConfiguration, EngineError, EngineUnavailable, InvalidInput

CONNECT_SECONDS = 5.0
CLOSE_SECONDS = 10.0
MOVES_MAX = 5
PACKED_BYTES_MAX = 500_000_000
"""Redis closes the connection if a command is larger than a gigabyte."""


class Connection:
    """Runs scripts. A call that was sent and got no reply is `EngineUnavailable`: its effect is unknown."""

    def __init__(self, url: StoreUrl, clock: Clock | None) -> None:
        self.url = url
        self.server = UNKNOWN
        self.moves = 0
        """How often the store was found to be on another server."""
        self._clock = clock
        self._tag = url.tag.encode()
        self._ssl = url.ssl_context()
        self._wire: Wire | None = None
        self._nodes = list(url.hosts)
        self._connecting: asyncio.Task[Wire] | None = None
        self._in_flight = 0
        self._is_idle = asyncio.Event()
        self._is_closed = False

    async def call(self, name: str, *args: Arg) -> Any:
        """Run a script once; it is repeated only if the server has certainly done nothing."""
        return await self.run(name, args)

    async def read(self, name: str, *args: Arg) -> Any:
        """`call` for a read-only script: retried once if the connection is lost. It does not wait for replicas."""
        try:
            return await self.run(name, args, replicas=0)
        except EngineUnavailable:
            return await self.run(name, args, replicas=0)

    async def run(self, name: str, args: Sequence[Arg], *, replicas: int | None = None) -> Any:
        """Run a script, wait for the number of replicas in the URL, and return the reply; server errors are raised."""
        if replicas is None:
            replicas = self.url.replicas
        if self._is_closed:
            raise EngineUnavailable(f"cannot use Redis at {self.url.text}: the engine is closed")
        text, sha = script(name)
        now = "" if self._clock is None else self._clock()
        packed = pack((b"EVALSHA", sha, 1, self._tag, now, *args))
        if len(packed) > PACKED_BYTES_MAX:
            raise InvalidInput("jobs", f"must be at most {PACKED_BYTES_MAX:,} bytes in one call, not {len(packed):,}")
        self._in_flight += 1
        try:
            reply = await self._answered(packed, replicas)
            if type(reply) is ReplyError:
                if str(reply).startswith("NOSCRIPT"):
                    packed = pack((b"EVAL", text, 1, self._tag, now, *args))
                    reply = await self._answered(packed, replicas)
                if type(reply) is ReplyError:
                    raise errors.of_reply(reply, self.url.text)
            return reply
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                self._is_idle.set()

    async def load(self, names: Sequence[str]) -> None:
        """Load the scripts that the server does not know, so that their first calls do not have to."""
        wire, scripts = self._wire or await self._connected(), [script(name) for name in names]
        with suppress(ConnectionLost):
            known = await wire.request("SCRIPT", "EXISTS", *(one.sha for one in scripts))
            if type(known) is ReplyError:
                return  # This user may not run this command; the calls load the scripts.
            for one, is_known in zip(scripts, known, strict=True):
                if not is_known:
                    await wire.request("SCRIPT", "LOAD", one.text)

    async def key_types(self, keys: Sequence[str]) -> list[Any]:
        """The Redis types of keys on this server, in one round trip: for each, the server's reply or an error."""
        wire = self._wire
        if wire is None or not wire.is_open:
            wire = await self._connected()
        try:
            return await asyncio.gather(*(wire.request("TYPE", key) for key in keys))
        except ConnectionLost as error:
            raise errors.lost(self.url.text, error) from None

    async def connect(self, on_push: PushHandler | None = None) -> Wire:
        """Open a new connection to the node that has the namespace, and check the server."""
        if not self.url.is_cluster:
            host, port = self.url.hosts[0] if self.url.hosts else ("", 0)
            wire, self.server = await self._opened(host, port, on_push)
            if self.server.is_cluster:
                wire.close()
                raise BadConfiguration(f"Redis at {self.url.text} is a node of a cluster; use redis+cluster://")
            return wire
        host, port = await self._owner()
        wire, self.server = await self._opened(host, port, on_push)
        return wire

    async def close(self) -> None:
        """Wait for the pending replies, then disconnect."""
        self._is_closed = True
        if self._in_flight:
            self._is_idle.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_idle.wait(), CLOSE_SECONDS)
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait((self._connecting,))
        if self._wire is not None:
            self._wire.close()
            await self._wire.ended

    async def _answered(self, packed: bytes, replicas: int) -> Any:
        for moves_left in reversed(range(MOVES_MAX)):
            wire = self._wire
            if wire is None or not wire.is_open:
                wire = await self._connected()
            try:
                reply = await wire.send(packed)
            except ConnectionLost as error:
                raise errors.lost(self.url.text, error) from None
            if replicas and type(reply) is not ReplyError:
                await self._replicated(wire, replicas)
            if type(reply) is ReplyError and errors.loses_its_node(reply):
                wire.close()
                self.moves += 1
                if str(reply).startswith("MOVED") and self.url.is_cluster and moves_left:
                    continue
            return reply
        raise AssertionError("unreachable")

    async def _replicated(self, wire: Wire, replicas: int) -> None:
        """Wait for replicas to acknowledge a write; if they do not, its outcome is unknown, as with a lost reply."""
        try:
            acknowledged = await wire.replicated(replicas)
        except ConnectionLost as error:
            raise errors.lost(self.url.text, error) from None
        if type(acknowledged) is ReplyError:
            wire.close()  # The server has become a replica itself.
            raise errors.lost(self.url.text, acknowledged)
        if acknowledged < replicas:
            raise errors.not_replicated(self.url.text, acknowledged, replicas)

    async def _connected(self) -> Wire:
        """The next connection, shared by all callers; a cancelled caller does not disturb the others."""
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self.connect())
            self._connecting.add_done_callback(self._on_connected)
        connecting = self._connecting
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            if connecting.cancelled():
                raise EngineUnavailable(f"cannot use Redis at {self.url.text}: the engine is closed") from None
            raise

    def _on_connected(self, connecting: asyncio.Task[Wire]) -> None:
        self._connecting = None
        if not connecting.cancelled() and connecting.exception() is None:
            self._wire = connecting.result()

    async def _opened(self, host: str, port: int, on_push: PushHandler | None) -> tuple[Wire, Server]:
        async with self._logged_in(host, port, on_push) as wire:
            return wire, await self._checked(wire)

    @asynccontextmanager
    async def _logged_in(self, host: str, port: int, on_push: PushHandler | None = None) -> AsyncIterator[Wire]:
        """A new connection, for the first exchange on it; an error closes it."""
        wire = Wire(on_push)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._connect_to(host, port, wire)
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._log_in(wire)
                yield wire
        except (ConnectionLost, OSError, TimeoutError) as error:
            wire.close()
            raise errors.unreachable(self.url.text, error) from None
        except BaseException:
            wire.close()
            raise

    async def _connect_to(self, host: str, port: int, wire: Wire) -> None:
        loop = asyncio.get_running_loop()
        if self.url.socket_path is not None:
            await loop.create_unix_connection(lambda: wire, self.url.socket_path)
        else:
            await loop.create_connection(lambda: wire, host, port, ssl=self._ssl)

    async def _log_in(self, wire: Wire) -> None:
        """Switch to RESP3, log in and select the database of the URL."""
        account: list[Arg] = []
        if self.url.password is not None:
            account = ["AUTH", self.url.username or "default", self.url.password]
        hello = await wire.request("HELLO", 3, *account)
        if type(hello) is ReplyError:
            if "unknown command" in str(hello):
                raise BadConfiguration(f"Redis at {self.url.text} is older than 6.2; Everwork needs 6.2 or newer")
            raise errors.of_reply(hello, self.url.text)
        if self.url.db:
            selected = await wire.request("SELECT", self.url.db)
            if type(selected) is ReplyError:
                raise errors.of_reply(selected, self.url.text)

    async def _checked(self, wire: Wire) -> Server:
        info = await wire.request("INFO")
        if type(info) is ReplyError:
            raise errors.of_reply(info, self.url.text)
        fsync = await wire.request("CONFIG", "GET", "appendfsync")
        policy = fsync.get(b"appendfsync") if isinstance(fsync, dict) else None  # Hosted servers often forbid CONFIG.
        return checked(parse_info(_text(info)), _text(policy) if policy else None, f"Redis at {self.url.text}")

    async def _owner(self) -> tuple[str, int]:
        """The node that has the namespace's slot, according to the first node that can be reached."""
        problem: EngineError = EngineUnavailable(f"Redis at {self.url.text} has no nodes")
        for host, port in list(dict.fromkeys((*self._nodes, *self.url.hosts))):
            try:
                async with self._logged_in(host, port) as wire:
                    with closing(wire):
                        return await self._find_owner(wire, host)
            except EngineUnavailable as error:
                problem = error  # No retry: the next node may know the owner.
        raise problem

    async def _find_owner(self, wire: Wire, node_host: str) -> tuple[str, int]:
        from redis.crc import key_slot  # noqa: PLC0415 - the import takes longer than connecting, and only clusters need it

        ranges = await wire.request("CLUSTER", "SLOTS")
        if type(ranges) is ReplyError:
            if "cluster support disabled" in str(ranges):
                raise BadConfiguration(f"Redis at {self.url.text} is not a cluster; use redis:// instead")
            raise errors.of_reply(ranges, self.url.text)
        slot, owner = key_slot(self._tag), None
        self._nodes = []
        for first, last, *nodes in ranges:
            known = [(_text(host) if host else node_host, int(port)) for host, port, *_ in nodes]
            self._nodes += [node for node in known if node not in self._nodes]
            if first <= slot <= last:
                owner = known[0]
        if owner is None:
            raise EngineUnavailable(f"Redis at {self.url.text} serves no slot {slot}; check CLUSTER INFO")
        return owner


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()
