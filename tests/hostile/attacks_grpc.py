"""Attacks on a gRPC port. Each keeps its connections open until its block ends, and reports how far it got."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from everwork.proto import work_pb2
from tests.hostile.http2 import INITIAL_WINDOW_SIZE, PING, SETTINGS, Header, Http2, frame

CREATE: Final = "/everwork.v1.WorkService/CreateJobs"
WORK: Final = "/everwork.v1.WorkService/Work"
CHECK: Final = "/grpc.health.v1.Health/Check"
WATCH: Final = "/grpc.health.v1.Health/Watch"
REFLECTION: Final = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
STALLED_SECONDS: Final = 0.4
"""A server that has accepted nothing for this long, and should not, will not accept more."""
SECONDS_MAX: Final = 60.0
"""How long a busy server may take to answer, or to accept what it should."""
FIRST_SECONDS_MAX: Final = 10.0
"""How long each connection waits for the server's settings; one that is refused gets none."""
MIB: Final = 1_048_576


class Attack:
    """What an attack has opened and sent."""

    def __init__(self, connections: Sequence[Http2] = ()) -> None:
        self.connections = list(connections)
        self.sent_bytes = 0

    @property
    def streams(self) -> int:
        """How many streams the server has not ended."""
        return sum(len(one.windows) for one in self.alive)

    @property
    def alive(self) -> list[Http2]:
        """The connections that the server has not closed."""
        return [one for one in self.connections if not one.is_closed]

    def look(self, seconds: float = 0.0) -> Attack:
        """Read what the server has sent."""
        for one in self.alive:
            one.receive(seconds)
        return self

    def close(self) -> None:
        """Close all connections."""
        for one in self.connections:
            one.close()


@contextmanager
def unfinished_messages(
    port: int, key: str | None, streams: int = 100, bytes: int = 4 * MIB, *, connections: int = 1, path: str = CREATE,
    until: Callable[[Attack], bool] = lambda _: True,
) -> Iterator[Attack]:  # fmt: skip
    """Streams whose only message never ends: its last byte is missing. `until`: what the server should do with them."""
    with connected(port, connections) as attack:
        message = memoryview(b"\0" + bytes.to_bytes(4, "big") + b"\0" * (bytes - 1))
        left = {(one, one.open(path, with_key(key))): message for one in attack.connections for _ in range(streams)}
        push_all(attack, left, until)
        yield attack


@contextmanager
def health_watches(port: int, count: int = 25_000, *, per_connection: int = 1_000) -> Iterator[Attack]:
    """Watches of the server's health, which need no key."""
    with connected(port, -(-count // per_connection)) as attack:
        for number in range(count):
            one = attack.connections[number // per_connection]
            one.push(one.open(WATCH), EMPTY_MESSAGE, end=True)
        _settled(attack)
        yield attack


@contextmanager
def idle_connections(port: int, count: int, *, opening: bytes = b"") -> Iterator[list[socket.socket]]:
    """Connections that send nothing, or nothing but these bytes."""
    sockets: list[socket.socket] = []
    try:
        for _ in range(count):
            sockets.append(socket.create_connection(("127.0.0.1", port), timeout=SECONDS_MAX))
            if opening:
                sockets[-1].sendall(opening)
        yield sockets
    finally:
        for one in sockets:
            one.close()


@contextmanager
def idle_http2(port: int, count: int) -> Iterator[Attack]:
    """Connections that are open and do nothing."""
    with connected(port, count) as attack:
        attack.look()
        yield attack


@contextmanager
def rapid_resets(port: int, count: int, key: str | None = None, path: str = CREATE) -> Iterator[Attack]:
    """Calls that are opened and immediately cancelled, on one connection (rapid reset)."""
    with connected(port, 1) as attack:
        [one] = attack.connections
        for number in range(count):
            if one.is_closed:
                break
            one.reset(one.open(path, with_key(key)))
            if number % 100 == 0:
                one.receive()
        _settled(attack)
        yield attack


@contextmanager
def frame_flood(port: int, count: int, kind: int = PING) -> Iterator[Attack]:
    """Floods of pings or settings, each of which the server must answer; no answer is read."""
    with connected(port, 1) as attack:
        [one] = attack.connections
        one.socket.settimeout(1.0)
        flood = (frame(PING, 0, bytes(8)) if kind == PING else frame(SETTINGS)) * 100
        for _ in range(count // 100):
            if one.is_closed:
                break
            one.send(flood)
            attack.sent_bytes += len(flood)
        yield attack


@contextmanager
def large_metadata(port: int, count: int, bytes: int = 8_000) -> Iterator[Attack]:
    """Calls with metadata as large as allowed, which are opened and never continued."""
    with connected(port, -(-count // 1_000)) as attack:
        for number in range(count):
            attack.connections[number // 1_000].open(CREATE, [("x-large", "x" * bytes)])
        _settled(attack)
        yield attack


@contextmanager
def unread_stream(port: int, key: str, types: Sequence[str], credits: int = 1_000) -> Iterator[Attack]:
    """A worker that requests jobs of these types and reads none of them."""
    with connected(port, 1) as attack:
        [one] = attack.connections
        one.send(frame(SETTINGS, 0, INITIAL_WINDOW_SIZE.to_bytes(2, "big") + bytes(4)))
        one.receive(SECONDS_MAX)
        stream = one.open(WORK, with_key(key))
        hello = work_pb2.FromWorker(
            hello=work_pb2.Hello(worker="reads-nothing"),
            grants=[work_pb2.Grant(type=type, credits=credits) for type in types],
        )
        one.push(stream, grpc_message(hello.SerializeToString()))
        one.ping()
        yield attack


def with_key(key: str | None) -> list[Header]:
    """The headers of a caller."""
    return [] if key is None else [("x-api-key", key)]


def grpc_message(body: bytes) -> bytes:
    """A message as gRPC frames it."""
    return b"\0" + len(body).to_bytes(4, "big") + body


EMPTY_MESSAGE: Final = grpc_message(b"")


@contextmanager
def connected(port: int, connections: int) -> Iterator[Attack]:
    """Connections of an attack."""
    attack = Attack()
    try:
        for _ in range(connections):
            attack.connections.append(Http2(port))
        for one in attack.connections:
            one.receive(FIRST_SECONDS_MAX)
        yield attack
    finally:
        attack.close()


def _settled(attack: Attack) -> None:
    """Wait until the server has seen everything that was sent before."""
    for one in attack.alive:
        one.ping()


def push_all(
    attack: Attack,
    left: dict[tuple[Http2, int], memoryview],
    until: Callable[[Attack], bool] = lambda _: True,
    *,
    end: bool = False,
) -> None:
    """Send as much on each stream as the server takes; `end` ends those that were sent as a whole."""
    moved_at = time.monotonic()
    while left and (time.monotonic() - moved_at < STALLED_SECONDS or not until(attack)):
        assert time.monotonic() - moved_at < SECONDS_MAX, f"{attack.sent_bytes:,} bytes and {attack.streams} streams"
        attack.look()
        sent_before = attack.sent_bytes
        for (one, stream), rest in list(left.items()):
            sent = one.push(stream, rest, end=end)
            attack.sent_bytes += sent
            left[one, stream] = rest[sent:]
            if len(rest) == sent or stream not in one.windows or one.is_closed:
                del left[one, stream]
        if attack.sent_bytes > sent_before:
            moved_at = time.monotonic()
        else:
            time.sleep(0.002)
