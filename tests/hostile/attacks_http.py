"""Attacks on the HTTP port: each returns the sockets that are still open."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from tests.hostile.served import MIB

LOGIN_BYTES: Final = 2 * MIB
"""The size of a login form that the server used to accept."""
SECONDS_MAX: Final = 20.0
"""After this time without progress, an attack goes on with its next connection."""
END_BYTES: Final = 1_024
RECEIVE_BUFFER_BYTES: Final = 4_096
PAGE: Final = "/api/v1/jobs?limit=1000"
_PIECE: Final = 65_536


def dripping_logins(port: int, count: int, body_bytes: int = LOGIN_BYTES) -> list[socket.socket]:
    """Login forms without a key, whose end is never sent."""
    head = (
        "POST /ui/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        f"Content-Length: {body_bytes}\r\n\r\n"
    )
    body = memoryview(b"key=".ljust(body_bytes - END_BYTES, b"x"))
    return _attackers(port, count, lambda peer: _send(peer, head.encode(), body))


def slow_readers(port: int, key: str, count: int, path: str = PAGE) -> list[socket.socket]:
    """Requests for a large page, whose responses are never read."""
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}\r\n\r\n".encode()
    return _attackers(port, count, lambda peer: peer.sendall(request))


def posts(port: int, key: str, path: str, body: bytes, *, count: int, method: str = "POST") -> list[socket.socket]:
    """Requests with a body, whose responses are never read."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return _attackers(port, count, lambda peer: peer.sendall(head.encode() + body))


def idle_connections(port: int, count: int) -> list[socket.socket]:
    """Connections that send nothing."""
    return _attackers(port, count, lambda _: None)


def slow_heads(port: int, count: int) -> list[socket.socket]:
    """Requests whose head does not end."""
    return _attackers(port, count, lambda peer: peer.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "))


def endless_trailers(port: int, count: int, mebibytes: int = 16) -> list[socket.socket]:
    """Chunked bodies without a key, followed by endless trailers."""
    head = b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    return _attackers(port, count, lambda peer: _send(peer, head, memoryview(b"X:y\r\n" * (mebibytes * MIB // 5))))


def many_headers(port: int, count: int) -> list[socket.socket]:
    """Unfinished heads with as many headers as fit."""
    head = b"GET / HTTP/1.1\r\n" + b"X:\r\n" * 32_000
    return _attackers(port, count, lambda peer: peer.sendall(head))


def pipelines(port: int, count: int) -> list[socket.socket]:
    """Thousands of pipelined requests on each connection, whose responses are never read."""
    requests = memoryview(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20_000)

    def attack(peer: socket.socket) -> None:
        peer.setblocking(False)
        with suppress(BlockingIOError):
            peer.send(requests)

    return _attackers(port, count, attack)


def drip(peers: Iterable[socket.socket], piece: bytes = b"x") -> list[socket.socket]:
    """Send a little on every connection, and return those that the server has neither answered nor closed."""
    return [peer for peer in peers if _is_open(peer) and _has_sent(peer, piece)]


def close_all(peers: Iterable[socket.socket]) -> None:
    """End an attack."""
    for peer in peers:
        peer.close()


def _attackers(port: int, count: int, attack: Callable[[socket.socket], object]) -> list[socket.socket]:
    peers: list[socket.socket] = []
    for _ in range(count):
        peer = socket.socket()
        try:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            peer.settimeout(SECONDS_MAX)
            peer.connect(("127.0.0.1", port))
            attack(peer)
            peers.append(peer)
        except OSError:
            peer.close()  # The server has ended the attack.
    return peers


def _send(peer: socket.socket, head: bytes, body: memoryview) -> None:
    peer.sendall(head)
    for start in range(0, len(body), _PIECE):
        peer.sendall(body[start : start + _PIECE])


def _is_open(peer: socket.socket) -> bool:
    peer.setblocking(False)
    try:
        peer.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _has_sent(peer: socket.socket, piece: bytes) -> bool:
    try:
        peer.send(piece)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True
