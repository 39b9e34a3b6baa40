"""A server with a low limit of open files logs this, reserves some for itself, and recovers."""

from __future__ import annotations

import resource
from pathlib import Path

import grpc

from tests.app.waiting import until_sync
from tests.hostile import attacks_http as attacks
from tests.hostile.attacks_grpc import idle_http2
from tests.hostile.served import Served, served
from tests.hostile.test_http import call, is_served

SECONDS_MAX = 60.0


def is_served_by_grpc(server: Served) -> bool:
    """Whether the other port accepts connections."""
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        grpc.channel_ready_future(channel).result(SECONDS_MAX)
    return True


def test_with_few_descriptors_idle_connections_stop_neither_port(tmp_path: Path) -> None:
    with served(tmp_path, open_files_max=256) as server:
        assert "max_connections lowered" in server.log
        peers = attacks.idle_connections(server.http_port, 300)
        until_sync(lambda: is_served(server))
        assert is_served_by_grpc(server)
        assert call(server, "POST", "/api/v1/jobs", {"type": "a"})[0] == 201
        assert server.descriptors < 256 - 32
        attacks.close_all(peers)


def test_a_server_without_descriptors_logs_it_and_recovers(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        assert is_served(server)
        limit = server.descriptors + 8
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (limit, limit))
        peers = attacks.idle_connections(server.http_port, 40)
        until_sync(lambda: "out of file descriptors" in server.log)
        attacks.close_all(peers)
        until_sync(lambda: is_served(server))
        assert call(server, "POST", "/api/v1/jobs", {"type": "a"})[0] == 201
        assert server.log.count("out of file descriptors") == 1


def test_with_few_descriptors_idle_grpc_connections_stop_neither_port(tmp_path: Path) -> None:
    with served(tmp_path, open_files_max=256) as server, idle_http2(server.grpc_port, 300) as attack:
        attack.look(0.1)
        accepted = [one for one in attack.connections if one.settings]
        assert len(accepted) < 128  # Without a limit, each is accepted, and then many are dropped.
        assert server.descriptors < 256 - 32
        assert call(server, "POST", "/api/v1/jobs", {"type": "a"})[0] == 201
