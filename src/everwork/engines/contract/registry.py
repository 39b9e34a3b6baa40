"""Everything a store holds in addition to jobs: types with their policies, groups, entries of any kind, turns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from everwork.core.leasing import Verdict
from everwork.core.queries import TypeInfo
from everwork.engines.values import Registered


class Registry(ABC):
    """Types, policies, breakers, groups, registry entries, turns."""

    @abstractmethod
    async def pause(self, type: str, paused: bool) -> None:
        """Pause or resume the activation of a type; running jobs continue. Idempotent."""

    @abstractmethod
    async def open_breaker(self, type: str, open_ms: int) -> None:
        """Open a type's breaker for `open_ms` from now, even if its policy has none; after that it is half-open."""

    @abstractmethod
    async def reset_breaker(self, type: str) -> bool:
        """Close a type's breaker, so that its jobs may start, and reset its failures. False if it was closed."""

    @abstractmethod
    async def set_policy(self, type: str, policy: str | None) -> None:
        """Store a type's policy (a JSON text), so that every process decides the same way; None removes it.

        Limits apply from the next claim on; jobs that run above a new limit continue. A breaker whose rule was
        removed keeps its state until it is reset or its probe succeeds.
        """

    @abstractmethod
    async def add_group(self, type: str, group: str) -> None:
        """Register a further group of a type: jobs created from now on get a copy for it."""

    @abstractmethod
    async def drop_group(self, type: str, group: str) -> int:
        """Remove a group: its pending jobs are cancelled (their number is returned), running ones continue.

        A job of the group that becomes pending again is cancelled by the next sweep.
        """

    @abstractmethod
    async def types(self) -> list[TypeInfo]:
        """Every type that the store knows, by name."""

    @abstractmethod
    async def delete_type(self, type: str) -> Verdict:
        """Delete a type with its policy, pause, breaker, groups, owner and statistics.

        NOT_FOUND: the store does not know the type. WRONG_STATE: it has jobs, finished ones included; nothing has
        changed. A job or a demand that arrives at the same time is never lost: it creates the type again.
        """

    @abstractmethod
    async def forget_types(self, policies: Mapping[str, str | None], unused_ms: int) -> list[str]:
        """Delete those of these types that are unused, and return their names; the other types do not change.

        A type is unused if it has no jobs, no statistics, no additional groups, no owner, no pause and a closed
        breaker, and if no demand has named it for `unused_ms`. The caller names each type with the policy that it has
        seen: a type whose policy has changed since then is kept.
        """

    @abstractmethod
    async def register(self, kind: str, name: str, body: str, ttl_ms: int | None = None) -> None:
        """Insert or replace a registry entry; without `ttl_ms` it stays until it is unregistered."""

    @abstractmethod
    async def unregister(self, kind: str, name: str) -> bool:
        """Delete an entry; False if there was none."""

    @abstractmethod
    async def registered(self, kind: str | None) -> list[Registered]:
        """The unexpired entries of a kind, by name; None: of every kind, by kind and name. Turns are excluded."""

    @abstractmethod
    async def last_registered(self, kind: str, limit: int, below: str | None = None) -> list[Registered]:
        """At most `limit` entries of a kind that have not expired, highest name first, with names below `below`."""

    @abstractmethod
    async def take_turn(self, name: str, holder: str, ttl_ms: int) -> bool:
        """Take or extend a turn, which has one holder at a time; False while another holder's turn has not expired."""

    @abstractmethod
    async def subscribe(self, type: str, worker: str) -> str:
        """The group in which a worker class takes jobs of a type; always the same for the same worker.

        The first worker that subscribes owns the default group. Each further one gets its own group, named after
        the worker and added if it does not exist: jobs created from now on get a copy for it. The owner of the
        default group is a registry entry (kind "owner", the type as name, the worker as body) and can be
        unregistered: then the next worker without its own group becomes the owner.
        """
