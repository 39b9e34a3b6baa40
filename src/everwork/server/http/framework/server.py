"""The HTTP server: uvicorn in the running event loop."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn

from everwork.exceptions import BadConfiguration
from everwork.server.http.app import make_app
from everwork.server.http.framework.context import AppContext
from everwork.server.http.framework.protocol import BoundedProtocol
from everwork.server.listening import open_listener
from everwork.server.metrics import Metrics
from everwork.server.readiness import Readiness
from everwork.server.settings import Settings
from everwork.service.access.keys import KeyRing
from everwork.service.monitor.sampler import MetricsSampler
from everwork.service.service import JobService

KEEP_ALIVE_SECONDS: Final = 30
TICK_SECONDS: Final = 0.1
"""How often uvicorn checks whether to stop."""
CANCEL_SECONDS: Final = 1.0
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""The ciphers for TLS 1.2; all ciphers of TLS 1.3 are fine."""


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signal handling to its program."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield


class HttpServer:
    """REST API and dashboard of one service.

    Unless the caller passes an open sampler, the engine is sampled only on demand.
    """

    def __init__(
        self,
        service: JobService,
        keys: KeyRing,
        settings: Settings,
        *,
        metrics: Metrics | None = None,
        sampler: MetricsSampler | None = None,
    ) -> None:
        sampler = sampler or service.sampler()
        self.context = AppContext(service, keys, settings, sampler, Readiness(service), metrics or Metrics())
        self.app = make_app(self.context)
        self._settings = settings
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Start listening and return the bound port."""
        config = self._config()
        listener = _bind(self._settings)
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]), name="everwork-http")
        while not self._server.started:
            if self._task.done():
                await self._task
                raise BadConfiguration("http: the server stopped while starting")
            await asyncio.sleep(0.001)
        return int(listener.getsockname()[1])

    async def stop(self, grace: float) -> None:
        """Accept no more requests, end long polls, and wait up to `grace` seconds for requests in progress.

        It can be called again in the meantime, with a shorter grace period.
        """
        if (server := self._server) is None or (task := self._task) is None:
            return
        self.context.stopping.set()
        server.should_exit = True
        await asyncio.wait([task], timeout=max(grace, 0))
        while not task.done():
            server.force_exit = True
            await _cancel_requests(server)
            await asyncio.wait([task], timeout=TICK_SECONDS)
        await _cancel_requests(server)  # Requests that arrived while the server was stopping.
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
        except OSError as error:  # ssl.SSLError is an OSError.
            raise BadConfiguration(f"tls_certificate, tls_key: cannot be used: {error.strerror or error}") from None
        return config

    @property
    def _tls(self) -> tuple[str | None, str | None, str | None]:
        """Certificate, key, and the CA that must have issued client certificates."""
        settings = self._settings
        certificate, key, authority = (
            None if path is None else str(path)
            for path in (settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
        )
        return certificate, key, authority


async def _cancel_requests(server: uvicorn.Server) -> None:
    """Cancel requests in progress with a 503 response, and close all connections."""
    tasks = list(server.server_state.tasks)
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
    for connection in list(server.server_state.connections):
        connection.transport.abort()


def _bind(settings: Settings) -> socket.socket:
    listener = open_listener(settings.host, settings.http_port, "http_port")
    # Connections inherit this option. Without it, the second part of a response waits 40 ms for the ACK of the first.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
