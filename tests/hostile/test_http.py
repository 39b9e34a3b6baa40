"""Attacks on the HTTP port of a real server: its memory stays under a stated bound, and others are served."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.app.waiting import until_sync
from tests.hostile import attacks_http as attacks
from tests.hostile.served import KEY, MIB, Served, served

SECONDS_MAX = 60.0


def call(server: Served, method: str, path: str, body: Any = None, key: str = KEY) -> tuple[int, bytes]:
    """The status and body of a response; 0 if the connection was cut."""
    headers = {"X-API-Key": key, "Content-Type": "application/json", "Prefer": "return=minimal"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.http_port}{path}", data=data, headers=headers, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""


def is_served(server: Served) -> bool:
    """Whether another client gets a response."""
    return call(server, "GET", "/healthz")[0] == 200


ATTACKS: dict[str, Callable[[int], list[socket.socket]]] = {
    "endless trailers": lambda port: attacks.endless_trailers(port, 5),
    "many headers": lambda port: attacks.many_headers(port, 100),
    "dripping logins": lambda port: attacks.dripping_logins(port, 150),
    "idle connections": lambda port: attacks.idle_connections(port, 1_500),
    "slow heads": lambda port: attacks.slow_heads(port, 1_500),
    "pipelines": lambda port: attacks.pipelines(port, 50),
}
"""Attacks without a key."""
GROWTH_MIB_MAX = 64


def test_attacks_without_a_key_do_not_fill_the_memory(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        assert is_served(server)
        before = server.rss_bytes
        for name, attack in ATTACKS.items():
            peers = attack(server.http_port)
            until_sync(lambda: is_served(server))
            assert (server.peak_rss_bytes - before) // MIB < GROWTH_MIB_MAX, name
            assert server.descriptors < 1_150, name
            attacks.close_all(peers)
            until_sync(lambda: server.descriptors < 100)
        assert len(server.log.splitlines()) <= len(ATTACKS), server.log


def test_pages_that_are_not_read_do_not_fill_the_memory(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        large = [{"type": "a", "variables": {"text": "x" * 1_000_000}} for _ in range(17)]
        assert call(server, "POST", "/api/v1/jobs", large)[0] == 201
        before = server.peak_rss_bytes
        peers = attacks.slow_readers(server.http_port, KEY, 40)
        try:
            until_sync(lambda: call(server, "GET", "/api/v1/jobs?limit=1000")[0] == 429)
            other = json.loads(call(server, "POST", "/api/v1/keys", {"name": "b", "permissions": ["jobs:read"]})[1])
            status, page = call(server, "GET", "/api/v1/jobs?limit=1000", key=other["key"])
            assert (status, len(page) > 16 * MIB) == (200, True)
            assert is_served(server)
            assert (server.peak_rss_bytes - before) // MIB < 64 + 64
        finally:
            attacks.close_all(peers)
        until_sync(lambda: call(server, "GET", "/api/v1/jobs?limit=1000")[0] == 200)
