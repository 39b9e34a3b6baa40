"""Bulk changes to selected jobs, or to all jobs that match a search, in steps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

from everwork.aio.loops import shielded
from everwork.aio.retrying import retry_while_unavailable
from everwork.core.fingerprint import fingerprint
from everwork.core.job import StoredJob
from everwork.core.leasing import Judged, Verdict
from everwork.core.limits import LIST_LIMIT_MAX
from everwork.core.queries import BulkChange, Count, JobFilter, Page
from everwork.core.states import FINISHED_STATES, LIVE_STATES, State
from everwork.engines.contract import Engine
from everwork.exceptions import EngineError, InvalidInput, NothingMatches

COUNTED_MAX: Final = 10_000
COUNT_STEPS_MAX: Final = 8
"""The maximum number of engine steps for counting matches, because only a few of very many jobs may match."""
REST_STEP: Final = 500
"""How many jobs are read per step if the engine cannot apply the whole filter."""
KEYS_MAX: Final = 1_000
SEARCH_SECONDS: Final = 0.08
"""Time limit for finding one page of jobs; a step that is already running is allowed to finish."""


class BulkAction(Enum):
    """The actions of a bulk change."""

    CANCEL = "cancel"
    REQUEUE = "requeue"
    RUN_NOW = "run-now"
    DELETE = "delete"

    @property
    def states(self) -> frozenset[State]:
        """The states that allow the action."""
        return _STATES[self]

    @property
    def done(self) -> str:
        """The past participle, for messages."""
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
    """Selects jobs. The engine applies `filter`; the other conditions are applied here."""

    filter: JobFilter
    scheduled: bool = False
    """Only jobs that are not due yet."""
    below: int | None = None
    """Only jobs with a lower key: newer jobs were not on the page when the user made the decision."""
    fingerprint: str | None = None
    failed_after_ms: int | None = None
    failed_before_ms: int | None = None
    rejected: bool | None = None
    """True selects only jobs rejected by their worker; False excludes them."""
    is_shown: Callable[[StoredJob], bool] | None = None
    """Only jobs for which this returns True, so that a search does not find masked values."""

    @property
    def is_plain(self) -> bool:
        """Whether the engine can apply the whole filter, except `is_shown`, which excludes only a few jobs."""
        return self == BulkFilter(self.filter, below=self.below, is_shown=self.is_shown)

    def matches(self, job: StoredJob, now_ms: int) -> bool:
        """Whether a job found by the engine also meets the conditions applied here."""
        return (not self.scheduled or job.run_at_ms > now_ms) and self.matches_failure(job)

    def matches_failure(self, job: StoredJob) -> bool:
        """Whether the time, the error and the error group of a job's failure match the filter."""
        return self.rejected in (None, job.rejected) and self._matches_error(job)

    def leaves_out(self, job: StoredJob) -> bool:
        """Whether a job would match if it had not been rejected."""
        return self.rejected is False and job.rejected and self._matches_error(job)

    def _matches_error(self, job: StoredJob) -> bool:
        failed_ms = job.finished_at_ms or job.created_at_ms
        return (
            (self.failed_after_ms is None or failed_ms >= self.failed_after_ms)
            and (self.failed_before_ms is None or failed_ms < self.failed_before_ms)
            and (self.fingerprint is None or self.fingerprint == fingerprint(job.last_error or ""))
            and (self.is_shown is None or self.is_shown(job))
        )

    def detail(self, *, with_states: bool = True) -> dict[str, Any]:
        """The conditions, as recorded in the audit log."""
        found = {one.name: getattr(self.filter, one.name) for one in fields(JobFilter) if one.name != "order"}
        found |= {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("filter", "is_shown")}
        found["states"] = sorted(state.label for state in self.filter.states) if with_states else []
        # Compare by identity, because a time of 0 equals False.
        return {name: value for name, value in found.items() if not (value is False or value in (None, (), []))}


class Reader(Protocol):
    """Reads jobs for bulk changes; only jobs that the caller may see."""

    async def find(self, filter_: JobFilter, limit: int, cursor: int | None = None) -> Page:
        """Matching jobs, in the filter's order."""

    async def find_step(self, filter_: JobFilter, limit: int, cursor: int | None = None) -> Page:
        """`find` in one step of the engine."""

    async def get_many(self, keys: Sequence[int]) -> list[StoredJob | None]:
        """Jobs in their current state."""

    async def count(self) -> list[Count]:
        """The number of jobs in each state."""


Change = Callable[[Sequence[StoredJob]], Awaitable[list[Judged]]]
"""Changes jobs, given as they were found; one verdict per job."""


def by_key(change: Callable[[Sequence[int]], Awaitable[list[Judged]]]) -> Change:
    """A change that needs only the keys, because the engine checks the state of each job."""
    return lambda jobs: change([job.key for job in jobs])


def deletion(engine: Engine) -> Change:
    """Deletes jobs, except those that were requeued after they were found."""
    return lambda jobs: engine.delete([job.key for job in jobs], [job.attempt for job in jobs])


def change_of(action: BulkAction, engine: Engine) -> Change:
    """The engine operation that performs an action."""
    changes: dict[BulkAction, Change] = {
        BulkAction.CANCEL: by_key(engine.cancel),
        BulkAction.REQUEUE: by_key(engine.requeue),
        BulkAction.RUN_NOW: by_key(engine.reschedule),
        BulkAction.DELETE: deletion(engine),
    }
    return changes[action]


class Counted(NamedTuple):
    """The number of matching jobs; if not exact, a lower bound."""

    jobs: int
    is_exact: bool


async def find_step(jobs: Reader, search: BulkFilter, limit: int, now_ms: int, cursor: int | None = None) -> Page:
    """One step of a search, newest first; `next` is where it stopped."""
    below = search.below if cursor is None else cursor
    page = await jobs.find_step(search.filter, limit if search.is_plain else max(limit, REST_STEP), below)
    found = [job for job in page.jobs if search.matches(job, now_ms)]
    return Page(found, page.next) if len(found) <= limit else Page(found[:limit], found[limit - 1].key)


async def find_within(
    jobs: Reader,
    search: BulkFilter,
    limit: int,
    now_ms: int,
    cursor: int | None = None,
    *,
    seconds: float = SEARCH_SECONDS,
) -> Page:
    """Repeat `find_step` until the page is full or time is up, because only a few of very many jobs may match."""
    found: list[StoredJob] = []
    until = time.monotonic() + seconds
    while True:
        page = await find_step(jobs, search, limit - len(found), now_ms, cursor)
        found += page.jobs
        cursor = page.next
        if cursor is None or len(found) >= limit or time.monotonic() >= until:
            return Page(found, cursor)


def restricted(action: BulkAction, search: BulkFilter) -> BulkFilter:
    """The search, restricted to states that allow the action; refused if no state is left."""
    states = action.states & (search.filter.states or action.states)
    if not states or (action is BulkAction.RUN_NOW and search.filter.due):
        shown = "due" if search.filter.due else " or ".join(sorted(state.label for state in search.filter.states))
        raise InvalidInput("state", f"must allow the action: jobs that are {shown} cannot be {action.done}")
    return replace(search, filter=replace(search.filter, states=states), scheduled=search.scheduled or is_timed(action))


def is_timed(action: BulkAction) -> bool:
    """Whether the action applies only to scheduled jobs: jobs already due would lose their place in the queue."""
    return action is BulkAction.RUN_NOW


def is_allowed(action: BulkAction, job: StoredJob, now_ms: int) -> bool:
    """Whether a job allows an action in its current state."""
    return job.state in action.states and (not is_timed(action) or job.run_at_ms > now_ms)


async def count_matching(jobs: Reader, search: BulkFilter, now_ms: int) -> Counted:
    """The number of matching jobs, without reading all of them."""
    filter_ = search.filter
    counted = JobFilter(type=filter_.type, states=filter_.states, tenants=filter_.tenants)
    if search.is_plain and filter_ == counted:
        counts = await by_state(jobs, filter_)
        return Counted(sum(counts[state] for state in filter_.states or State), True)
    matched, cursor = 0, None
    for _ in range(COUNT_STEPS_MAX):
        page = await find_step(jobs, search, LIST_LIMIT_MAX, now_ms, cursor)
        matched, cursor = matched + len(page.jobs), page.next
        if cursor is None or matched >= COUNTED_MAX:
            break
    return Counted(matched, cursor is None)


async def by_state(jobs: Reader, filter_: JobFilter) -> Mapping[State, int]:
    """The number of jobs in each state, for the type and tenants of a filter."""
    found = dict.fromkeys(State, 0)
    for count in await jobs.count():
        if filter_.type in (None, count.type) and (not filter_.tenants or count.tenant in filter_.tenants):
            found[count.state] += count.jobs
    return found


async def find_page(jobs: Reader, search: BulkFilter, now_ms: int, cursor: int | None) -> Page:
    """Read one full page from the engine and return the jobs in it that match."""
    page = await jobs.find(search.filter, LIST_LIMIT_MAX, search.below if cursor is None else cursor)
    return Page([job for job in page.jobs if search.matches(job, now_ms)], page.next)


async def change_in_steps(
    read: Callable[[int | None], Awaitable[Page]],
    change: Change | None,
    counts: Callable[[Judged], bool],
    nothing: str | None = None,
) -> AsyncIterator[BulkChange]:
    """Change all jobs that `read` returns, each accepted or refused individually; yields the totals after each step.

    Without `change`, jobs are only counted. `nothing` is the error message if no job matches; None: no error.
    """
    matched = changed = 0
    cursor: int | None = None
    while True:
        page = await read(cursor)
        matched += len(page.jobs)
        if page.jobs and change is not None:
            changed += sum(map(counts, await change(page.jobs)))
        yield BulkChange(matched, changed)
        cursor = page.next
        if cursor is None:
            break
    if nothing is not None and not matched:
        raise NothingMatches(nothing)


async def change_selected(
    jobs: Reader, action: BulkAction, change: Change, keys: Sequence[int], now_ms: int
) -> AsyncIterator[BulkChange]:
    """Change jobs by key; each one is accepted or refused individually."""
    if not 1 <= len(keys) <= KEYS_MAX:
        raise InvalidInput("key", f"pass 1 to {KEYS_MAX:,} keys, not {len(keys):,}")
    found = await jobs.get_many(keys)
    allowed = [job for job in found if job is not None and is_allowed(action, job, now_ms)]
    yield BulkChange(len(keys), sum(map(changed_by_this_call, await change(allowed))) if allowed else 0)


def changed_by_this_call(judged: Judged) -> bool:
    """Whether this call made the change; changes made concurrently by other callers are not counted again."""
    return judged.verdict is Verdict.ACCEPTED


def is_changed(judged: Judged) -> bool:
    """Whether the change is in place, by this call or an earlier one."""
    return judged.ok


def require_selection(is_empty: bool, *, all: bool) -> None:
    """Refuse an empty filter, which would match every dead letter, unless `all` is given."""
    if is_empty and not all:
        raise InvalidInput("all", "must be true to select every dead letter; otherwise give a filter")
    if all and not is_empty:
        raise InvalidInput("all", "cannot be combined with a filter")


Progress = Callable[[BulkChange], None]
Write = Callable[[Mapping[str, Any]], Awaitable[None]]


async def run_steps(steps: AsyncIterator[BulkChange], progress: Progress | None, write: Write) -> BulkChange:
    """Run all steps, and record the totals after each in one audit entry.

    If the caller disconnects, the running step is finished and no other is started.
    """
    stop = asyncio.Event()
    return await shielded(_run_steps(steps, progress, write, stop), stop.set)


async def unrecorded(_totals: Mapping[str, Any]) -> None:
    """The `Write` of a bulk change that is not audited."""


async def _run_steps(
    steps: AsyncIterator[BulkChange], progress: Progress | None, write: Write, stop: asyncio.Event
) -> BulkChange:
    change = written = BulkChange(0, 0)
    try:
        async for change in steps:
            if progress is not None:
                progress(change)
            if stop.is_set():
                break
            if change.changed > written.changed:
                await write({**change._asdict(), "unfinished": True})
                written = change
    except EngineError:
        await _record_interruption(change, write)
        raise
    if stop.is_set():
        await _record_interruption(change, write)
    else:
        await write(change._asdict())
    return change


async def _record_interruption(change: BulkChange, write: Write) -> None:
    """Record the changes made before an interruption, so that a partial bulk change is also audited."""
    if change.matched:
        with suppress(EngineError):
            await retry_while_unavailable(lambda: write({**change._asdict(), "broken_off": True}), None)
