"""A small pooler in transaction mode: each transaction of a client goes to the next of a few server connections.

What must not cross such a pooler is noted: LISTEN, named prepared statements, settings and locks of a session.
"""

from __future__ import annotations

import asyncio
import re
import struct
from asyncio import StreamReader, StreamWriter
from collections import Counter
from contextlib import suppress
from typing import Final, NamedTuple, Self
from urllib.parse import urlsplit

from tests.servers import LOOPBACK

_SSL_REQUEST: Final = 80_877_103
_CANCEL_REQUEST: Final = 80_877_102
_PROTOCOL: Final = 196_608
_KNOWN_PARAMETERS: Final = {"user", "database", "client_encoding", "application_name", "datestyle", "timezone"}
_LEFT_BEHIND: Final = """SELECT name FROM pg_settings WHERE source = 'session' AND setting <> reset_val
UNION ALL SELECT statement FROM pg_prepared_statements UNION ALL SELECT pg_listening_channels()"""
_BOUND_TO_A_SESSION: Final = re.compile(
    r"\b(LISTEN|UNLISTEN|pg_advisory_lock)\b|(^|;)\s*SET\s+(?!LOCAL\b)|\bTEMP(ORARY)?\s", re.IGNORECASE
)


class Message(NamedTuple):
    """One message of the protocol."""

    kind: bytes
    body: bytes

    def packed(self) -> bytes:
        """As it goes over the wire."""
        return self.kind + struct.pack("!i", len(self.body) + 4) + self.body


class Backend:
    """A connection to the server."""

    def __init__(self, number: int, reader: StreamReader, writer: StreamWriter) -> None:
        self.number = number
        self.reader = reader
        self.writer = writer
        self.parameters: list[Message] = []

    @classmethod
    async def connect(cls, number: int, url: str) -> Backend:
        """Enter as the URL's user, who needs no password."""
        place = urlsplit(url)
        reader, writer = await asyncio.open_connection(LOOPBACK, place.port)
        backend = cls(number, reader, writer)
        words = ["user", place.username or "", "database", place.path.lstrip("/"), "client_encoding", "UTF8", ""]
        body = struct.pack("!i", _PROTOCOL) + "\0".join(words).encode() + b"\0"
        writer.write(struct.pack("!i", len(body) + 4) + body)
        while (message := await _read(reader)).kind != b"Z":
            assert message.kind != b"E", message.body
            if message.kind == b"S":
                backend.parameters.append(message)
        return backend

    async def left_behind(self) -> list[str]:
        """What the session still holds of earlier transactions."""
        self.writer.write(Message(b"Q", _LEFT_BEHIND.encode() + b"\0").packed())
        rows: list[str] = []
        while (message := await _read(self.reader)).kind != b"Z":
            assert message.kind != b"E", message.body
            if message.kind == b"D":
                rows.append(message.body[6:].decode())
        return rows


class Pooler:
    """Listens on the loopback; `url` is what an engine is given instead of the server's."""

    def __init__(self, server_url: str, backends: int = 2) -> None:
        self._server_url = server_url
        self._backends = backends
        self._free: asyncio.Queue[Backend] = asyncio.Queue()
        self._clients: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self.trespasses: list[str] = []
        """What would have been lost or mixed up between clients."""
        self.transactions: Counter[int] = Counter()
        """How many transactions each server connection has run."""

    @property
    def url(self) -> str:
        """The same database, through the pooler."""
        assert self._listener is not None
        place = urlsplit(self._server_url)
        return f"postgresql://{place.username}@{LOOPBACK}:{self._listener.sockets[0].getsockname()[1]}{place.path}"

    async def __aenter__(self) -> Self:
        for number in range(self._backends):
            self._free.put_nowait(await Backend.connect(number, self._server_url))
        self._listener = await asyncio.start_server(self._accept, LOOPBACK, 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        while not self._free.empty():
            backend = self._free.get_nowait()
            if not backend.writer.is_closing():  # A session that was just aborted holds nothing.
                self.trespasses += await backend.left_behind()
                backend.writer.close()

    async def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                if await self._let_in(reader, writer):
                    await self._serve(reader, writer)
        finally:
            self._clients.discard(task)
            writer.close()

    async def _let_in(self, reader: StreamReader, writer: StreamWriter) -> bool:
        """Answer the startup without the server; False if the client was sent away."""
        length, code = struct.unpack("!ii", await reader.readexactly(8))
        if code == _CANCEL_REQUEST:
            return False
        if code == _SSL_REQUEST:
            writer.write(b"N")
            length, code = struct.unpack("!ii", await reader.readexactly(8))
        words = (await reader.readexactly(length - 8)).decode().rstrip("\0").split("\0")
        unknown = [name for name in words[::2] if name not in _KNOWN_PARAMETERS]
        if unknown:
            writer.write(_error(f"unsupported startup parameter: {unknown[0]}"))
            return False
        backend = await self._free.get()
        self._free.put_nowait(backend)
        hello = [Message(b"R", struct.pack("!i", 0)), *backend.parameters, Message(b"K", bytes(8)), Message(b"Z", b"I")]
        writer.write(b"".join(message.packed() for message in hello))
        return True

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        while (message := await _read(reader)).kind != b"X":
            backend = await self._free.get()
            self.transactions[backend.number] += 1
            try:
                await self._run(message, reader, writer, backend)
            except BaseException:
                # The client went away in the middle: the server takes its work back.
                backend.writer.transport.abort()
                backend = await Backend.connect(backend.number, self._server_url)
                raise
            finally:
                self._free.put_nowait(backend)

    async def _run(self, message: Message, reader: StreamReader, writer: StreamWriter, backend: Backend) -> None:
        """Pass messages on, until the server is in no transaction."""
        statuses: asyncio.Queue[bytes] = asyncio.Queue()
        answers = asyncio.create_task(_pass_on(backend, writer, statuses))
        try:
            while True:
                self._note(message)
                backend.writer.write(message.packed())
                if message.kind in (b"Q", b"S") and await statuses.get() == b"I":
                    return
                message = await _read(reader)
        finally:
            answers.cancel()

    def _note(self, message: Message) -> None:
        if message.kind in (b"Q", b"P"):
            text = message.body.decode(errors="replace")
            name, _, sql = text.partition("\0") if message.kind == b"P" else ("", "", text)
            if name:
                self.trespasses.append(f"named statement {name}: {sql}")
            if _BOUND_TO_A_SESSION.search(sql):
                self.trespasses.append(sql)


async def _pass_on(backend: Backend, writer: StreamWriter, statuses: asyncio.Queue[bytes]) -> None:
    """Give the server's answers to the client; in which state each leaves the transaction."""
    while True:
        answer = await _read(backend.reader)
        writer.write(answer.packed())
        if answer.kind == b"Z":
            statuses.put_nowait(answer.body)


async def _read(reader: StreamReader) -> Message:
    kind, length = struct.unpack("!ci", await reader.readexactly(5))
    return Message(kind, await reader.readexactly(length - 4))


def _error(text: str) -> bytes:
    fields = {"S": "FATAL", "V": "FATAL", "C": "08P01", "M": text}
    return Message(b"E", b"".join(f"{key}{value}\0".encode() for key, value in fields.items()) + b"\0").packed()
