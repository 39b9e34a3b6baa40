"""The attacks of `tests/hostile` as noises: each keeps its connections open, and replaces those that the server ends.

The tests show that the server's memory stays bounded; this measures the effect on a quiet tenant and on `/healthz`.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from benchmarks.noise import Noise, Target
from tests.hostile import attacks_grpc, attacks_http

HELD_SECONDS = 10.0
"""After this time, an attack closes its connections and opens new ones."""
DRIP_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class _HttpAttack:
    """Connections to the HTTP port that are held open; if `drips`, each sends a byte now and then."""

    attack: Callable[[Target], list[socket.socket]]
    drips: bool = False

    def __call__(self, target: Target) -> None:
        while True:
            peers = self.attack(target)
            ends = time.monotonic() + HELD_SECONDS
            while time.monotonic() < ends:
                time.sleep(DRIP_SECONDS)
                if self.drips:
                    attacks_http.drip(peers)
            attacks_http.close_all(peers)


@dataclass(frozen=True, slots=True)
class _GrpcAttack:
    """Connections to the gRPC port that are held open."""

    attack: Callable[[Target], AbstractContextManager[object]]
    seconds: float = HELD_SECONDS

    def __call__(self, target: Target) -> None:
        while True:
            with self.attack(target):
                time.sleep(self.seconds)


def _dripped_bodies(target: Target) -> list[socket.socket]:
    return attacks_http.dripping_logins(target.http_port, 150, 4_096)


def _large_logins(target: Target) -> list[socket.socket]:
    return attacks_http.dripping_logins(target.http_port, 150)


def _unread_pages(target: Target) -> list[socket.socket]:
    return attacks_http.slow_readers(target.http_port, target.key, 40)


def _slow_heads(target: Target) -> list[socket.socket]:
    return attacks_http.slow_heads(target.http_port, 500)


def _pipelines(target: Target) -> list[socket.socket]:
    return attacks_http.pipelines(target.http_port, 50)


def _idle_connections(target: Target) -> list[socket.socket]:
    return attacks_http.idle_connections(target.http_port, 500)


def _unfinished_messages(target: Target) -> AbstractContextManager[object]:
    return attacks_grpc.unfinished_messages(target.grpc_port, target.key, connections=3)


def _health_watches(target: Target) -> AbstractContextManager[object]:
    return attacks_grpc.health_watches(target.grpc_port)


def _idle_grpc_connections(target: Target) -> AbstractContextManager[object]:
    return attacks_grpc.idle_http2(target.grpc_port, 200)


def _rapid_resets(target: Target) -> AbstractContextManager[object]:
    return attacks_grpc.rapid_resets(target.grpc_port, 1_000, target.key)


ATTACKS: dict[str, Noise] = {
    "attack: dripped bodies": _HttpAttack(_dripped_bodies, drips=True),
    "attack: large logins": _HttpAttack(_large_logins),
    "attack: unread pages": _HttpAttack(_unread_pages),
    "attack: slow heads": _HttpAttack(_slow_heads, drips=True),
    "attack: unread pipelines": _HttpAttack(_pipelines),
    "attack: idle connections": _HttpAttack(_idle_connections),
    "attack: unfinished messages": _GrpcAttack(_unfinished_messages),
    "attack: health watches": _GrpcAttack(_health_watches),
    "attack: idle gRPC connections": _GrpcAttack(_idle_grpc_connections),
    "attack: rapid resets": _GrpcAttack(_rapid_resets, 1.0),
}
"""Every attack by name."""
