"""The REST door on its port, inside the event loop that is running already."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import uvicorn

from everwork.exceptions import BadConfiguration
from everwork.server.http.app import make_app
from everwork.server.http.framework.context import AppContext
from everwork.server.http.framework.protocol import BoundedProtocol
from everwork.server.metrics import Metrics
from everwork.server.readiness import Readiness
from everwork.server.settings import Settings
from everwork.service.access.audit import Audit
from everwork.service.access.keys import KeyRing
from everwork.service.monitor.sampler import MetricsSampler
from everwork.service.service import JobService

KEEP_ALIVE_SECONDS: Final = 30
TICK_SECONDS: Final = 0.1
"""How often uvicorn looks whether it is to end."""
FAREWELL_SECONDS: Final = 1.0
BACKLOG: Final = 2_048
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For callers with TLS 1.2; those of 1.3 are all good."""


class _Server(uvicorn.Server):
    """A server that leaves signals to the program that it is a part of."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are none of its business."""
        yield


class HttpServer:
    """REST for one service. `start` answers the port that was bound.

    Without a sampler that somebody has opened, the engine is read only when a caller needs it.
    """

    def __init__(
        self,
        service: JobService,
        keys: KeyRing,
        audit: Audit,
        settings: Settings,
        *,
        metrics: Metrics | None = None,
        sampler: MetricsSampler | None = None,
    ) -> None:
        beat = sampler or service.sampler()
        self.parts = AppContext(service, keys, audit, settings, beat, Readiness(service), metrics or Metrics())
        self.app = make_app(self.parts)
        self._settings = settings
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Listen; the port is answered."""
        config = self._config()
        bound = _bound(self._settings)
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[bound]), name="everwork-http")
        while not self._server.started:
            if self._task.done():
                await self._task
                raise BadConfiguration("http: the server ended before it had begun")
            await asyncio.sleep(0.001)
        return int(bound.getsockname()[1])

    async def stop(self, grace: float) -> None:
        """Take no more calls, end the polls, and give the calls under way so many seconds to end.

        Whoever is in more of a hurry may call it again meanwhile, with less grace.
        """
        if (server := self._server) is None or (task := self._task) is None:
            return
        self.parts.stopping.set()
        server.should_exit = True
        await asyncio.wait([task], timeout=max(grace, 0))
        while not task.done():
            server.force_exit = True
            await _break_off(server)
            await asyncio.wait([task], timeout=TICK_SECONDS)
        await _break_off(server)  # What came while the server ended.
        self._server = self._task = None

    def _config(self) -> uvicorn.Config:
        certificate, key, authority = self._tls
        config = uvicorn.Config(
            self.app,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            ssl_certfile=certificate,
            ssl_keyfile=key,
            ssl_ca_certs=authority,
            ssl_cert_reqs=ssl.CERT_NONE if authority is None else ssl.CERT_REQUIRED,
            ssl_ciphers=CIPHERS,
        )
        try:
            config.load()
        except OSError as error:  # Errors of TLS are some of them.
            raise BadConfiguration(f"tls_certificate, tls_key: cannot be used: {error.strerror or error}") from None
        return config

    @property
    def _tls(self) -> tuple[str | None, str | None, str | None]:
        """Certificate, key, and the authority whose certificates callers must have."""
        settings = self._settings
        certificate, key, authority = (
            None if path is None else str(path)
            for path in (settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
        )
        return certificate, key, authority


async def _break_off(server: uvicorn.Server) -> None:
    """End the calls under way; they say so to their callers, if these listen."""
    tasks = list(server.server_state.tasks)
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=FAREWELL_SECONDS)
    for connection in list(server.server_state.connections):
        connection.transport.abort()


def _listening(family: socket.AddressFamily, address: Any) -> socket.socket:
    """A socket on an address with all its parts; `::` takes callers with IPv4, too."""
    if family == socket.AF_INET6 and address[0] == "::" and socket.has_dualstack_ipv6():
        return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=True)
    return socket.create_server(address, family=family, backlog=BACKLOG)


def _bound(settings: Settings) -> socket.socket:
    try:
        infos = socket.getaddrinfo(settings.host, settings.http_port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = infos[0]
        bound = _listening(family, address)
    except OSError as error:
        place = f"{settings.host}:{settings.http_port}"
        raise BadConfiguration(f"http_port: cannot listen on {place}: {error.strerror or error}") from None
    # Connections inherit it. Without, the second part of an answer waits 40 ms for the first to be acknowledged.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound
