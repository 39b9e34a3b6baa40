"""Detects that the gRPC port accepts no new connections: gRPC refuses them without logging it."""

from __future__ import annotations

import asyncio
import errno
import ssl
from contextlib import suppress
from typing import Final

from everwork.logs import Occasional

EVERY_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 5.0
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)


class PortCheck:
    """Connects to the server's own port like any client, and warns if the server does not answer."""

    def __init__(self, host: str, port: int, notices: Occasional, *, has_tls: bool) -> None:
        self._host = host
        self._port = port
        self._notices = notices
        self._opening = _client_hello() if has_tls else b""
        self._is_first = True

    async def tick(self) -> bool:
        """Check the port, except the first time, when it has only just been opened."""
        if self._is_first:
            self._is_first = False
        elif (problem := await self.problem()) is not None:
            self._notices.warning("gRPC connections are refused", problem=problem, port=self._port)
        return False

    async def problem(self) -> str | None:
        """Why the port accepts no connections, or None."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return None if await self._answers() else "the limit max_connections is reached"
        except TimeoutError:
            return "the server accepts no connections; the limit of open files may be reached"
        except OSError as error:
            is_full = error.errno in _NO_DESCRIPTORS
            return "the limit of open files is reached" if is_full else f"the port does not answer: {error}"

    async def _answers(self) -> bool:
        """Whether the server sends anything: above its limit of connections, it closes them immediately."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            writer.write(self._opening)
            return await reader.read(1) != b""
        except ConnectionError:
            return False
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def _client_hello() -> bytes:
    """The first bytes of a TLS handshake, which the server answers. It goes no further, so nothing is verified."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()
