"""The store of a rehearsal: SQLite with simulated outages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final, Protocol, Self, TypeVar

from everwork.core.job import NewJob
from everwork.core.leasing import Created, Judged, Stamp
from everwork.core.outcome import Complete
from everwork.core.queries import Explanation, Reason
from everwork.engines.contract import Clock
from everwork.engines.own_connection import own_connection
from everwork.engines.sqlite.engine import SqliteEngine
from everwork.engines.sqlite.store.connections import Action, Query
from everwork.engines.sqlite.store_url import StoreUrl
from everwork.exceptions import EngineUnavailable

T = TypeVar("T")

ACCEPTED: Final = "a connection or session of SQLAlchemy, Django, psycopg, asyncpg, sqlite3 or aiosqlite"


class InTransactions(Protocol):
    """Records changes made in transactions on other databases until they commit."""

    async def create(self, tx: object, jobs: Sequence[NewJob]) -> list[Created]:
        """Create jobs at the commit."""
        ...

    async def complete(self, tx: object, completions: Sequence[Complete]) -> list[Judged]:
        """Complete attempts at the commit."""
        ...


class Refusals:
    """How many of the next creates fail because the engine is unavailable."""

    left = 0


class RehearsalEngine(SqliteEngine):
    """SQLite in memory or in a file. Data in memory is lost when it is closed."""

    def __init__(self, url: StoreUrl, clock: Clock | None = None, *, own_loop: bool = False) -> None:
        super().__init__(url, clock, own_loop=own_loop)
        self.refusals = Refusals()
        self.recorded: InTransactions | None = None
        """Jobs that are created and completed in transactions on other databases."""
        self.handled_types: Callable[[], Collection[str]] = tuple
        """The job types that have a handler on the stage."""
        self.service_engine = self
        """The last engine created from this one, which the service uses and which holds the data in memory."""

    def fresh(self) -> Self:
        """Another engine on the same store, with the same outages."""
        other = type(self)(self._url, self._clock, own_loop=self._own_loop)
        other.refusals, other.recorded, other.handled_types = self.refusals, self.recorded, self.handled_types
        self.service_engine = other
        return other

    def for_callers(self) -> None:
        """No other engine: outages are simulated by this one."""
        return

    async def create(self, jobs: Sequence[NewJob], stamp: Stamp | None = None) -> list[Created]:
        """Accept jobs, unless an outage is simulated."""
        self._refuse()
        return await super().create(jobs, stamp)

    async def create_in(self, transaction: object, jobs: Sequence[NewJob]) -> list[Created]:
        """Create jobs at the commit of a transaction, whatever database it is on."""
        self._refuse()
        if self.recorded is None or self._is_here(transaction):
            return await super().create_in(transaction, jobs)
        return await self.recorded.create(transaction, jobs)

    async def complete_in(self, transaction: object, completions: Sequence[Complete]) -> list[Judged]:
        """Complete attempts at the commit of a transaction, whatever database it is on."""
        if self.recorded is None or self._is_here(transaction):
            return await super().complete_in(transaction, completions)
        return await self.recorded.complete(transaction, completions)

    async def explain(self, key: int) -> Explanation | None:
        """Explain why a job is not running. On a stage, a job that is waiting for a worker is waiting for the test."""
        explanation = await super().explain(key)
        if explanation is None or explanation.reason not in (Reason.NOT_ASKED, Reason.QUEUED):
            return explanation
        [job] = await self.get([key])
        text = "no workers are running in a rehearsal: run its jobs with drain()"
        if job is not None and job.type not in self.handled_types():
            text = f"no function or worker class on this stage handles type '{job.type}'"
        return replace(explanation, text=text)

    async def write(self, action: Action[T]) -> T:
        """Run an action that is not part of the engine contract, in a transaction."""
        return await self._store.writer.submit(action)

    def _is_here(self, transaction: object) -> bool:
        """Whether both the transaction and this store are on SQLite files; they must then be on the same one."""
        return not self._url.in_memory and own_connection(transaction, ACCEPTED).dialect == "sqlite"

    def _refuse(self) -> None:
        if self.refusals.left:
            self.refusals.left -= 1
            raise EngineUnavailable("the engine is unavailable, as simulated by the test")

    @property
    def now_ms(self) -> int:
        """The current time of the test's clock."""
        return self._clock()

    async def query(self, query: Query[T]) -> T:
        """Run a query that is not part of the engine contract."""
        return await self._store.query(query)
