"""The jobs that triggers have made, known by their dedupe keys."""

from __future__ import annotations

from secrets import token_hex
from typing import Final, NamedTuple

from everwork.core.job import Job
from everwork.core.limits import DEFAULT_GROUP
from everwork.core.states import State
from everwork.engines.base import Engine
from everwork.engines.values import JobFilter
from everwork.service.cards import TriggerCard

FIRES_MAX: Final = 100
"""Among how many jobs of its type those are looked for that a trigger has made."""


class TriggerFire(NamedTuple):
    """A job that a trigger has made, and for which time point; None: it was fired by hand."""

    key: int
    state: State
    created_at_ms: int
    point_ms: int | None


def fire_key(worker_id: str, trigger_id: str, occasion: int | str) -> str:
    """The dedupe key of a trigger's job: each occasion, a time point mostly, makes one."""
    return f"trigger:{worker_id}:{trigger_id}:{occasion}"


def by_hand() -> str:
    """An occasion that is no time point and like no other."""
    return f"by-hand-{token_hex(8)}"


async def last_fires(engine: Engine, card: TriggerCard, limit: int) -> list[TriggerFire]:
    """The latest jobs of a trigger, newest first, as far as they are among the latest of their type."""
    prefix = fire_key(card.worker_id, card.id, "")
    page = await engine.list(JobFilter(type=card.type, group=DEFAULT_GROUP), FIRES_MAX)
    made = [job for job in page.jobs if job.dedupe_key is not None and job.dedupe_key.startswith(prefix)]
    return [_fire(job, prefix) for job in made[:limit]]


def _fire(job: Job, prefix: str) -> TriggerFire:
    occasion = str(job.dedupe_key).removeprefix(prefix)
    return TriggerFire(job.key, job.state, job.created_at_ms, int(occasion) if occasion.isdecimal() else None)
