"""The composition root of a server: one event loop, one engine, one service, a gRPC and an HTTP server."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import Final, NamedTuple

from everwork.aio.loops import BackgroundLoop
from everwork.engines.open import open_engine
from everwork.engines.values import Health
from everwork.exceptions import EngineUnavailable
from everwork.server.grpc.server import GrpcServer
from everwork.server.grpc.verbs import verb_methods
from everwork.server.grpc.work_streams import WorkStreams
from everwork.server.http.framework.server import HttpServer
from everwork.server.metrics import Metrics
from everwork.server.settings import Settings
from everwork.service.access.keys import KeyRing, NoAuthentication
from everwork.service.monitor.sampler import MetricsSampler
from everwork.service.service import JobService
from everwork.spool.settings import Offline

DEFAULTS_SECONDS: Final = 5.0
"""How often to look for types that have no policy yet."""


class Ports(NamedTuple):
    """The ports that a server listens on."""

    grpc: int
    http: int


class Server:
    """Everything that one server process runs. It is started once and stopped once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        engine = open_engine(settings.engine)
        holder = f"server-{socket.gethostname()}-{os.getpid()}"
        self.metrics = Metrics()
        self.service = JobService(
            engine,
            holder,
            budgets=settings.budgets,
            reporter=self.metrics,
            offline=Offline.of(settings.spool, settings.engine),
            types=settings.type_rules,
        )
        key_ring = KeyRing if settings.has_auth else NoAuthentication
        self.keys = key_ring(engine, environment_key=settings.api_key, rate_limit=settings.rate_limit)
        self.sampler = MetricsSampler(engine, holder)
        self._streams = WorkStreams(self.service, self.keys, settings)
        extras = [self._streams.methods, lambda gateway: verb_methods(gateway, settings.long_poll_seconds)]
        self._grpc = GrpcServer(self.service, self.keys, settings, self.metrics, extras)
        self._http = HttpServer(self.service, self.keys, settings, metrics=self.metrics, sampler=self.sampler)
        self._opened = AsyncExitStack()
        self._closing = asyncio.Lock()

    async def open(self) -> None:
        """Open the engine and load the keys; calls are not accepted yet. The engine may be down in offline mode."""
        await self.service.open()
        self._opened.push_async_callback(self.service.close)
        await self.service.once_connected(self._describe)
        await self._open_keys()
        self._opened.push_async_callback(self.keys.close)
        await self.sampler.open()
        self._opened.push_async_callback(self.sampler.close)

    async def _open_keys(self) -> None:
        """Load the keys; in offline mode, the store may become unavailable after it was opened."""
        try:
            await self.keys.open(is_store_open=self.service.is_connected)
        except EngineUnavailable:
            if self.settings.spool is None:
                raise
            await self.keys.open(is_store_open=False)

    async def _give_defaults(self) -> None:
        """Give the default policy to types that only clients use, now and as they appear."""
        defaults = self.service.type_defaults(self.settings.declared)
        if defaults.is_needed:
            await defaults.fill()
            loop = BackgroundLoop("everwork-defaults", defaults.fill, DEFAULTS_SECONDS)
            loop.start()
            self._opened.push_async_callback(loop.abort)

    async def _describe(self) -> None:
        await self.service.declare_settings(self.settings.declared)
        self.metrics.describe(version("everwork"), (await self.health()).engine)
        await self._give_defaults()  # Last, because it starts a loop, and if any step fails, all of them are repeated.

    async def listen(self) -> Ports:
        """Start both servers."""
        self._streams.start()
        self._opened.push_async_callback(self._streams.wait_closed)
        grpc = await self._grpc.start()
        self._opened.push_async_callback(self._grpc.stop, 0.0)
        http = await self._http.start()
        self._opened.push_async_callback(self._http.stop, 0.0)
        return Ports(grpc, http)

    async def stop(self, grace_seconds: float | None = None) -> None:
        """End long polls, finish what is in flight, close the engine. Nothing that was accepted is lost.

        It can be called again in the meantime, with a shorter grace period.
        """
        grace = self.settings.shutdown_seconds if grace_seconds is None else grace_seconds
        self.service.end_polls()
        self._streams.close()
        try:
            await asyncio.gather(self._grpc.stop(grace), self._http.stop(grace))
        finally:
            async with self._closing:
                await self._opened.aclose()

    async def health(self) -> Health:
        """Return the engine's health."""
        return await self.service.health()
