"""Many jobs changed at once: those that somebody has picked, or all that a search shows, a step at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

from everwork.aio.loops import shielded
from everwork.aio.retrying import retry_while_unavailable
from everwork.core.job import Job
from everwork.core.leasing import Judged, Verdict
from everwork.core.limits import LIST_LIMIT_MAX
from everwork.core.queries import BulkChange, JobFilter, Page
from everwork.core.states import FINISHED_STATES, LIVE_STATES, State
from everwork.exceptions import EngineError, InvalidInput
from everwork.service.access.principal import Permission
from everwork.service.jobs import Jobs

COUNTED_MAX: Final = 10_000
COUNT_STEPS_MAX: Final = 8
"""How often the engine is asked at most, to tell how many jobs are meant: few may match of very many."""
SCHEDULED_STEP: Final = 500
"""Engines do not look for scheduled jobs by themselves: so many waiting ones are looked at in one step."""
KEYS_MAX: Final = 1_000
LOOK_SECONDS: Final = 0.08
"""So long whoever waits for a page waits for what is hard to find; a step that has begun is not broken off."""


class BulkAction(Enum):
    """What can be done to many jobs."""

    CANCEL = "cancel"
    REQUEUE = "requeue"
    RUN_NOW = "run-now"
    DELETE = "delete"

    @property
    def states(self) -> frozenset[State]:
        """The states in which it can be done to a job."""
        return _STATES[self]

    @property
    def done(self) -> str:
        """What the jobs are afterwards."""
        return _DONE[self]


_STATES: Final = {
    BulkAction.CANCEL: LIVE_STATES,
    BulkAction.REQUEUE: frozenset([State.FAILED]),
    BulkAction.RUN_NOW: frozenset([State.PENDING]),
    BulkAction.DELETE: FINISHED_STATES,
}
_DONE: Final = {
    BulkAction.CANCEL: "cancelled",
    BulkAction.REQUEUE: "requeued",
    BulkAction.RUN_NOW: "due now",
    BulkAction.DELETE: "deleted",
}


@dataclass(frozen=True, slots=True)
class BulkFilter:
    """Which jobs are meant: those of a filter; `scheduled`: only those whose time has not come."""

    wanted: JobFilter
    scheduled: bool = False
    below: int | None = None
    """Only jobs with a lower key: those that came later were not seen by whoever decided."""

    def told(self) -> dict[str, Any]:
        """What it says, as far as it says anything."""
        said = {one.name: getattr(self.wanted, one.name) for one in fields(JobFilter)}
        said |= {"states": sorted(state.label for state in self.wanted.states), "scheduled": self.scheduled}
        said["below"] = self.below
        return {name: value for name, value in said.items() if value not in (None, (), [], False)}


class Counted(NamedTuple):
    """How many jobs are meant; not exactly: at least so many."""

    jobs: int
    is_exact: bool


async def look(desk: Jobs, search: BulkFilter, limit: int, now_ms: int, cursor: int | None = None) -> Page:
    """One step of a search, newest first; `next` tells where it stopped."""
    below = search.below if cursor is None else cursor
    if not search.scheduled:
        return await desk.look(search.wanted, limit, below)
    page = await desk.look(search.wanted, max(limit, SCHEDULED_STEP), below)
    found = [job for job in page.jobs if job.run_at_ms > now_ms]
    return Page(found, page.next) if len(found) <= limit else Page(found[:limit], found[limit - 1].key)


async def found(
    desk: Jobs, search: BulkFilter, limit: int, now_ms: int, cursor: int | None = None, *, seconds: float = LOOK_SECONDS
) -> Page:
    """`look`, gone on with for a while: of very many jobs few may match."""
    jobs: list[Job] = []
    until = time.monotonic() + seconds
    while True:
        page = await look(desk, search, limit - len(jobs), now_ms, cursor)
        jobs += page.jobs
        cursor = page.next
        if cursor is None or len(jobs) >= limit or time.monotonic() >= until:
            return Page(jobs, cursor)


def meant(desk: Jobs, act: BulkAction, search: BulkFilter) -> BulkFilter:
    """All that a search comes to: the states in which something can be done, and the tenants of whoever does it."""
    aim = aimed(act, search)
    return replace(aim, wanted=desk.confined(aim.wanted))


def aimed(act: BulkAction, search: BulkFilter) -> BulkFilter:
    """The jobs of a search to which something can be done; a search that shows none such is refused."""
    states = act.states & (search.wanted.states or act.states)
    if not states or (act is BulkAction.RUN_NOW and search.wanted.due):
        shown = "due" if search.wanted.due else " or ".join(sorted(state.label for state in search.wanted.states))
        raise InvalidInput("state", f"must be another one: jobs that are {shown} cannot be {act.done}")
    return replace(search, wanted=replace(search.wanted, states=states), scheduled=search.scheduled or is_timed(act))


def is_timed(act: BulkAction) -> bool:
    """Whether it makes sense for scheduled jobs only: those that are due would lose their place."""
    return act is BulkAction.RUN_NOW


def allows(act: BulkAction, job: Job, now_ms: int) -> bool:
    """Whether something can be done to a job as it stands."""
    return job.state in act.states and (not is_timed(act) or job.run_at_ms > now_ms)


async def counted(desk: Jobs, search: BulkFilter, now_ms: int) -> Counted:
    """How many jobs a search shows, without looking at all of them."""
    wanted = search.wanted
    if not search.scheduled and wanted == JobFilter(type=wanted.type, states=wanted.states, tenants=wanted.tenants):
        return Counted(
            sum(count for state, count in (await by_state(desk, wanted)).items() if _in(state, wanted)), True
        )
    jobs, cursor = 0, None
    for _ in range(COUNT_STEPS_MAX):
        page = await look(desk, search, LIST_LIMIT_MAX, now_ms, cursor)
        jobs, cursor = jobs + len(page.jobs), page.next
        if cursor is None or jobs >= COUNTED_MAX:
            break
    return Counted(jobs, cursor is None)


async def by_state(desk: Jobs, wanted: JobFilter) -> Mapping[State, int]:
    """How many jobs are in which state, of the type and the tenants of a filter."""
    found = dict.fromkeys(State, 0)
    for count in await desk.count():
        if wanted.type in (None, count.type) and (not wanted.tenants or count.tenant in wanted.tenants):
            found[count.state] += count.jobs
    return found


async def in_steps(desk: Jobs, act: BulkAction, search: BulkFilter, now_ms: int) -> AsyncIterator[BulkChange]:
    """Change the jobs that a search shows, each judged by itself; after each step, what has been done so far."""
    desk.principal.require(Permission.JOBS)
    search, matched, changed = aimed(act, search), 0, 0
    cursor: int | None = None
    while True:
        page = await look(desk, search, LIST_LIMIT_MAX, now_ms, cursor)
        keys = [job.key for job in page.jobs]
        matched += len(keys)
        changed += _changed(await _change(desk, act)(keys)) if keys else 0
        yield BulkChange(matched, changed)
        cursor = page.next
        if cursor is None:
            return


async def picked(desk: Jobs, act: BulkAction, keys: Sequence[int], now_ms: int) -> AsyncIterator[BulkChange]:
    """Change jobs that somebody has picked, each judged by itself."""
    desk.principal.require(Permission.JOBS)
    if not 1 <= len(keys) <= KEYS_MAX:
        raise InvalidInput("key", f"must be given 1 to {KEYS_MAX:,} times, not {len(keys):,}")
    jobs = [job for job in await desk.get_many(keys) if job is not None and allows(act, job, now_ms)]
    judged = await _change(desk, act)([job.key for job in jobs]) if jobs else []
    yield BulkChange(len(keys), _changed(judged))


def _in(state: State, wanted: JobFilter) -> bool:
    return not wanted.states or state in wanted.states


def _changed(judged: Sequence[Judged]) -> int:
    """What somebody else has done meanwhile is not counted again."""
    return sum(one.verdict is Verdict.ACCEPTED for one in judged)


def _change(desk: Jobs, act: BulkAction) -> Callable[[Sequence[int]], Awaitable[list[Judged]]]:
    return {
        BulkAction.CANCEL: desk.cancel_many,
        BulkAction.REQUEUE: desk.requeue_many,
        BulkAction.RUN_NOW: desk.run_now_many,
        BulkAction.DELETE: desk.delete_many,
    }[act]


T = TypeVar("T")
Told = Callable[[BulkChange], None]
Write = Callable[[Mapping[str, Any]], Awaitable[None]]


async def walk(steps: AsyncIterator[BulkChange], told: Told | None, write: Write | None) -> BulkChange:
    """Take all steps, and write down after each what has been done so far, always in the same place.

    When the caller goes away, the step that has begun is finished, and no other begins.
    """
    stop = asyncio.Event()
    return await shielded(_walk(steps, told, write, stop), stop.set)


async def _walk(
    steps: AsyncIterator[BulkChange], told: Told | None, write: Write | None, stop: asyncio.Event
) -> BulkChange:
    change = written = BulkChange(0, 0)
    try:
        async for change in steps:
            if told is not None:
                told(change)
            if stop.is_set():
                break
            if write is not None and change.changed > written.changed:
                await write({**change._asdict(), "unfinished": True})
                written = change
    except EngineError:
        await _break_off(change, write)
        raise
    if stop.is_set():
        await _break_off(change, write)
    elif write is not None:
        await write(change._asdict())
    return change


async def _break_off(change: BulkChange, write: Write | None) -> None:
    """What was done must be known, above all when the rest was not."""
    if write is not None and change.matched:
        with suppress(EngineError):
            await retry_while_unavailable(lambda: write({**change._asdict(), "broken_off": True}), None)
