"""Pages of jobs by offset, with totals and sorting: for APIs without cursors."""

from __future__ import annotations

import heapq
import math
from collections.abc import AsyncIterator
from enum import Enum
from typing import Final, NamedTuple

from everwork.core.job import StoredJob
from everwork.core.limits import KEY_MAX
from everwork.core.queries import JobFilter
from everwork.exceptions import InvalidInput
from everwork.service.jobs import Jobs

REACH_MAX: Final = 10_000
"""The maximum of offset plus limit, and the maximum number of jobs that are counted one by one."""
SORTED_MAX: Final = 100_000
STEP: Final = 100
GET_STEP: Final = 20
"""Jobs read by key include their variables and can all be large, so only a few are held in memory."""
PAGE_CHARS_MAX: Final = 4 * 1024 * 1024
"""A page of large jobs ends early, because it would not fit into a message."""


class Sort(Enum):
    """The fields a list can be sorted by."""

    CREATED_AT = "created_at"
    ACTIVATED_AT = "activated_at"
    RETRIES = "retries"
    DEADLINE = "deadline"


class Order(NamedTuple):
    """How a list is sorted; newest first by default."""

    sort: Sort = Sort.CREATED_AT
    descending: bool = True


class Listed(NamedTuple):
    """One page of the matching jobs. If `total` is bounded or the sort is partial, `note` mentions it."""

    jobs: list[StoredJob]
    total: int
    has_more: bool
    note: str = ""


class _Found:
    """The jobs of a page, up to a total size."""

    def __init__(self) -> None:
        self.jobs: list[StoredJob] = []
        self.is_cut = False
        self._chars = 0

    def add(self, job: StoredJob) -> None:
        """Add a job, unless the page would be too large."""
        self._chars += len(job.variables) + len(job.result or "")
        self.is_cut = self.is_cut or (bool(self.jobs) and self._chars > PAGE_CHARS_MAX)
        if not self.is_cut:
            self.jobs.append(job)


async def list_jobs(jobs: Jobs, filter_: JobFilter, limit: int, offset: int, order: Order) -> Listed:
    """The matching jobs of the caller's tenants from `offset` on."""
    if offset + limit > REACH_MAX:
        raise InvalidInput("offset", f"must be at most {REACH_MAX:,} when added to limit, not {offset + limit:,}")
    note = ""
    if order.sort is not Sort.CREATED_AT:
        keys, note = await _sorted(jobs, filter_, offset + limit + 1, order)
        found = await _existing(jobs, keys[offset:])
    elif order.descending:
        found = await _from_newest(jobs, filter_, offset, limit + 1)
    else:
        found = await _existing(jobs, await _from_oldest(jobs, filter_, offset, limit + 1))
    page, has_more = found.jobs[:limit], found.is_cut or len(found.jobs) > limit
    total = await _total(jobs, filter_)
    return Listed(page, max(total, offset + len(page)) if page else total, has_more, note)


def sort_named(text: str, field: str = "sort_by") -> Sort:
    """A sort by its name."""
    try:
        return Sort(text)
    except ValueError:
        allowed = ", ".join(sort.value for sort in Sort)
        raise InvalidInput(field, f"must be one of {allowed}, not {text[:80]!r}") from None


async def matching(jobs: Jobs, filter_: JobFilter, limit: int, below: int | None = None) -> AsyncIterator[StoredJob]:
    """Up to `limit` matching jobs, newest first."""
    cursor = below
    while limit > 0:
        page = await jobs.find(filter_, min(STEP, limit), cursor)
        for job in page.jobs:
            yield job
        cursor, limit = page.next, limit - len(page.jobs)
        if cursor is None:
            return


# By creation ------------------------------------------------------------------------------------------


async def _from_newest(jobs: Jobs, filter_: JobFilter, offset: int, limit: int) -> _Found:
    found = _Found()
    index = 0
    async for job in matching(jobs, filter_, offset + limit):
        if index >= offset:
            found.add(job)
        if found.is_cut:
            break
        index += 1
    return found


async def _from_oldest(jobs: Jobs, filter_: JobFilter, offset: int, limit: int) -> list[int]:
    needed = offset + limit
    keys = await _keys(jobs, filter_, None, needed + 1)
    if len(keys) > needed:
        keys = await _oldest_keys(jobs, filter_, needed)
    return sorted(keys)[offset:needed]


async def _oldest_keys(jobs: Jobs, filter_: JobFilter, needed: int) -> list[int]:
    """Find a key below which there are enough matches but not too many to read, because lists are descending only."""
    too_low, too_high = await _lowest_key(jobs, filter_), None
    span = needed
    while True:
        below = too_low + span if too_high is None else (too_low + too_high) // 2
        keys = await _keys(jobs, filter_, below, 4 * needed)
        if len(keys) < needed:
            too_low, span = below, span * 2
        elif len(keys) == 4 * needed:
            too_high = below
        else:
            return keys
        if too_high is not None and too_high - too_low <= 1:  # Jobs were created or deleted in the meantime.
            return keys


async def _keys(jobs: Jobs, filter_: JobFilter, below: int | None, limit: int) -> list[int]:
    return [job.key async for job in matching(jobs, filter_, limit, below)]


async def _lowest_key(jobs: Jobs, filter_: JobFilter) -> int:
    """The key of the oldest match, by bisection."""
    lowest, empty_below = KEY_MAX, 1
    while empty_below < lowest:
        middle = (empty_below + lowest) // 2
        found = (await jobs.find(filter_, 1, middle + 1)).jobs
        if found:
            lowest = found[0].key
        else:
            empty_below = middle + 1
    return lowest


# By other fields ----------------------------------------------------------------------------------------


async def _sorted(jobs: Jobs, filter_: JobFilter, limit: int, order: Order) -> tuple[list[int], str]:
    """The keys of the first matches in the given order, and a note if not all matches were considered."""
    ranked: list[tuple[float, int]] = []
    seen = 0
    async for job in matching(jobs, filter_, SORTED_MAX + 1):
        if seen == SORTED_MAX:
            note = f"sorted by {order.sort.value} among the newest {SORTED_MAX:,} matches only"
            return _first(ranked, limit), note
        seen += 1
        rank = (-_rank(job, order), job.key)
        if len(ranked) < limit:
            heapq.heappush(ranked, rank)
        else:
            heapq.heappushpop(ranked, rank)
    return _first(ranked, limit), ""


def _first(ranked: list[tuple[float, int]], limit: int) -> list[int]:
    return [key for _, key in heapq.nlargest(limit, ranked)]


def _rank(job: StoredJob, order: Order) -> float:
    """Lower values first; a job without the value comes last in either direction."""
    value = {
        Sort.ACTIVATED_AT: job.activated_at_ms,
        Sort.RETRIES: job.retries,
        Sort.DEADLINE: job.lease_until_ms,
    }.get(order.sort, job.created_at_ms)
    if value is None:
        return math.inf
    return -value if order.descending else value


async def _existing(jobs: Jobs, keys: list[int]) -> _Found:
    """The jobs with these keys, in this order; deleted jobs are left out."""
    found = _Found()
    for start in range(0, len(keys), GET_STEP):
        for job in await jobs.get_many(keys[start : start + GET_STEP]):
            if job is not None:
                found.add(job)
        if found.is_cut:
            break
    return found


# Totals -----------------------------------------------------------------------------------------------


async def _total(jobs: Jobs, filter_: JobFilter) -> int:
    """The total: exact for filters by type, state and tenants; otherwise counted one by one, up to a limit."""
    if filter_.worker is not None or filter_.due:
        return await _bounded_count(jobs, filter_, REACH_MAX)
    counts = await jobs.count()
    return sum(
        count.jobs
        for count in counts
        if filter_.type in (None, count.type)
        and (not filter_.states or count.state in filter_.states)
        and (not filter_.tenants or count.tenant in filter_.tenants)
    )


async def _bounded_count(jobs: Jobs, filter_: JobFilter, limit: int) -> int:
    return len(await _keys(jobs, filter_, None, limit))
