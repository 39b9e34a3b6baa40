"""Hostile callers of the gRPC port: what they can occupy is bounded, and others are served meanwhile."""

from __future__ import annotations

from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2

from everwork.core.limits import CALLS_PER_CONNECTION, RECEIVING_EACH_MAX, WATCHES_EACH_MAX
from everwork.proto import work_pb2
from everwork.server.grpc.server import WINDOW_BYTES
from tests.app.waiting import until_sync
from tests.hostile import attacks_grpc as attacks
from tests.hostile.http2 import MAX_CONCURRENT_STREAMS, PING, SETTINGS
from tests.hostile.served import KEY, MIB, Served, served

SECONDS = 10.0
SLACK_BYTES = 40 * MIB
"""What the server needs for its own work, and for a few hundred calls that it refuses."""
PENDING_BYTES = 200 * MIB
"""What calls need that the server has not started to process: at most 10,000, and many are dropped above 5,000."""


def test_unfinished_requests_fill_no_memory_and_others_are_served(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        before, messages = server.rss_bytes, RECEIVING_EACH_MAX * 4 * MIB
        with attacks.unfinished_messages(server.grpc_port, None) as attack:
            assert attack.streams == 0
        assert server.peak_rss_bytes < before + SLACK_BYTES
        with attacks.unfinished_messages(server.grpc_port, None, path=attacks.CHECK) as attack:
            assert attack.streams == RECEIVING_EACH_MAX
            assert checked(server) == health_pb2.HealthCheckResponse.SERVING
        assert server.peak_rss_bytes < before + messages + SLACK_BYTES
        with attacks.unfinished_messages(server.grpc_port, KEY, connections=3) as attack:
            assert messages <= attack.sent_bytes <= messages + 300 * 2 * WINDOW_BYTES
            assert checked(server) == health_pb2.HealthCheckResponse.SERVING
        assert server.peak_rss_bytes < before + messages + 300 * 2 * WINDOW_BYTES + SLACK_BYTES
        assert create(server) is grpc.StatusCode.OK


def test_a_flood_of_watches_is_refused_above_the_limit_of_an_address(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        before = server.rss_bytes
        with attacks.health_watches(server.grpc_port) as attack:
            # As long as more than 5,000 calls are queued, gRPC drops some at random, honest ones too.
            until_sync(lambda: attack.look(0.1).streams <= WATCHES_EACH_MAX)
            assert checked(server) == health_pb2.HealthCheckResponse.SERVING
            assert create(server) is grpc.StatusCode.OK
        assert server.peak_rss_bytes < before + PENDING_BYTES
        assert log_of(tmp_path).count("too many calls without an API key are open") == 1


def test_connections_above_the_limit_are_refused_until_others_close(tmp_path: Path) -> None:
    with served(tmp_path, max_connections="20") as server:
        with attacks.idle_http2(server.grpc_port, 40) as attack:
            attack.look(0.1)
            assert len(attack.alive) == 20
            assert attack.alive[0].settings[MAX_CONCURRENT_STREAMS] == CALLS_PER_CONNECTION
            assert create(server, wait=False) is grpc.StatusCode.UNAVAILABLE
        assert create(server) is grpc.StatusCode.OK


def test_cancelled_calls_floods_of_frames_and_large_metadata_fill_no_memory(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        before = server.rss_bytes
        with attacks.rapid_resets(server.grpc_port, 5_000, KEY):
            assert create(server) is grpc.StatusCode.OK
        for kind in (PING, SETTINGS):
            with attacks.frame_flood(server.grpc_port, 100_000, kind):
                assert create(server) is grpc.StatusCode.OK
        with attacks.large_metadata(server.grpc_port, 1_000):
            assert create(server) is grpc.StatusCode.OK
        assert server.peak_rss_bytes < before + PENDING_BYTES


def checked(server: Served) -> int:
    """The health status of the server."""
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options=OWN) as channel:
        call = channel.unary_unary(attacks.CHECK, None, health_pb2.HealthCheckResponse.FromString)
        status: int = call(b"", timeout=SECONDS).status
        return status


def create(server: Served, *, wait: bool = True) -> grpc.StatusCode:
    """The status of an honest call; it may wait for a connection."""
    request = work_pb2.CreateJobsRequest(jobs=[work_pb2.NewJob(type="honest")])
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options=OWN) as channel:
        call = channel.unary_unary(attacks.CREATE, None, None)
        metadata = (("x-api-key", KEY),)
        try:
            call(request.SerializeToString(), metadata=metadata, timeout=SECONDS, wait_for_ready=wait)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return grpc.StatusCode.OK


OWN = [("grpc.use_local_subchannel_pool", 1)]
"""Each call has a connection of its own."""


def log_of(folder: Path) -> str:
    return (folder / "served.log").read_text()
