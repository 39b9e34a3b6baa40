"""Opening and closing a store; its clock, health and maintenance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from everwork.core.states import State
from everwork.engines.values import Durability, Health, Schema, StoreProblem, Swept

if TYPE_CHECKING:
    from everwork.engines.contract import Engine


class Lifecycle(ABC):
    """Opening, closing, health, clock and maintenance."""

    @abstractmethod
    async def open(self, *, create: bool = True) -> None:
        """Connect, check the store, and migrate its schema; safe when several processes open it concurrently.

        Without `create`, a store that has never held jobs is `EngineUnavailable` and is not changed. Raises
        `BadConfiguration`, `EngineUnavailable` or `SchemaMismatch`, with a one-line message that says what to do.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish accepted calls and release every resource. A second close does nothing."""

    @abstractmethod
    def fresh(self) -> Engine:
        """A new, unopened engine for the same store and settings; an open engine belongs to one event loop."""

    def for_callers(self) -> Engine | None:
        """A new, unopened engine for the same store, to create jobs from an event loop that also runs other code.

        It never blocks that loop for long. None if the store can have only one engine in a process.
        """
        return self.fresh() if self.is_remote else None

    @property
    @abstractmethod
    def durability(self) -> Durability:
        """The failures that an accepted job survives with the current settings (G1)."""

    @property
    @abstractmethod
    def is_remote(self) -> bool:
        """Whether the store is a server, which may be unavailable while this process runs."""

    @property
    @abstractmethod
    def has_real_clock(self) -> bool:
        """Whether the clock is that of the host or server; False if the engine was given another one, as in tests."""

    @property
    @abstractmethod
    def retention(self) -> Mapping[State, int]:
        """How long, in milliseconds, finished jobs are kept, by state."""

    @abstractmethod
    async def health(self) -> Health:
        """Contact the store and return its version, schema and settings, without secrets."""

    @abstractmethod
    async def schema(self) -> Schema:
        """The version of the store's schema, read without changing anything; the engine does not have to be open."""

    @abstractmethod
    async def verify(self) -> list[StoreProblem]:
        """Check the store itself: whether its files or tables are intact and consistent, and who can read them.

        Nothing is changed, and other calls are not blocked. It may take minutes, because everything is read.
        """

    @abstractmethod
    async def now(self) -> int:
        """The engine's current time in milliseconds UTC: the clock for every decision in the store (G11)."""

    @abstractmethod
    async def sweep(self, holder: str) -> Swept:
        """One bounded step of maintenance.

        Any caller ends expired leases, each as a failed attempt on which the core decides (G6), and cancels pending
        jobs past their expiry. This needs no turn, so the death of a turn's holder never delays recovery.

        One process at a time, the holder of the turn "sweep", also deletes finished jobs past their retention,
        which a type's policy may set; requeues dead letters as their type's policy says (never rejected ones; each
        job at most `failed_job_retry_rounds` times, in the history as a requeue with the error "automatic"); and
        folds counts.
        """
