"""The gRPC port: one server for the jobs API, the Zeebe gateway, our own services, health and reflection."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
import grpc.aio

from everwork.aio.loops import BackgroundLoop
from everwork.core.limits import CALLS_PER_CONNECTION, MESSAGE_BYTES_MAX
from everwork.exceptions import BadConfiguration
from everwork.server.certificates import Certificates, certificate_files
from everwork.server.descriptors import connections_allowed
from everwork.server.grpc.gateway import Gateway, Methods, Router
from everwork.server.grpc.guests import Guests
from everwork.server.grpc.health import Health, reflection_methods
from everwork.server.grpc.jobs_api import JobsApi
from everwork.server.grpc.port_check import EVERY_SECONDS, PortCheck
from everwork.server.grpc.zeebe import Address, ZeebeGateway
from everwork.server.listening import cannot_listen, open_listener
from everwork.server.metrics import Metrics
from everwork.server.readiness import Readiness
from everwork.server.settings import Settings
from everwork.service.access.keys import KeyRing
from everwork.service.service import JobService

HANDSHAKE_SECONDS_MAX: Final = 10
IDLE_SECONDS_MAX: Final = 300
WINDOW_BYTES: Final = 65_535
OPTIONS: Final[Sequence[tuple[str, Any]]] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # How much a caller may send before the server reads the call. gRPC's own estimate grows far beyond 4 MiB.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    ("grpc.max_concurrent_streams", CALLS_PER_CONNECTION),
    # A connection that sends nothing, or never finishes its handshake, must not occupy a place.
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_SECONDS_MAX * 1_000),
    # Clients reconnect with their next call. There is no maximum age: it would end long polls and worker streams.
    ("grpc.max_connection_idle_ms", IDLE_SECONDS_MAX * 1_000),
    # Queued calls: above the first number, gRPC drops some at random, as CANCELLED. Workers connect in
    # bursts, after a restart of the server for example.
    ("grpc.server.max_pending_requests", 5_000),
    ("grpc.server.max_pending_requests_hard_limit", 10_000),
    # A second server on the same port would silently get a share of the calls.
    ("grpc.so_reuseport", 0),
    # A half-open connection is noticed within 15 s, even during a long poll.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # gRPC's core never sets the timer of the line above (seen in 1.85); this one ends the wait, which otherwise takes a
    # minute.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Clients may send pings, too; one that pings every 10 s must not be mistaken for an attacker.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)


class _CallersFaults(logging.Filter):
    """Drops gRPC's lines about metadata that is not text, and about callers that leave: they would fill the log."""

    DROPPED: Final = ("Invalid encoding on", "ExecuteBatchError raised in core")

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is kept."""
        return not str(record.msg).startswith(self.DROPPED)


_CALLERS_FAULTS: Final = _CallersFaults()
GRPC_LOGGER: Final = "grpc._cython.cygrpc"

Extra = Callable[[Gateway], Methods]
"""Further calls on the same port, through the same gateway."""


class GrpcServer:
    """Opens the port, and closes it without losing anything."""

    def __init__(
        self, service: JobService, keys: KeyRing, settings: Settings, metrics: Metrics, extras: Sequence[Extra] = ()
    ) -> None:
        self._settings = settings
        self._extras = extras
        self.gateway = Gateway(service, keys, metrics, settings)
        self._guests = Guests(self.gateway.receiving, self.gateway.notices)
        self._health = Health(Readiness(service), self._guests)
        self._zeebe = ZeebeGateway(self.gateway, settings.long_poll_seconds)
        self._server: grpc.aio.Server | None = None
        self._checking: BackgroundLoop | None = None

    async def start(self) -> int:
        """Start listening; returns the bound port."""
        # The HTTP port warns if the number had to be lowered.
        allowed = connections_allowed(self._settings.max_connections, warns=False)
        limit = ("grpc.max_allowed_incoming_connections", allowed)
        logging.getLogger(GRPC_LOGGER).addFilter(_CALLERS_FAULTS)
        server = grpc.aio.server(options=[*OPTIONS, limit])
        server.add_generic_rpc_handlers([Router(self._methods())])
        port = self._bind(server)
        self._zeebe.address = Address(self._settings.host, port)
        await server.start()
        self._health.start()
        check = PortCheck(self._settings.host, port, self.gateway.notices, has_tls=self._settings.tls_key is not None)
        self._checking = BackgroundLoop("everwork-grpc-port", check.tick, EVERY_SECONDS)
        self._checking.start()
        self._server = server
        return port

    async def stop(self, grace_seconds: float) -> None:
        """End long polls, finish what is in flight, and close."""
        if (server := self._server) is None:
            return
        self.gateway.stopping.set()
        await self._health.stop()
        if self._checking is not None:
            await self._checking.abort()
        self.gateway.service.end_polls()
        await server.stop(grace_seconds)  # `stop` can be called again in the meantime, with a shorter grace period.
        self._server = None

    def _methods(self) -> Methods:
        jobs = JobsApi(self.gateway, self._settings.long_poll_seconds)
        methods = {
            **jobs.methods(),
            **self._zeebe.methods(),
            **self._health.methods(),
            **reflection_methods(self._guests),
        }
        for extra in self._extras:
            methods.update(extra(self.gateway))
        return methods

    def _bind(self, server: grpc.aio.Server) -> int:
        host = f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host
        address = f"{host}:{self._settings.grpc_port}"
        credentials = _credentials(self._settings)
        try:
            if credentials is None:
                return server.add_insecure_port(address)
            return server.add_secure_port(address, credentials)
        except RuntimeError:
            raise self._listen_error() from None

    def _listen_error(self) -> BadConfiguration:
        """Find out why gRPC cannot listen: gRPC does not report the reason, but a plain socket does."""
        host, port = self._settings.host, self._settings.grpc_port
        try:
            open_listener(host, port, "grpc_port").close()
        except BadConfiguration as error:
            return error
        return cannot_listen(host, port, "grpc_port", "another program may be using the port")


def _credentials(settings: Settings) -> grpc.ServerCredentials | None:
    """The credentials of the TLS files; gRPC asks for renewed ones at each handshake."""
    files = certificate_files(settings)
    if files is None:
        return None

    def renewed() -> Any:
        found = files.changed(port="grpc")
        return None if found is None else _configuration(found)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(files.current), renewed, require_client_authentication=settings.tls_client_ca is not None
    )


def _configuration(found: Certificates) -> Any:
    return grpc.ssl_server_certificate_configuration([(found.key, found.certificate)], found.authority)
