"""Hostile callers with the key of a worker: what they can occupy is bounded, and others are served meanwhile."""

from __future__ import annotations

import json
from pathlib import Path

from everwork.core.limits import ACTIVATE_BYTES_MAX, IN_FLIGHT_BYTES_EACH_DEFAULT, RECEIVING_EACH_MAX
from everwork.proto import work_pb2
from everwork.server.grpc.work_stream import FEEDS_MAX, LEASES_MAX, UNJUDGED_BYTES_MAX
from tests.app.waiting import until_sync
from tests.hostile import attacks_stream
from tests.hostile.attacks_grpc import large_requests
from tests.hostile.served import KEY, MIB, Served, served
from tests.hostile.test_http import call, is_served

SLACK_BYTES = 40 * MIB
MESSAGE = 4 * MIB


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
        assert server.peak_rss_bytes < before + 3 * SLACK_BYTES


def test_requests_of_calls_that_wait_are_counted_by_their_bytes(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        key, before = another_key(server), server.rss_bytes
        poll = work_pb2.ActivateRequest(type="a", worker="w", limit=1, lease_ms=1_000, wait_ms=30_000)
        padding = b"\x7a" + _varint(MESSAGE - 100) + b"x" * (MESSAGE - 100)  # A field that nobody knows.
        request = poll.SerializeToString() + padding
        with large_requests(server.grpc_port, key, attacks_stream.ACTIVATE, request, 100) as attack:
            assert attack.sent_bytes < IN_FLIGHT_BYTES_EACH_DEFAULT + RECEIVING_EACH_MAX * MESSAGE + 100 * 2 * 65_535
            assert call(server, "POST", "/api/v1/jobs", {"type": "a"})[0] == 201
        received = IN_FLIGHT_BYTES_EACH_DEFAULT + RECEIVING_EACH_MAX * MESSAGE
        assert server.peak_rss_bytes < before + 3 * received + SLACK_BYTES


def test_results_that_a_stream_reports_faster_than_they_are_settled_are_not_read(tmp_path: Path) -> None:
    with (
        served(tmp_path) as server,
        attacks_stream.unread_verdicts(server.grpc_port, another_key(server), 60) as attack,
    ):
        assert attack.sent_bytes < UNJUDGED_BYTES_MAX + 2 * MESSAGE
        assert is_served(server)


def test_responses_and_jobs_that_are_not_read_are_refused_to_their_key(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        large_jobs(server, ["a", "b", "c", "d"], 32)
        key, before = another_key(server), server.peak_rss_bytes
        page = work_pb2.ListRequest(limit=10).SerializeToString()
        with attacks_stream.unread_calls(server.grpc_port, key, attacks_stream.LIST, [page] * 100) as attack:
            until_sync(lambda: attack.look(0.1).streams <= IN_FLIGHT_BYTES_EACH_DEFAULT // 3_000_000)
            assert server.peak_rss_bytes < before + IN_FLIGHT_BYTES_EACH_DEFAULT + 4 * SLACK_BYTES
            assert is_served(server)
        before = server.peak_rss_bytes
        with attacks_stream.unread_activations(server.grpc_port, key, ["a", "b", "c", "d"]) as attack:
            until_sync(lambda: attack.look(0.1).streams <= 2)
            assert is_served(server)
        assert server.peak_rss_bytes < before + 3 * ACTIVATE_BYTES_MAX + SLACK_BYTES


def _varint(number: int) -> bytes:
    return b"" if not number else bytes([number % 128 + (128 if number >= 128 else 0)]) + _varint(number // 128)
