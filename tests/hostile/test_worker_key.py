"""Hostile callers with a worker's key: they can occupy only a limited share, and other callers are still served."""

from __future__ import annotations

import json
from pathlib import Path

from everwork.core.limits import ACTIVATE_BYTES_MAX, IN_FLIGHT_BYTES_EACH_DEFAULT
from everwork.proto import work_pb2
from everwork.server.grpc.work_stream import FEEDS_MAX, LEASES_MAX
from tests.app.waiting import until_sync
from tests.hostile import attacks_requests, attacks_stream
from tests.hostile.served import KEY, MIB, Served, served
from tests.hostile.test_http import call, is_served

SLACK_BYTES = 40 * MIB
LIST = f"{attacks_requests.DESK}/List"


def another_key(server: Served) -> str:
    """The text of a new key."""
    status, body = call(server, "POST", "/api/v1/keys", {"name": "hostile", "permissions": ["jobs"]})
    assert status == 201
    return str(json.loads(body)["key"])


def large_jobs(server: Served, types: list[str], count: int) -> None:
    """Create jobs that are almost as large as allowed."""
    for type in types:
        for _ in range(0, count, 8):
            jobs = [{"type": type, "variables": {"text": "x" * 1_000_000}}] * 8
            assert call(server, "POST", "/api/v1/jobs", jobs)[0] == 201


def test_an_activation_of_large_jobs_returns_as_many_as_fit(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        large_jobs(server, ["large"], 96)
        status, body = call(server, "POST", "/api/v1/jobs/activate", {"type": "large", "worker": "w", "max_jobs": 100})
        assert status == 200
        assert ACTIVATE_BYTES_MAX - 2 * MIB < len(body) < ACTIVATE_BYTES_MAX + 2 * MIB


def test_messages_with_endless_grants_and_attempts_end_their_streams(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        before = server.rss_bytes
        grant, lease = work_pb2.Grant(type="a"), work_pb2.Lease(key=1 << 60, attempt=1)
        tenants = work_pb2.Grant(type="a", tenants=["x"] * 1_000_000)
        hello = work_pb2.Hello(worker="w", resumed=[lease] * (LEASES_MAX + 1))
        for messages in (
            [attacks_stream.HELLO, work_pb2.FromWorker(grants=[grant] * 500_000)],
            [attacks_stream.HELLO, work_pb2.FromWorker(grants=[grant] * (FEEDS_MAX + 1))],
            [attacks_stream.HELLO, work_pb2.FromWorker(grants=[tenants])],
            [work_pb2.FromWorker(hello=hello)],
            [work_pb2.FromWorker(hello=work_pb2.Hello(worker="w" * 4_000_000))],
        ):
            with attacks_stream.worker_messages(server.grpc_port, KEY, messages) as attack:
                until_sync(lambda attack=attack: attack.look(0.1).streams == 0)  # type: ignore[misc]
            assert is_served(server)
        assert server.peak_rss_bytes < before + 5 * SLACK_BYTES


def test_lost_leases_that_are_not_read_fill_no_memory(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        assert is_served(server)
        before = server.rss_bytes
        with attacks_stream.heartbeats_without_reading(server.grpc_port, KEY, 16) as attack:
            assert 200_000 < attack.sent_bytes < 5 * 280_000  # Few of the messages are read.
            assert is_served(server)
        assert server.peak_rss_bytes < before + 2 * SLACK_BYTES


def test_responses_and_jobs_that_are_not_read_are_refused_to_their_key(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        large_jobs(server, ["a", "b", "c", "d"], 32)
        key, before = another_key(server), server.peak_rss_bytes
        page = work_pb2.ListRequest(limit=10).SerializeToString()
        with attacks_requests.unread(server.grpc_port, key, LIST, page, 100) as attack:
            until_sync(lambda: attack.look(0.1).streams <= IN_FLIGHT_BYTES_EACH_DEFAULT // 3_000_000)
            # gRPC keeps a copy; all responses together would have 1,000 MiB.
            assert server.peak_rss_bytes < before + 3 * IN_FLIGHT_BYTES_EACH_DEFAULT + SLACK_BYTES
            assert is_served(server)
        before = server.peak_rss_bytes
        with attacks_stream.unread_activations(server.grpc_port, key, ["a", "b", "c", "d"]) as attack:
            until_sync(lambda: attack.look(0.1).streams <= 2)
            assert is_served(server)
        assert server.peak_rss_bytes < before + 3 * ACTIVATE_BYTES_MAX + SLACK_BYTES
