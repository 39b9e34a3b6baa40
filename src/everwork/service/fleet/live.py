"""The managers, worker processes, streams and pollers running on a store, kept in the registry by heartbeats."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import orjson

from everwork.aio.loops import BackgroundLoop
from everwork.engines.contract import Engine
from everwork.engines.values import Registered
from everwork.exceptions import EngineError, NotFound
from everwork.service.fleet.entries import (
    ManagerEntry,
    ProcessEntry,
    ProcessView,
    clients_body,
    entry_body,
    read_clients,
    read_entries,
)

FLEET_TTL_MS: Final = 20_000
"""How long a manager and its processes count as running after their last heartbeat."""
BEAT_SECONDS: Final = 5.0
"""How often each of them writes a heartbeat."""

MANAGER: Final = "manager"
PROCESS: Final = "process"
CLIENTS: Final = "clients"
"""The streams and pollers of one server, in one entry."""
FIRING: Final = "firing"
"""Applications that fire triggers without a manager."""
RESTART: Final = "restart"
"""Requests to replace the process with this name."""


class LiveFleet:
    """The running managers, processes, streams and pollers. Stateless: every answer comes from the store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    # Heartbeats ---------------------------------------------------------------------------------

    async def beat(self, manager: ManagerEntry | None, processes: Sequence[ProcessEntry]) -> None:
        """Register processes, and their manager if they have one, as running, with their state."""
        bodies = [] if manager is None else [(MANAGER, manager.name, entry_body(manager))]
        bodies += [(PROCESS, one.name, entry_body(one)) for one in processes]
        await asyncio.gather(*(self._engine.register(*entry, FLEET_TTL_MS) for entry in bodies))

    async def leave(self, manager_name: str, process_names: Sequence[str]) -> None:
        """Unregister processes, and then their manager."""
        await self.end_processes(process_names)
        await self._engine.unregister(MANAGER, manager_name)

    async def end_processes(self, names: Sequence[str]) -> None:
        """Unregister processes."""
        for name in names:
            await self._engine.unregister(PROCESS, name)

    async def beat_clients(self, name: str, workers: Sequence[ProcessEntry], left_out: int) -> None:
        """Register the streams and pollers of a server, in one write; `left_out` is how many more it has."""
        await self._engine.register(CLIENTS, name, clients_body(workers, left_out), FLEET_TTL_MS)

    async def end_clients(self, name: str) -> None:
        """Unregister the streams and pollers of a server."""
        await self._engine.unregister(CLIENTS, name)

    async def register_firing(self, name: str, triggers: Sequence[str]) -> None:
        """Register that an application without a manager fires these triggers."""
        await self._engine.register(FIRING, name, orjson.dumps(sorted(triggers)).decode(), FLEET_TTL_MS)

    async def end_firing(self, name: str) -> None:
        """Unregister such an application."""
        await self._engine.unregister(FIRING, name)

    async def restarts(self) -> frozenset[str]:
        """The processes whose restart was requested."""
        return await self._names(RESTART)

    async def take_restart(self, name: str) -> bool:
        """Claim a restart request; False if it no longer exists."""
        return await self._engine.unregister(RESTART, name)

    # Queries ------------------------------------------------------------------------------------

    async def processes(self) -> list[ProcessEntry]:
        """Every running process, stream and poller, by name; processes first."""
        return [view.entry for view in await self._live()]

    async def process(self, name: str) -> ProcessEntry:
        """A running process, stream or poller."""
        for process in await self.processes():
            if process.name == name:
                return process
        raise NotFound("process", name)

    async def process_views(self) -> list[ProcessView]:
        """Every running process, stream and poller, with its last heartbeat."""
        views, restarts = await asyncio.gather(self._live(), self.restarts())
        return [
            view._replace(is_restarting=view.is_restarting or view.entry.name in restarts) if restarts else view
            for view in views
        ]

    async def left_out(self) -> int:
        """How many streams and pollers are not listed, because their server has too many."""
        return sum(read_clients(entry).left_out for entry in await self._entries(CLIENTS))

    async def managers(self) -> list[ManagerEntry]:
        """Every running manager, by name."""
        return read_entries(ManagerEntry, await self._entries(MANAGER))

    async def count_live(self) -> tuple[int, int]:
        """How many managers and processes are running."""
        return len(await self._entries(MANAGER)), len(await self._entries(PROCESS))

    # Inside -------------------------------------------------------------------------------------

    async def _live(self) -> list[ProcessView]:
        processes, clients = await asyncio.gather(self._entries(PROCESS), self._entries(CLIENTS))
        views = [_view(entry, one) for entry in processes for one in read_entries(ProcessEntry, [entry])]
        connected = [_view(entry, one) for entry in clients for one in read_clients(entry).workers]
        return views + sorted(connected, key=lambda view: (view.entry.name, view.entry.via))

    async def _names(self, kind: str) -> frozenset[str]:
        return frozenset(entry.name for entry in await self._entries(kind))

    async def _entries(self, kind: str) -> list[Registered]:
        return await self._engine.registered(kind)


def _view(entry: Registered, process: ProcessEntry) -> ProcessView:
    """A process, with its last heartbeat by the engine's clock."""
    beat_ms = max(0, (entry.until_ms or 0) - FLEET_TTL_MS - process.quiet_ms)
    return ProcessView(process, beat_ms, process.is_replaced)


@asynccontextmanager
async def heartbeat(
    loop_name: str, beat: Callable[[], Awaitable[None]], end: Callable[[], Awaitable[None]]
) -> AsyncIterator[BackgroundLoop]:
    """Keep a registry entry alive during this context, then delete it; if the store is unavailable, it expires."""

    async def tick() -> bool:
        await beat()
        return False

    beating = BackgroundLoop(loop_name, tick, BEAT_SECONDS)
    beating.start()
    try:
        yield beating
    finally:
        await beating.abort()
        with suppress(EngineError):
            await end()


def memory_bytes(pid: int | None = None) -> int | None:
    """The memory that a process uses, by default this process; None if it cannot be read."""
    try:
        return int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
