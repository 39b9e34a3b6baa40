"""The store of a rehearsal: SQLite, which may be told to be away for a while."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, TypeVar

from everwork.core.job import NewJob
from everwork.core.leasing import Created
from everwork.engines.contract import Clock
from everwork.engines.sqlite.connections import Ask
from everwork.engines.sqlite.engine import SqliteEngine
from everwork.engines.sqlite.store_url import StoreUrl
from everwork.exceptions import EngineUnavailable

T = TypeVar("T")


class Refusals:
    """How many of the next creates find the engine away."""

    left = 0


class InMemoryEngine(SqliteEngine):
    """SQLite in memory or in a file. What it holds in memory lives as long as it is open."""

    def __init__(self, place: StoreUrl, clock: Clock | None = None, *, own_loop: bool = False) -> None:
        super().__init__(place, clock, own_loop=own_loop)
        self.refusals = Refusals()
        self.newest = self
        """The last engine made from this one: the service's, which holds what is in memory."""

    def fresh(self) -> Self:
        """Another one on the same store, which is away at the same time."""
        other = type(self)(self._place, self._clock, own_loop=self._own_loop)
        other.refusals = self.refusals
        self.newest = other
        return other

    async def create(self, jobs: Sequence[NewJob]) -> list[Created]:
        """Accept jobs, unless the engine is away."""
        if self.refusals.left:
            self.refusals.left -= 1
            raise EngineUnavailable("the engine is away, as the test has asked for")
        return await super().create(jobs)

    async def look(self, ask: Ask[T]) -> T:
        """Ask the store what no other engine is ever asked."""
        return await self._parts.ask(ask)
