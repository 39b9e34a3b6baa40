"""The HTTP server: uvicorn in the running event loop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

import uvicorn

from everwork.exceptions import BadConfiguration
from everwork.server.certificates import certificate_files
from everwork.server.descriptors import connections_allowed
from everwork.server.http.app import make_app
from everwork.server.http.framework.acceptor import Acceptor, Tls
from everwork.server.http.framework.connections import Connections, Timeouts
from everwork.server.http.framework.context import AppContext
from everwork.server.http.framework.in_flight import InFlight
from everwork.server.http.framework.protocol import BoundedProtocol
from everwork.server.listening import open_listener
from everwork.server.metrics import Metrics
from everwork.server.readiness import Readiness
from everwork.server.settings import Settings
from everwork.service.access.keys import KeyRing
from everwork.service.monitor.sampler import MetricsSampler
from everwork.service.service import JobService

TICK_SECONDS: Final = 0.1
"""How often uvicorn does what it does regularly."""
DRAIN_TICK_SECONDS: Final = 0.01
CANCEL_SECONDS: Final = 1.0
SWEEP_TICKS: Final = 10


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signal handling to its program, and accepts connections itself."""

    def __init__(self, config: uvicorn.Config, connections: Connections, tls: Tls | None) -> None:
        super().__init__(config)
        self._connections = connections
        self._tls = tls
        self.stopping = asyncio.Event()
        """Set, with `should_exit`, to be stopped immediately."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start accepting; the application has no lifespan."""
        make = partial(BoundedProtocol, self._connections, self.config, self.server_state)
        opened = [Acceptor(one, self._connections, make, self._tls) for one in sockets or ()]
        self.servers = opened  # type: ignore[assignment]
        self.started = True

    async def main_loop(self) -> None:
        """Tick until the server is stopped."""
        counter = 0
        while not await self.on_tick(counter):
            counter += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), TICK_SECONDS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, and wait for requests in progress; uvicorn's own waits at least a tick, even without any."""
        for server in self.servers:
            server.close()
        for one in sockets or ():
            one.close()
        for server in self.servers:
            await server.wait_closed()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        while (state.connections or state.tasks) and not self.force_exit:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(DRAIN_TICK_SECONDS)

    async def on_tick(self, counter: int) -> bool:
        """End slow connections about once a second."""
        if counter % SWEEP_TICKS == 0:
            self._connections.sweep(self._connections.clock())
        return await super().on_tick(counter)


class _OwnRefusals(logging.Filter):
    """Drops uvicorn's log lines about bad or slow clients, one per request: the protocol logs them once a minute."""

    DROPPED: Final = ("Invalid HTTP request received.", "ASGI callable returned without completing response.")

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is kept."""
        return record.msg not in self.DROPPED


_OWN_REFUSALS: Final = _OwnRefusals()


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
        timeouts: Timeouts | None = None,
    ) -> None:
        sampler = sampler or service.sampler()
        in_flight = InFlight(settings.max_bytes_in_flight, settings.max_bytes_in_flight_per_key)
        self.context = AppContext(
            service, keys, settings, sampler, Readiness(service), metrics or Metrics(), in_flight=in_flight
        )
        self.app = make_app(self.context)
        self.connections: Connections | None = None
        self._timeouts = timeouts
        self._settings = settings
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Start listening and return the bound port."""
        config, files = self._config(), certificate_files(self._settings)
        listener = _bind(self._settings)
        loop, allowed = asyncio.get_running_loop(), connections_allowed(self._settings.max_connections)
        self.connections = Connections(allowed, loop.time, self._timeouts)
        tls = None if files is None else partial(files.latest_context, port="http")
        self._server = _Server(config, self.connections, tls)
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
        server.stopping.set()
        await asyncio.wait([task], timeout=max(grace, 0))
        while not task.done():
            server.force_exit = True
            await _cancel_requests(server)
            await asyncio.wait([task], timeout=TICK_SECONDS)
        await _cancel_requests(server)  # Requests that arrived while the server was stopping.
        self._server = self._task = None

    def _config(self) -> uvicorn.Config:
        config = uvicorn.Config(
            self.app,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
        )
        config.load()
        logging.getLogger("uvicorn.error").addFilter(_OWN_REFUSALS)
        return config


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
