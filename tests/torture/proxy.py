"""A bad network: a proxy on the loopback that delays, cuts in the middle of a message, and swallows everything."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tests.servers import LOOPBACK

_CHUNK_BYTES: Final = 65_536
_CUT_BYTES_MAX: Final = 4_000
STALL_MS_MAX: Final = 1_500
_STALL_SECONDS: Final = (0.1, STALL_MS_MAX / 1000)


class Link:
    """One connection through the proxy."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._writers = (client, server)
        self._flows = asyncio.Event()
        self._flows.set()
        self._bytes_left: int | None = None

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what one side sends, as long as the network is kind."""
        with suppress(OSError):
            while chunk := await reader.read(_CHUNK_BYTES):
                await self._flows.wait()
                writer.write(chunk[: self._allowed(len(chunk))])
                if self._bytes_left == 0:
                    break
                await writer.drain()
        self.reset()

    def _allowed(self, wanted: int) -> int:
        if self._bytes_left is None:
            return wanted
        allowed = min(wanted, self._bytes_left)
        self._bytes_left -= allowed
        return allowed

    def cut_after(self, bytes_left: int) -> None:
        """Pass on so much more, of both sides together, then reset."""
        self._bytes_left = bytes_left

    async def stall(self, seconds: float, *, ends_well: bool) -> None:
        """Pass on nothing for a while; then go on, or reset."""
        self._flows.clear()
        await asyncio.sleep(seconds)
        if not ends_well:
            self.reset()
        self._flows.set()

    def pause(self) -> None:
        """Pass on nothing until `go_on`."""
        self._flows.clear()

    def go_on(self) -> None:
        """Pass on everything again, also what was sent meanwhile."""
        self._flows.set()

    def reset(self) -> None:
        """End both sides at once, without a goodbye."""
        for writer in self._writers:
            link = writer.get_extra_info("socket")
            if link is not None and link.fileno() >= 0:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


class Proxy:
    """Passes connections on to a server that may come and go."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._links: set[Link] = set()
        self._stalls: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._is_cut = False
        self._open = asyncio.Event()
        self._open.set()

    async def start(self) -> int:
        """Listen; the port is answered."""
        self._listener = await asyncio.start_server(self._serve, LOOPBACK, 0)
        return int(self._listener.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """End every link."""
        assert self._listener is not None
        self._listener.close()
        self.heal()
        for stall in self._stalls:
            stall.cancel()

    def heal(self) -> None:
        """End what may still be in the midst of something; from now on the network is good."""
        for link in list(self._links):
            link.reset()

    def cut(self) -> None:
        """From now on nobody reaches the server, and everybody notices."""
        self._is_cut = True
        self.heal()

    def swallow(self) -> None:
        """From now on nobody reaches the server, and nobody notices: connections stay open without an answer."""
        self._open.clear()
        for link in self._links:
            link.pause()

    def mend(self) -> None:
        """The server can be reached again; what was sent meanwhile arrives late."""
        self._is_cut = False
        self._open.set()
        for link in self._links:
            link.go_on()

    def disturb(self, rng: random.Random) -> str:
        """Do something to some links; what was done."""
        name, act = rng.choice(self._disturbances(rng))
        for link in rng.sample(sorted(self._links, key=id), min(len(self._links), rng.randint(1, 3))):
            act(link)
        return name

    def _disturbances(self, rng: random.Random) -> list[tuple[str, Callable[[Link], None]]]:
        seconds = rng.uniform(*_STALL_SECONDS)
        return [
            ("connections cut in the middle of a message", lambda link: link.cut_after(rng.randint(0, _CUT_BYTES_MAX))),
            ("connections delayed", lambda link: self._stall(link, seconds, ends_well=True)),
            ("connections without a response", lambda link: self._stall(link, seconds, ends_well=False)),
        ]

    def _stall(self, link: Link, seconds: float, *, ends_well: bool) -> None:
        task = asyncio.get_running_loop().create_task(link.stall(seconds, ends_well=ends_well))
        self._stalls.add(task)
        task.add_done_callback(self._stalls.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()
        try:
            if self._is_cut:
                raise ConnectionRefusedError
            far_reader, far_writer = await asyncio.open_connection(LOOPBACK, self._server_port)
        except OSError:
            writer.transport.abort()
            return
        link = Link(writer, far_writer)
        self._links.add(link)
        try:
            await asyncio.gather(link.pump(reader, far_writer), link.pump(far_reader, writer))
        finally:
            self._links.discard(link)
