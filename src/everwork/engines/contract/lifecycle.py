"""Opening and closing a store, its clock, its health and its upkeep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from everwork.core.states import State
from everwork.engines.values import Durability, Health, Schema, Swept

if TYPE_CHECKING:
    from everwork.engines.contract import Engine


class Lifecycle(ABC):
    """A store that is opened, looked after and closed."""

    @abstractmethod
    async def open(self, *, create: bool = True) -> None:
        """Connect, check the store, and bring its schema up to date; safe when several start at once.

        Without `create`, a store that has never held jobs is `EngineUnavailable` and is left as it is.
        Raises `BadConfiguration`, `EngineUnavailable` or `SchemaMismatch`, in one line that says what to do.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish what was accepted and let go of every resource. A second close does nothing."""

    @abstractmethod
    def fresh(self) -> Engine:
        """Another engine on the same store, with the same settings, not open: an open one belongs to one event loop."""

    @property
    @abstractmethod
    def durability(self) -> Durability:
        """What an accepted job survives with the settings in force (G1)."""

    @property
    @abstractmethod
    def is_remote(self) -> bool:
        """Whether the store is a server's: each event loop of a process may then have an engine of its own."""

    @property
    @abstractmethod
    def retention(self) -> Mapping[State, int]:
        """How long, in milliseconds, a job is kept after it finished, by the state it finished in."""

    @abstractmethod
    async def health(self) -> Health:
        """Reach the store and tell its version, schema and settings, without secrets."""

    @abstractmethod
    async def schema(self) -> Schema:
        """The version of the store's schema, read without changing anything; the engine need not be open."""

    @abstractmethod
    async def now(self) -> int:
        """The engine's now, in milliseconds UTC: the clock by which everything in the store is judged (G11)."""

    @abstractmethod
    async def sweep(self, holder: str) -> Swept:
        """One bounded step of upkeep.

        Whoever looks first takes lapsed leases away: each is a failed attempt, decided by the core (G6); and
        cancels pending jobs past their expiry. No turn is needed for that: the death of whoever holds it
        must not delay a recovery. One process at a time, the holder of the turn "sweep", also deletes
        finished jobs past their retention, which a type's policy may set, requeues dead letters whose type's policy
        says so (never rejected ones; each at most `failed_job_retry_rounds` times in its life, in the history as a
        requeue whose error says "by itself"), and folds counts.
        """
