"""A worker class in the store: where it takes jobs from, and what it may say of their types."""

from __future__ import annotations

from typing import NamedTuple

from everwork.app.settings import WorkerSettings
from everwork.core.limits import DEFAULT_GROUP
from everwork.engines.base import Engine
from everwork.runtime.handler import Place
from everwork.service.policies import Said, said_in_code


class Subscribed(NamedTuple):
    """Where a worker takes jobs from, and the policy that it declares."""

    places: tuple[Place, ...]
    said: Said

    @property
    def policies(self) -> dict[str, Said]:
        """Whoever owns a source's default group says how its jobs are retried."""
        return {place.type: self.said for place in self.places if place.group == DEFAULT_GROUP}

    @property
    def foreign(self) -> list[str]:
        """The sources where another worker came first."""
        return [place.type for place in self.places if place.group != DEFAULT_GROUP]


async def subscribe(engine: Engine, settings: WorkerSettings) -> Subscribed:
    """Let the store know a worker's sources; it answers with the groups."""
    places = [Place(source, await engine.subscribe(source, settings.id)) for source in sorted(settings.sources)]
    return Subscribed(tuple(places), said_in_code(settings.retry, settings.breaker, settings.policy))
