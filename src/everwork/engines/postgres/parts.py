"""What an open engine is made of; handed to every operation."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from uuid import UUID

from everwork.core.leasing import Demand
from everwork.engines.base import Clock
from everwork.engines.postgres.claims import Mark
from everwork.engines.postgres.connections import Connections
from everwork.engines.postgres.statements import statements
from everwork.engines.postgres.store_url import Address
from everwork.engines.postgres.wake import Bell, Listener, Notifier

START = (0, 0, 0)


@dataclass(slots=True)
class Broom:
    """Where the sweep stands: the last finished job it looked at, when it tidied last, what it has not vacuumed yet."""

    after: tuple[int, int, int] = START
    is_thorough: bool = True
    """Whether this pass looks at every finished job, and not only at the oldest of each queue and state."""
    tidied_at_ms: int = 0
    unvacuumed: int = 0
    vacuuming: asyncio.Task[None] | None = None


@dataclass(slots=True)
class Parts:
    """An open engine."""

    address: Address
    clock: Clock | None
    store_id: UUID
    schema_version: int
    server_version: str
    settings: dict[str, str]
    connections: Connections
    work: Bell
    done: Bell
    notifier: Notifier
    listener: Listener
    broom: Broom = field(default_factory=Broom)
    marks: dict[tuple[str, str, tuple[str, ...]], Mark] = field(default_factory=dict)
    waits_until: dict[str, float] = field(default_factory=dict)
    """Until when, on the loop's clock, others know that this process waits, by what it waits for."""
    pid: int = field(default_factory=os.getpid)

    def sql(self, operation: str) -> dict[str, str]:
        """The statements of an operation."""
        return statements(operation, self.address.schema)

    def now_ms(self) -> int | None:
        """The instant that a test dictates; None: the server's own."""
        return self.clock() if self.clock is not None else None

    def mark_of(self, demand: Demand) -> Mark:
        """What is remembered of the queue that a demand names."""
        name = (demand.type, demand.group, demand.tenants)
        mark = self.marks.get(name)
        if mark is None:
            self.marks[name] = mark = Mark()
        return mark

    async def close(self) -> None:
        """Let go of every connection."""
        self.work.ring()
        self.done.ring()
        if self.broom.vacuuming is not None:
            self.broom.vacuuming.cancel()
            await asyncio.wait([self.broom.vacuuming])
        await self.notifier.close()
        await self.listener.close()
        await self.connections.close()
