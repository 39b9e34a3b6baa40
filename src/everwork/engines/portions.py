"""Reading and claiming in portions, the same way in every engine: demands, pages, hours of statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from everwork.core.job import LeasedJob, StoredJob
from everwork.core.leasing import Demand
from everwork.core.limits import HOUR_MS, INSTANT_MS_MAX, KEY_MAX, LIST_SCAN_MAX, PAGE_BYTES_MAX, SEARCH_BYTES_MAX
from everwork.core.queries import (
    CURSOR_MAX,
    Count,
    JobFilter,
    Measure,
    Order,
    Page,
    WorkerHour,
    cursor_of,
    cursor_parts,
)
from everwork.engines.rules import filters_by_attempt, filters_by_job, matches
from everwork.exceptions import InvalidInput


class Claim(NamedTuple):
    """Demands for the same queue and tenants. Each gets up to its limit of the claimed jobs, in order."""

    demands: list[Demand]
    positions: list[int]
    """The index of each of these demands among all demands."""

    @property
    def combined(self) -> Demand:
        """The first demand, with the sum of all limits."""
        first = self.demands[0]
        return first if len(self.demands) == 1 else first._replace(limit=sum([demand.limit for demand in self.demands]))

    def shares(self, jobs: Sequence[LeasedJob]) -> list[tuple[Demand, Sequence[LeasedJob]]]:
        """Each demand with its share of the jobs."""
        if len(self.demands) == 1:
            return [(self.demands[0], jobs)]
        shares: list[tuple[Demand, Sequence[LeasedJob]]] = []
        start = 0
        for demand in self.demands:
            shares.append((demand, jobs[start : start + demand.limit]))
            start += demand.limit
        return shares

    def with_deadlines(self, jobs: list[LeasedJob], now_ms: int) -> list[LeasedJob]:
        """Jobs that were leased with the first demand's lease_ms, with the deadlines of their own demands."""
        first_ms = self.demands[0].lease_ms
        if all(demand.lease_ms == first_ms for demand in self.demands):
            return jobs
        return [
            job if demand.lease_ms == first_ms else job._replace(lease_until_ms=now_ms + demand.lease_ms)
            for demand, share in self.shares(jobs)
            for job in share
        ]


def claims_of(demands: Sequence[Demand]) -> list[Claim]:
    """Group the demands that can be claimed together."""
    claims: dict[tuple[str, str, tuple[str, ...]], Claim] = {}
    for position, demand in enumerate(demands):
        shared = (demand.type, demand.group, demand.tenants)
        claim = claims.get(shared)
        if claim is None:
            claims[shared] = claim = Claim([], [])
        claim.demands.append(demand)
        claim.positions.append(position)
    return list(claims.values())


def distribute(
    claimed: Iterable[tuple[Claim, list[LeasedJob]]], demands: int
) -> tuple[list[LeasedJob], tuple[int, ...]]:
    """Jobs in the order of the demands, and how many each demand got."""
    shares: list[Sequence[LeasedJob]] = [()] * demands
    for claim, jobs in claimed:
        for position, (_, share) in zip(claim.positions, claim.shares(jobs), strict=True):
            shares[position] = share
    return [job for share in shares for job in share], tuple(map(len, shares))


FIRST_STEP: Final = 16
STEP_MAX: Final = 64
"""The limit applies even if the jobs so far were small: the next ones may be large."""
WIDE_STEP: Final = 200
NARROW_STEP: Final = 2_000
"""When few jobs may match, each step reads more candidates."""
STEP_GROWTH: Final = 10
SEARCH_STEP_MAX: Final = 256
"""The maximum number of variables that one statement searches, even if those so far were small."""

T = TypeVar("T")


class PageBuilder:
    """Collects the jobs of a page; it is full once it has enough jobs or enough bytes."""

    def __init__(self, query: JobFilter, limit: int) -> None:
        self._query, self._limit = query, limit
        self.jobs: list[StoredJob] = []
        self._places: dict[int, int] = {}
        self._size = self._read = self._read_size = 0

    @property
    def is_full(self) -> bool:
        """Whether the page is full."""
        return len(self.jobs) >= self._limit or self._size >= PAGE_BYTES_MAX

    @property
    def step(self) -> int:
        """How many jobs to read next: as many as fit into memory, estimated from those read so far."""
        fitting = PAGE_BYTES_MAX * self._read // self._read_size if self._read_size else FIRST_STEP
        return max(1, min(fitting, STEP_MAX, self._limit - len(self.jobs)))

    def keys(self, cursors: Sequence[int]) -> Sequence[int]:
        """The keys of the candidates at these positions."""
        if self._query.order is Order.NEWEST:
            return cursors
        self._places = {cursor_parts(cursor)[1]: cursor for cursor in cursors}
        return list(self._places)

    def add(self, jobs: Sequence[StoredJob | None], now_ms: int) -> None:
        """Add the jobs, now read completely, that match and have not moved since they were found."""
        for job in jobs:
            size = 0 if job is None else len(job.variables) + len(job.result or "")
            self._read, self._read_size = self._read + 1, self._read_size + size
            if job is not None and matches(job, self._query, now_ms) and self._is_in_place(job):
                self.jobs.append(job)
                self._size += size

    def page(self) -> Page:
        """The page, with a cursor to the next one."""
        return Page(self.jobs, cursor_of(self.jobs[-1], self._query.order))

    @property
    def jobs_read(self) -> int:
        """How many jobs were read for this page."""
        return self._read

    @property
    def bytes_read(self) -> int:
        """How much of variables and results was read for this page."""
        return self._read_size

    def page_up_to(self, key: int) -> Page:
        """The page, with a cursor after this candidate, where the search reached its limit."""
        return Page(self.jobs, self._places.get(key, key))

    def _is_in_place(self, job: StoredJob) -> bool:
        return not self._places or self._places.get(job.key) == cursor_of(job, self._query.order)


class VariablesSearch:
    """Searches the variables of candidates in portions, until enough bytes are searched."""

    def __init__(self, query: JobFilter) -> None:
        self._text = query.variables_text
        self._jobs = self._bytes = 0

    @property
    def is_over(self) -> bool:
        """Whether this call has searched as much as it may."""
        return self._bytes >= SEARCH_BYTES_MAX

    @property
    def step(self) -> int:
        """How many candidates to search next, estimated from those searched so far."""
        fitting = PAGE_BYTES_MAX * self._jobs // self._bytes if self._bytes else FIRST_STEP
        return max(1, min(fitting, SEARCH_STEP_MAX))

    def portion(self, keys: Sequence[int]) -> Sequence[int]:
        """The candidates to search next; all of them if no text is searched for."""
        return keys if self._text is None else keys[: self.step]

    def matching(self, rows: Iterable[Sequence[int]]) -> list[int]:
        """The keys whose variables contain the text, from rows of key, bytes searched, and whether it was found."""
        found = []
        for key, size, is_found in rows:
            self._jobs, self._bytes = self._jobs + 1, self._bytes + size
            if is_found:
                found.append(key)
        return found


def dedupe_owners(query: JobFilter, counts: Iterable[Count]) -> list[tuple[str, str]]:
    """The types and tenants in which a dedupe key is looked up: those of the query, or all that have jobs."""
    if query.type is not None and query.tenants:
        return [(query.type, tenant) for tenant in query.tenants]
    owners = {
        (count.type, count.tenant)
        for count in counts
        if query.type in (None, count.type) and (not query.tenants or count.tenant in query.tenants)
    }
    if len(owners) > LIST_SCAN_MAX:
        problem = f"would be searched in {len(owners):,} types and tenants, more than {LIST_SCAN_MAX:,}"
        raise InvalidInput("dedupe_key", f"{problem}; filter by type or tenant")
    return sorted(owners)


def is_by_dedupe_key(query: JobFilter) -> bool:
    """Whether candidates are found by the dedupe key; in other orders they are found as if there were no dedupe key."""
    return query.dedupe_key is not None and query.order is Order.NEWEST


def newest_below(keys: Iterable[int], window: tuple[int, int]) -> list[int]:
    """The keys below a cursor, newest first, up to a limit."""
    below, limit = window
    return sorted((key for key in keys if key < below), reverse=True)[:limit]


def first_cursor(query: JobFilter) -> int:
    """The cursor of the first page."""
    return {Order.NEWEST: KEY_MAX, Order.DUE: 0, Order.FAILED: CURSOR_MAX}[query.order]


def first_step(query: JobFilter, limit: int) -> int:
    """How many candidates to read in the first step."""
    is_narrow = filters_by_job(query) or filters_by_attempt(query) or query.variables_text is not None
    return max(limit + 1, NARROW_STEP if is_narrow else WIDE_STEP)


def next_step(query: JobFilter, seen: int, step: int) -> int:
    """How many candidates to read next; steps grow, because each has a fixed cost; 0: the scan limit is reached.

    Values that attempts set are stored apart from the job, and variables are long: only a third as many can be read in
    the same time.
    """
    is_slow = filters_by_attempt(query) or query.variables_text is not None
    scan_max = LIST_SCAN_MAX // 3 if is_slow else LIST_SCAN_MAX
    return max(0, min(step * STEP_GROWTH, scan_max - seen))


def batches(items: Sequence[T], step: int) -> Iterator[Sequence[T]]:
    """Items in batches of `step`."""
    return (items[start : start + step] for start in range(0, len(items), step))


PORTION_HOURS: Final = 24


class Hours(NamedTuple):
    """The hours after `after`, up to and including `last`."""

    after: int
    last: int


def hour_ranges(hours: int, now_ms: int) -> Iterator[Hours]:
    """The last `hours` hours, oldest first; the last portion includes what was counted before a clock was set back."""
    now = now_ms // HOUR_MS
    for after in range(now - hours, now, PORTION_HOURS):
        last = after + PORTION_HOURS
        yield Hours(after, last if last < now else INSTANT_MS_MAX // HOUR_MS)


def merged_hours(measures: Iterable[Sequence[Any]], work: Iterable[Sequence[Any]]) -> list[Measure]:
    """The totals of some hours, from rows of hour, name and sum, and rows of hour and the sums of `WorkerHour`."""
    found = [Measure(hour, "", name, jobs) for hour, name, jobs in measures if jobs]
    for hour, *sums in work:
        found += [Measure(hour, "", *one) for one in zip(WorkerHour._fields[3:], sums, strict=True) if one[1]]
    return sorted(found)
