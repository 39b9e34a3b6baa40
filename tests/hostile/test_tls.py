"""TLS handshakes that do not end: they occupy a limited number of connections, and others are served."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import grpc
import trustme

from tests.app.waiting import until_sync
from tests.hostile import attacks_grpc
from tests.hostile import attacks_http as attacks
from tests.hostile.served import MIB, Served, served

CONNECTIONS_MAX = 100
CLOSING_MAX = 34
"""How many more may be open: those that are being refused."""
SLACK_BYTES = 64 * MIB
HELLO_START = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc" + b"x" * 16_000
"""A ClientHello as large as a TLS record may be, without its end."""


class Tls(NamedTuple):
    """A server with TLS, and its authority."""

    server: Served
    authority: trustme.CA

    def is_served(self) -> bool:
        """Whether another client of the HTTP port gets a response."""
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        connection = http.client.HTTPSConnection("localhost", self.server.http_port, context=context, timeout=30)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def is_served_by_grpc(self) -> bool:
        """Whether another client of the gRPC port gets a response."""
        trusted = grpc.ssl_channel_credentials(self.authority.cert_pem.bytes())
        with grpc.secure_channel(f"localhost:{self.server.grpc_port}", trusted) as channel:
            channel.unary_unary(attacks_grpc.CHECK, None, None)(b"", timeout=30)
        return True


@contextmanager
def with_tls(folder: Path) -> Iterator[Tls]:
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost")
    leaf.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    leaf.private_key_pem.write_to_path(folder / "key.pem")
    files = {"tls_certificate": f"{folder / 'cert.pem'}", "tls_key": f"{folder / 'key.pem'}"}
    with served(folder, max_connections=f"{CONNECTIONS_MAX}", **files) as server:  # type: ignore[arg-type]
        yield Tls(server, authority)


def handshakes(port: int, count: int) -> list[socket.socket]:
    """Handshakes that have started and do not go on."""
    peers = attacks.idle_connections(port, count)
    return attacks.drip(peers, HELLO_START)


def bounded(server: Served, peers: list[socket.socket], descriptors_max: int) -> bool:
    """Whether the server has refused the connections above its limit; meanwhile it has no more open than allowed."""
    assert server.descriptors <= descriptors_max
    return len(attacks.drip(peers)) <= CONNECTIONS_MAX


def test_handshakes_that_do_not_end_do_not_block_the_http_port(tmp_path: Path) -> None:
    with with_tls(tmp_path) as tls:
        assert tls.is_served()
        before, descriptors = tls.server.rss_bytes, tls.server.descriptors
        peers = handshakes(tls.server.http_port, 300)
        until_sync(tls.is_served)
        assert tls.is_served_by_grpc()
        assert tls.server.descriptors <= descriptors + CONNECTIONS_MAX + CLOSING_MAX
        assert tls.server.peak_rss_bytes < before + SLACK_BYTES
        attacks.close_all(peers)
        until_sync(lambda: tls.server.descriptors <= descriptors + 2)
        assert len(tls.server.log.splitlines()) <= 1, tls.server.log


def test_handshakes_on_the_grpc_port_are_counted_and_make_room_when_they_end(tmp_path: Path) -> None:
    with with_tls(tmp_path) as tls:
        assert tls.is_served_by_grpc()
        before, descriptors = tls.server.rss_bytes, tls.server.descriptors
        peers = handshakes(tls.server.grpc_port, 300)
        until_sync(lambda: bounded(tls.server, peers, descriptors + CONNECTIONS_MAX + CLOSING_MAX))
        assert tls.is_served()
        assert tls.server.peak_rss_bytes < before + SLACK_BYTES
        attacks.close_all(peers)
        until_sync(lambda: tls.server.descriptors <= descriptors + 2)
        assert tls.is_served_by_grpc()
