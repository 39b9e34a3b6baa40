"""Attacks with whole gRPC requests that are large or many, and with responses that are not read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc

from tests.hostile.attacks_grpc import SECONDS_MAX, Attack, connected, grpc_message, push_all, with_key
from tests.hostile.http2 import INITIAL_WINDOW_SIZE, SETTINGS, Http2, frame

DESK: Final = "/everwork.v1.DeskService"
SECONDS: Final = 60.0
_UNKNOWN: Final = b"\x9a\x7d"
"""The tag of a field that no message has."""


@contextmanager
def requests(port: int, key: str | None, path: str, message: bytes, count: int) -> Iterator[Attack]:
    """Calls with this request, as far as the server takes them; their responses are read."""
    with connected(port, 1) as attack:
        whole = memoryview(grpc_message(message))
        [one] = attack.connections
        push_all(attack, {(one, one.open(path, with_key(key))): whole for _ in range(count)}, end=True)
        yield attack


@contextmanager
def unread(port: int, key: str, path: str, message: bytes, count: int) -> Iterator[Attack]:
    """Calls whose responses are not read."""
    with connected(port, 1) as attack:
        [one] = attack.connections
        read_nothing(one)
        for _ in range(count):
            one.push(one.open(path, with_key(key)), grpc_message(message), end=True)
            one.receive()
        one.ping()
        yield attack


def read_nothing(one: Http2) -> None:
    """Let the server send nothing on any stream."""
    one.send(frame(SETTINGS, 0, INITIAL_WINDOW_SIZE.to_bytes(2, "big") + bytes(4)))
    one.receive(SECONDS_MAX)


def status(port: int, key: str, path: str, message: bytes) -> tuple[grpc.StatusCode, str]:
    """The status of a call, and its details."""
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        call: Any = channel.unary_unary(path, None, None)
        try:
            call(message, metadata=(("x-api-key", key),), timeout=SECONDS)
        except grpc.RpcError as error:
            return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


def is_ok(port: int, key: str, path: str, message: bytes) -> bool:
    """Whether a call succeeds."""
    return status(port, key, path, message)[0] is grpc.StatusCode.OK


def padded(message: Any, size: int) -> bytes:
    """A message with an unknown field of this size."""
    return bytes(message.SerializeToString() + _UNKNOWN + varint(size) + b"x" * size)


def varint(number: int) -> bytes:
    """A number as protobuf writes it."""
    written = b""
    while number > 127:
        written += bytes([number & 127 | 128])
        number >>= 7
    return written + bytes([number])
