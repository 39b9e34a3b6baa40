"""Hostile callers of the gRPC port: they can occupy only a limited share, and other callers are still served."""

from __future__ import annotations

from functools import partial
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

SECONDS = 60.0
GRPC_VERSION = tuple(map(int, grpc.__version__.split(".")[:2]))
SLACK_BYTES = 120 * MIB
"""Far more than the server needs for its own work, and for a few hundred calls that it refuses."""
PENDING_BYTES = (320 if GRPC_VERSION >= (1, 83) else 1_100) * MIB
"""Twice what calls need that the server has not started to process: at most 10,000, many are dropped above 5,000. All
calls of the attack would need twice this. Older versions of gRPC need more for each."""


def test_unfinished_requests_fill_no_memory_and_others_are_served(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        before, messages = server.rss_bytes, RECEIVING_EACH_MAX * 4 * MIB
        with attacks.unfinished_messages(server.grpc_port, None, until=lambda attack: attack.streams == 0) as attack:
            assert attack.streams == 0
        assert server.peak_rss_bytes < before + SLACK_BYTES
        few = partial(attacks.unfinished_messages, until=lambda attack: attack.streams <= RECEIVING_EACH_MAX)
        with few(server.grpc_port, None, path=attacks.CHECK) as attack:
            assert attack.streams == RECEIVING_EACH_MAX
            assert is_serving(server)
        assert server.peak_rss_bytes < before + messages + SLACK_BYTES
        full = partial(attacks.unfinished_messages, until=lambda attack: attack.sent_bytes >= messages)
        with full(server.grpc_port, KEY, connections=3) as attack:
            assert messages <= attack.sent_bytes <= messages + 300 * 2 * WINDOW_BYTES
            assert is_serving(server)
        assert server.peak_rss_bytes < before + messages + 300 * 2 * WINDOW_BYTES + SLACK_BYTES
        assert create(server) is grpc.StatusCode.OK


def test_a_flood_of_watches_is_refused_above_the_limit_of_an_address(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        before = server.rss_bytes
        with attacks.health_watches(server.grpc_port) as attack:
            until_sync(lambda: is_serving(server))
            until_sync(lambda: attack.look().streams <= WATCHES_EACH_MAX)
            until_sync(lambda: is_served(server))
        assert server.peak_rss_bytes < before + PENDING_BYTES
        assert log_of(tmp_path).count("too many calls without an API key are open") == 1


def test_connections_above_the_limit_are_refused_until_others_close(tmp_path: Path) -> None:
    with served(tmp_path, max_connections="20") as server:
        with attacks.idle_http2(server.grpc_port, 40) as attack:
            until_sync(lambda: len(attack.look(0.1).alive) == 20)
            until_sync(lambda: all(one.settings for one in attack.look().alive))
            assert attack.alive[0].settings[MAX_CONCURRENT_STREAMS] == CALLS_PER_CONNECTION
            assert create(server, wait=False) is grpc.StatusCode.UNAVAILABLE
        assert create(server) is grpc.StatusCode.OK


def test_cancelled_calls_floods_of_frames_and_large_metadata_fill_no_memory(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        before = server.rss_bytes
        with attacks.rapid_resets(server.grpc_port, 5_000, KEY):
            until_sync(lambda: is_served(server))
        for kind in (PING, SETTINGS):
            with attacks.frame_flood(server.grpc_port, 100_000, kind):
                until_sync(lambda: is_served(server))
        with attacks.large_metadata(server.grpc_port, 1_000):
            until_sync(lambda: is_served(server))
        assert server.peak_rss_bytes < before + PENDING_BYTES // 2


def test_callers_without_a_key_cannot_fill_the_log(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        with attacks.connected(server.grpc_port, 1) as attack:
            [one] = attack.connections
            for _ in range(50):
                one.open(attacks.CREATE, [("x-name", "\udcff" * 2_000)], end=True)
            until_sync(lambda: attack.look(0.1).streams == 0)
        until_sync(lambda: is_served(server))
        assert len(log_of(tmp_path).splitlines()) <= 1, log_of(tmp_path)[:2_000]


def is_serving(server: Served) -> bool:
    """Whether the server says that it serves; while it has too many calls to process, it may cancel this one."""
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options=OWN) as channel:
        call = channel.unary_unary(attacks.CHECK, None, health_pb2.HealthCheckResponse.FromString)
        try:
            return bool(call(b"", timeout=SECONDS).status == health_pb2.HealthCheckResponse.SERVING)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.CANCELLED:
                return False
            raise


def is_served(server: Served) -> bool:
    """Whether an honest call is answered; with too many others before it, it is cancelled, and made again."""
    code = create(server)
    assert code in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED)
    return code is grpc.StatusCode.OK


def create(server: Served, *, wait: bool = True) -> grpc.StatusCode:
    """The status of a legitimate call; it may wait for a connection."""
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
