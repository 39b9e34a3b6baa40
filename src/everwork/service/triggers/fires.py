"""The jobs that triggers have created, recognized by their dedupe keys."""

from __future__ import annotations

import time
from collections.abc import Sequence
from secrets import token_hex
from typing import Final, NamedTuple

from everwork.core.job import StoredJob
from everwork.core.limits import DEFAULT_GROUP
from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.engines.contract import Engine
from everwork.service.fleet.entries import TriggerEntry

FIRES_MAX: Final = 100
"""How many of the latest jobs of a type are searched for a trigger's jobs."""
SEARCH_SECONDS_MAX: Final = 0.1
"""Time limit for finding the jobs of many triggers: without an index by type, a store reads very many jobs for each."""


class TriggerFire(NamedTuple):
    """A job of a trigger, and its scheduled time; None if it was fired manually."""

    key: int
    state: State
    created_at_ms: int
    point_ms: int | None


def fire_key(worker_id: str, trigger_id: str, occasion: int | str) -> str:
    """The dedupe key of a trigger's job for an occasion, usually a scheduled time."""
    return f"trigger:{worker_id}:{trigger_id}:{occasion}"


def by_hand() -> str:
    """A unique occasion for a job that is fired manually rather than at a scheduled time."""
    return f"by-hand-{token_hex(8)}"


async def last_fires(engine: Engine, entry: TriggerEntry, limit: int) -> list[TriggerFire]:
    """The latest jobs of a trigger, newest first, among the latest of their type."""
    return _made(await _latest(engine, entry.type), entry, limit)


async def fires_of_many(engine: Engine, entries: Sequence[TriggerEntry], limit: int) -> dict[str, list[TriggerFire]]:
    """The latest jobs of several triggers, by name; triggers not reached within the time limit are missing."""
    found: dict[str, list[TriggerFire]] = {}
    until = time.monotonic() + SEARCH_SECONDS_MAX
    for type in dict.fromkeys(entry.type for entry in entries):
        if time.monotonic() > until:
            break
        jobs = await _latest(engine, type)
        found |= {entry.name: _made(jobs, entry, limit) for entry in entries if entry.type == type}
    return found


async def _latest(engine: Engine, type: str) -> list[StoredJob]:
    return (await engine.find(JobFilter(type=type, group=DEFAULT_GROUP), FIRES_MAX)).jobs


def _made(jobs: Sequence[StoredJob], entry: TriggerEntry, limit: int) -> list[TriggerFire]:
    prefix = fire_key(entry.worker_id, entry.id, "")
    made = [job for job in jobs if job.dedupe_key is not None and job.dedupe_key.startswith(prefix)]
    return [_fire(job, prefix) for job in made[:limit]]


def _fire(job: StoredJob, prefix: str) -> TriggerFire:
    occasion = str(job.dedupe_key).removeprefix(prefix)
    return TriggerFire(job.key, job.state, job.created_at_ms, int(occasion) if occasion.isdecimal() else None)
