"""What a store knows beside its jobs: types with their policies, groups, entries of any kind, turns."""

from __future__ import annotations

from abc import ABC, abstractmethod

from everwork.core.queries import TypeInfo
from everwork.engines.values import Registered


class Registry(ABC):
    """Types, policies, breakers, groups, registry entries, turns."""

    @abstractmethod
    async def pause(self, type: str, paused: bool) -> None:
        """Stop or resume the activation of a type; what is running goes on. Doing it twice changes nothing."""

    @abstractmethod
    async def open_breaker(self, type: str, open_ms: int) -> None:
        """Let a type's breaker be open for so long from now, also if its policy has none; then it is half-open."""

    @abstractmethod
    async def reset_breaker(self, type: str) -> bool:
        """Close a type's breaker, so that its jobs may start at once; forget its failures. False if it was closed."""

    @abstractmethod
    async def set_policy(self, type: str, policy: str | None) -> None:
        """Keep a type's policy (a JSON text), so that every process decides alike; None takes it away.

        Limits hold from the next claim on; what runs above a new limit goes on. A breaker whose rule was taken away
        stays as it is until it is reset or its probe succeeds.
        """

    @abstractmethod
    async def add_group(self, type: str, group: str) -> None:
        """Register a further group of a type: jobs created from now on get a copy for it."""

    @abstractmethod
    async def drop_group(self, type: str, group: str) -> int:
        """Forget a group: its pending jobs are cancelled (their number is answered), running ones go on.

        One that would be pending again is cancelled by the next sweep.
        """

    @abstractmethod
    async def types(self) -> list[TypeInfo]:
        """Every type that the engine has seen, by name."""

    @abstractmethod
    async def register(self, kind: str, name: str, body: str, ttl_ms: int | None = None) -> None:
        """Write an entry of the registry, or write it anew; without ttl it stays until it is taken away."""

    @abstractmethod
    async def unregister(self, kind: str, name: str) -> bool:
        """Take an entry away; False if there was none."""

    @abstractmethod
    async def registered(self, kind: str | None) -> list[Registered]:
        """The entries of a kind that have not run out, by name; None: of every kind, by kind and name. No turns."""

    @abstractmethod
    async def last_registered(self, kind: str, limit: int, below: str | None = None) -> list[Registered]:
        """At most `limit` entries of a kind that have not run out, highest name first, from below a name on."""

    @abstractmethod
    async def take_turn(self, name: str, holder: str, ttl_ms: int) -> bool:
        """Take or prolong a turn that one holder has at a time; False while somebody else's has not run out."""

    @abstractmethod
    async def subscribe(self, type: str, worker: str) -> str:
        """The group in which a worker class takes jobs of a type, the same whenever it asks.

        The first worker that asks owns the default group. Each further one has a group of its own, with the
        worker's name, added now if it is not there: jobs created from now on get a copy for it. Who owns the default
        group stands in the registry (kind "owner", the type's name, the worker as body), so that it can be taken away:
        then the next worker without a group of its own has it.
        """
