"""The store of a rehearsal: SQLite with simulated outages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, TypeVar

from everwork.core.job import NewJob
from everwork.core.leasing import Created, Stamp
from everwork.engines.contract import Clock
from everwork.engines.sqlite.connections import Query
from everwork.engines.sqlite.engine import SqliteEngine
from everwork.engines.sqlite.store_url import StoreUrl
from everwork.exceptions import EngineUnavailable

T = TypeVar("T")


class Refusals:
    """How many of the next creates find the engine unavailable."""

    left = 0


class RehearsalEngine(SqliteEngine):
    """SQLite in memory or in a file. Data in memory is lost when it is closed."""

    def __init__(self, url: StoreUrl, clock: Clock | None = None, *, own_loop: bool = False) -> None:
        super().__init__(url, clock, own_loop=own_loop)
        self.refusals = Refusals()
        self.service_engine = self
        """The last engine made from this one: the service's, which holds what is in memory."""

    def fresh(self) -> Self:
        """Another engine on the same store, with the same outages."""
        other = type(self)(self._url, self._clock, own_loop=self._own_loop)
        other.refusals = self.refusals
        self.service_engine = other
        return other

    async def create(self, jobs: Sequence[NewJob], stamp: Stamp | None = None) -> list[Created]:
        """Accept jobs, unless an outage is simulated."""
        if self.refusals.left:
            self.refusals.left -= 1
            raise EngineUnavailable("the engine is unavailable, as simulated by the test")
        return await super().create(jobs, stamp)

    async def query(self, query: Query[T]) -> T:
        """Run a query that is not part of the engine contract."""
        return await self._store.query(query)
