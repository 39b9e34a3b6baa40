"""A hostile HTTP/2 client that writes its own frames, to send what no library would."""

from __future__ import annotations

import select
import socket
import ssl
import struct
from collections.abc import Iterable, Sequence
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
WINDOW_DEFAULT: Final = 65_535
FRAME_BYTES_MAX: Final = 16_384
CANCEL: Final = 8

Header = tuple[str, str]


class Http2:
    """One connection that respects flow control and nothing else."""

    def __init__(self, port: int, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        plain = socket.create_connection((host, port), timeout=30)
        self.socket = plain if tls is None else tls.wrap_socket(plain, server_hostname="localhost")
        self.window = WINDOW_DEFAULT
        self.initial_window = WINDOW_DEFAULT
        self.windows: dict[int, int] = {}
        """How many bytes each open stream may still send."""
        self.settings: dict[int, int] = {}
        """The settings that the server has announced."""
        self.acks = 0
        """How many pings the server has answered."""
        self.is_closed = False
        self._received = bytearray()
        self._next_stream = 1
        self.send(PREFACE + frame(SETTINGS))

    def open(self, path: str, headers: Iterable[Header] = (), *, end: bool = False) -> int:
        """Open a stream; returns its number."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        self.windows[stream] = self.initial_window
        self.send(frame(HEADERS, stream, request_block(path, headers), END_HEADERS | (END_STREAM if end else 0)))
        return stream

    def push(self, stream: int, body: memoryview | bytes, *, end: bool = False) -> int:
        """Send as much of the body as the windows allow; returns how much."""
        allowed = max(min(len(body), self.windows.get(stream, 0), self.window), 0)
        view = memoryview(body)
        pieces = [view[start : min(start + FRAME_BYTES_MAX, allowed)] for start in range(0, allowed, FRAME_BYTES_MAX)]
        for piece in pieces:
            is_last = end and piece is pieces[-1] and allowed == len(body)
            self.send(frame(DATA, stream, piece, END_STREAM if is_last else 0))
        if allowed:
            self.window -= allowed
            self.windows[stream] -= allowed
        return allowed

    def reset(self, stream: int) -> None:
        """Cancel a stream."""
        self.windows.pop(stream, None)
        self.send(frame(RST_STREAM, stream, struct.pack(">I", CANCEL)))

    def send(self, data: bytes) -> None:
        """Send bytes; a connection that the server has closed is marked as closed."""
        try:
            self.socket.sendall(data)
        except OSError:
            self.is_closed = True

    def receive(self, seconds: float = 0.0) -> bool:
        """Handle what the server has sent; returns whether there was anything."""
        has_any = False
        while not self.is_closed and self._is_readable(0.0 if has_any else seconds):
            has_any = True
            try:
                data = self.socket.recv(262_144)
            except OSError:
                data = b""
            if not data:
                self.is_closed = True
            self._received += data
            self._handle_frames()
        return has_any

    def ping(self, seconds: float = 60.0) -> bool:
        """Whether the server answers a ping: what was sent before has arrived."""
        before = self.acks
        self.send(frame(PING, 0, bytes(8)))
        while self.acks == before and not self.is_closed and self.receive(seconds):
            pass
        return self.acks > before

    def close(self) -> None:
        """Close the connection without a GOAWAY frame."""
        self.socket.close()

    def _is_readable(self, seconds: float) -> bool:
        if isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
            return True
        poll = select.poll()  # `select` refuses descriptors above 1,023.
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(seconds * 1_000))

    def _handle_frames(self) -> None:
        while len(self._received) >= 9:
            size = int.from_bytes(self._received[:3], "big")
            if len(self._received) < 9 + size:
                return
            kind, flags = self._received[3], self._received[4]
            stream = int.from_bytes(self._received[5:9], "big")
            body = bytes(self._received[9 : 9 + size])
            del self._received[: 9 + size]
            self._handle(kind, flags, stream, body)

    def _handle(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            self._settle(body)
        elif kind == WINDOW_UPDATE and stream == 0:
            self.window += int.from_bytes(body, "big")
        elif kind == WINDOW_UPDATE and stream in self.windows:
            self.windows[stream] += int.from_bytes(body, "big")
        elif kind == PING and flags & ACK:
            self.acks += 1
        elif kind == PING:
            self.send(frame(PING, 0, body, ACK))
        elif kind == GOAWAY:
            self.is_closed = True
        elif kind == RST_STREAM or (kind in (HEADERS, DATA) and flags & END_STREAM):
            self.windows.pop(stream, None)

    def _settle(self, body: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", body):
            self.settings[name] = value
            if name == INITIAL_WINDOW_SIZE:
                for stream in self.windows:
                    self.windows[stream] += value - self.initial_window
                self.initial_window = value
        self.send(frame(SETTINGS, flags=ACK))


def frame(kind: int, stream: int = 0, body: bytes | memoryview = b"", flags: int = 0) -> bytes:
    """The bytes of one frame."""
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def request_block(path: str, headers: Iterable[Header] = ()) -> bytes:
    """The headers of a gRPC call, none of them compressed."""
    own: Sequence[Header] = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    )
    return b"".join(_literal(name) + _literal_value(value) for name, value in (*own, *headers))


def _literal(name: str) -> bytes:
    return b"\x00" + _literal_value(name)


def _literal_value(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return _length(len(data)) + data


def _length(size: int) -> bytes:
    """An integer with a prefix of seven bits, as HPACK writes it."""
    if size < 127:
        return bytes([size])
    rest, size = bytearray([127]), size - 127
    while size >= 128:
        rest.append(size % 128 + 128)
        size //= 128
    return bytes([*rest, size])
