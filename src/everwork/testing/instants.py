"""When something happens next: the instants between which a clock may jump without missing anything."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from typing import NamedTuple

from everwork.core.job import Job
from everwork.core.limits import LIST_LIMIT_MAX
from everwork.core.schedule import next_point
from everwork.core.states import LIVE_STATES, State
from everwork.engines.base import Engine
from everwork.engines.codec import decode_policy
from everwork.engines.values import JobFilter, TypeInfo
from everwork.service.triggers import Scheduled
from everwork.workers.handler import Place


class Instants(NamedTuple):
    """When the next job may run here that is there already, and when anything at all happens next."""

    work_ms: int | None
    any_ms: int | None


async def next_instants(engine: Engine, places: Collection[Place], triggers: Sequence[Scheduled]) -> Instants:
    """What lies ahead, by the engine's clock."""
    now_ms = (marks := await engine.trigger_marks([one.name for one in triggers])).now_ms
    types = {info.type: info for info in await engine.types()}
    work: list[int | None] = []
    other: list[int | None] = []
    async for job in every(engine, JobFilter(states=LIVE_STATES)):
        is_served = (job.type, job.group) in places and not types[job.type].paused
        (work if is_served else other).extend(_of_live(job, types[job.type], now_ms))
    for scheduled, mark in zip(triggers, marks.marks, strict=True):
        other.append(next_point(scheduled.plan, mark.began_ms, mark.last_ms, now_ms))
    other += [instant async for instant in _of_dead_letters(engine, types.values())]
    work_ms = _first(work, now_ms)
    return Instants(work_ms, _first([*other, work_ms], now_ms))


async def every(engine: Engine, wanted: JobFilter) -> AsyncIterator[Job]:
    """Every job that a filter shows, newest first."""
    cursor: int | None = None
    while True:
        page = await engine.list(wanted, LIST_LIMIT_MAX, cursor)
        for job in page.jobs:
            yield job
        cursor = page.next
        if cursor is None:
            return


def _of_live(job: Job, info: TypeInfo, now_ms: int) -> Iterator[int | None]:
    if job.state is State.PROCESSING:
        yield job.lease_until_ms
        return
    yield job.expires_at_ms
    if job.run_at_ms > now_ms:
        yield job.run_at_ms
    else:
        # It is due: what holds it back may end.
        yield info.breaker_open_until_ms
        yield info.rate_full_until_ms


async def _of_dead_letters(engine: Engine, types: Collection[TypeInfo]) -> AsyncIterator[int]:
    """When dead letters come back by themselves."""
    for info in types:
        after_ms = decode_policy(info.policy).failed_job_retry_ms
        if after_ms is not None:
            async for job in every(engine, JobFilter(type=info.type, states=frozenset([State.FAILED]))):
                yield (job.finished_at_ms or 0) + after_ms


def _first(instants: Sequence[int | None], now_ms: int) -> int | None:
    return min((one for one in instants if one is not None and one > now_ms), default=None)
