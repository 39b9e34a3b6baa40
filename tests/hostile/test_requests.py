"""Hostile callers with large requests and responses: they stay within the bytes in flight, and others are served."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from everwork.core.limits import EVENTS_MAX, GUEST_BYTES_MAX, MERGED_BYTES_MAX, SETTLE_EVENTS_MAX
from everwork.proto import work_pb2 as pb
from tests.app.waiting import until_sync
from tests.hostile import attacks_grpc as grpc_attacks
from tests.hostile import attacks_http as http_attacks
from tests.hostile import attacks_requests as attacks
from tests.hostile import attacks_stream
from tests.hostile.served import KEY, MIB, Served, served
from tests.hostile.test_http import call, is_served

SLACK_BYTES = 48 * MIB
"""What the server needs for its own work, and for one request that is larger than expected."""


@contextmanager
def bounded(tmp_path: Path, mebibytes: int) -> Iterator[Served]:
    """A server with little room, whose memory must not grow by more than this."""
    limits = {"max_bytes_in_flight_per_key": str(16 * MIB), "max_bytes_in_flight": str(64 * MIB)}
    with served(tmp_path, **limits) as server:  # type: ignore[arg-type]  # All of them are settings.
        assert is_served(server)
        before = server.rss_bytes
        yield server
        assert is_served(server)
        assert (server.peak_rss_bytes - before) // MIB < mebibytes + SLACK_BYTES // MIB


def a_large_job(server: Served, **fields: object) -> int:
    """The key of a job that is almost as large as allowed."""
    job = {"type": "large", "variables": {"text": "x" * 1_000_000}, **fields}
    status, body = call(server, "POST", "/api/v1/jobs", [job])
    assert status == 201
    return int(body.partition(b'"key":"')[2].partition(b'"')[0])


# Requests ---------------------------------------------------------------------------------------------------


def test_watches_of_services_with_large_names_are_refused(tmp_path: Path) -> None:
    with bounded(tmp_path, 64) as server:
        name = b"\x0a" + attacks.varint(4_000_000) + b"x" * 4_000_000
        with attacks.requests(server.grpc_port, None, grpc_attacks.WATCH, name, 60) as attack:
            until_sync(lambda: attack.look(0.1).streams == 0)
        small = pb.JobRequest().SerializeToString() + b"\x0a" + attacks.varint(GUEST_BYTES_MAX - 10) + b"x" * 4_086
        with attacks.requests(server.grpc_port, None, grpc_attacks.WATCH, small[:GUEST_BYTES_MAX], 1) as attack:
            attack.look(0.5)
            assert attack.streams == 1


@pytest.mark.parametrize("name", ["Result", "Activate"])
def test_waiting_calls_with_large_requests_fill_no_memory(tmp_path: Path, name: str) -> None:
    with bounded(tmp_path, 16 + 64) as server:
        key = a_large_job(server)
        waits = {
            "Result": pb.ResultRequest(key=key, wait_ms=20_000),
            "Activate": pb.ActivateRequest(type="nothing", worker="w", wait_ms=20_000),
        }
        message = attacks.padded(waits[name], 4_000_000)
        with attacks.requests(server.grpc_port, KEY, f"{attacks.DESK}/{name}", message, 80) as attack:
            assert attack.sent_bytes < 40 * 4_000_000
            assert is_served(server)


def test_failures_that_are_merged_into_large_variables_fill_no_memory(tmp_path: Path) -> None:
    with bounded(tmp_path, 2 * 32 + 64) as server:
        fail = pb.Fail(error="e", variables=b'{"more":1}')
        outcome = pb.Outcome(key=a_large_job(server), attempt=1, fail=fail)
        request = pb.SettleRequest(outcomes=[outcome] * 300)
        code, details = attacks.status(server.grpc_port, KEY, f"{attacks.DESK}/Settle", request.SerializeToString())
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert f"at most {MERGED_BYTES_MAX:,} bytes of merged variables" in details
        several = pb.SettleRequest(outcomes=[outcome] * 30).SerializeToString()
        with attacks.requests(server.grpc_port, KEY, f"{attacks.DESK}/Settle", several, 20) as attack:
            until_sync(lambda: attack.look(0.1).streams == 0)
        messages = [attacks_stream.HELLO, pb.FromWorker(outcomes=[outcome] * 300), pb.FromWorker(draining=True)]
        with attacks_stream.worker_messages(server.grpc_port, KEY, messages, end=True) as attack:
            until_sync(lambda: attack.look(0.1).streams == 0)


def test_messages_with_more_fields_than_any_valid_one_has_are_not_parsed(tmp_path: Path) -> None:
    event = pb.NewJob(type="a")
    many = pb.Outcome(key=1, attempt=1, complete=pb.Complete(events=[event] * 8_000))
    with bounded(tmp_path, 16) as server:
        for path, request in (
            (grpc_attacks.CREATE, b"\x0a\x00" * 2_000_000),
            (f"{attacks.DESK}/Settle", pb.SettleRequest(outcomes=[many] * 90).SerializeToString()),
        ):
            code, details = attacks.status(server.grpc_port, KEY, path, request)
            assert (code, "at most 100,000 fields" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True), details
        messages = [attacks_stream.HELLO, pb.FromWorker(outcomes=[many] * 90)]
        with attacks_stream.worker_messages(server.grpc_port, KEY, messages) as attack:
            until_sync(lambda: attack.look(0.1).streams == 0)


def test_outcomes_with_too_many_events_are_refused(tmp_path: Path) -> None:
    event = pb.NewJob(type="a")
    with served(tmp_path) as server:
        one = pb.Outcome(key=1, attempt=1, complete=pb.Complete(events=[event] * (EVENTS_MAX + 1)))
        many = pb.Outcome(key=1, attempt=1, complete=pb.Complete(events=[event] * (SETTLE_EVENTS_MAX // 2)))
        for outcomes, limit in (([one], EVENTS_MAX), ([many] * 3, SETTLE_EVENTS_MAX)):
            request = pb.SettleRequest(outcomes=outcomes).SerializeToString()
            code, details = attacks.status(server.grpc_port, KEY, f"{attacks.DESK}/Settle", request)
            assert (code, f"at most {limit:,}" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True), details
        messages = [attacks_stream.HELLO, pb.FromWorker(outcomes=[many] * 3)]
        with attacks_stream.worker_messages(server.grpc_port, KEY, messages) as attack:
            until_sync(lambda: attack.look(0.1).streams == 0)


def test_outcomes_that_wait_until_they_are_settled_fill_no_memory(tmp_path: Path) -> None:
    with bounded(tmp_path, 16 + 32) as server:
        for _ in range(10):
            a_large_job(server)
        with attacks_stream.outcomes_without_reading(server.grpc_port, KEY, "large", 60) as attack:
            assert attack.sent_bytes < 12 * 4_000_000
            assert is_served(server)


def test_json_of_many_small_values_fills_no_memory(tmp_path: Path) -> None:
    with bounded(tmp_path, 16 + 32) as server:
        body = b"[" + b",".join([b'{"type":"a"}'] * 4_900) + b"]"
        peers = http_attacks.posts(server.http_port, KEY, "/api/v1/jobs", body, count=100)
        assert is_served(server)
        http_attacks.close_all(peers)


# Responses --------------------------------------------------------------------------------------------------


def test_jobs_that_are_not_read_fill_no_memory(tmp_path: Path) -> None:
    with bounded(tmp_path, 2 * 16 + 64) as server:
        request = pb.JobRequest(key=a_large_job(server)).SerializeToString()
        with attacks.unread(server.grpc_port, KEY, f"{attacks.DESK}/Get", request, 200) as attack:
            until_sync(lambda: attack.look(0.1).streams < 40)
            assert is_served(server)
        until_sync(
            lambda: attacks.status(server.grpc_port, KEY, f"{attacks.DESK}/Get", request)[0] is grpc.StatusCode.OK
        )


@pytest.mark.parametrize("method", ["GET", "PUT", "POST"])
def test_jobs_that_are_not_read_over_rest_fill_no_memory(tmp_path: Path, method: str) -> None:
    with bounded(tmp_path, 16 + 64) as server:
        key = a_large_job(server, dedupe_key="one")
        path, body = {
            "GET": (f"/api/v1/jobs/{key}", b""),
            "PUT": (f"/api/v1/jobs/{key}/priority", b'{"priority": 1}'),
            "POST": ("/api/v1/jobs", b'[{"type": "large", "dedupe_key": "one"}]'),
        }[method]
        peers = http_attacks.posts(server.http_port, KEY, path, body, count=300, method=method)
        assert is_served(server)
        http_attacks.close_all(peers)
