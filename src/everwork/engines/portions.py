"""What is read or claimed in portions, alike in every engine: demands, pages, hours of statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from everwork.core.job import Job, LeasedJob
from everwork.core.leasing import Demand
from everwork.core.limits import HOUR_MS, INSTANT_MS_MAX, LIST_SCAN_MAX, PAGE_BYTES_MAX
from everwork.core.queries import JobFilter, Page
from everwork.engines.rules import matches


class Claim(NamedTuple):
    """Demands of one queue and the same tenants. Each takes up to its limit of what is claimed, in their order."""

    demands: list[Demand]
    places: list[int]
    """Where each stands among all the demands."""

    @property
    def whole(self) -> Demand:
        """The first of them, wanting what they want together."""
        first = self.demands[0]
        return first if len(self.demands) == 1 else first._replace(limit=sum([demand.limit for demand in self.demands]))

    def parted(self, jobs: Sequence[LeasedJob]) -> list[tuple[Demand, Sequence[LeasedJob]]]:
        """The share of each demand."""
        parts: list[tuple[Demand, Sequence[LeasedJob]]] = []
        start = 0
        for demand in self.demands:
            parts.append((demand, jobs[start : start + demand.limit]))
            start += demand.limit
        return parts

    def dated(self, jobs: list[LeasedJob], now_ms: int) -> list[LeasedJob]:
        """Jobs that were leased for as long as the first demand wants, with the deadlines that the others want."""
        usual_ms = self.demands[0].lease_ms
        if all(demand.lease_ms == usual_ms for demand in self.demands):
            return jobs
        return [
            job if demand.lease_ms == usual_ms else job._replace(lease_until_ms=now_ms + demand.lease_ms)
            for demand, share in self.parted(jobs)
            for job in share
        ]


def claims_of(demands: Sequence[Demand]) -> list[Claim]:
    """Which demands are claimed together."""
    claims: dict[tuple[str, str, tuple[str, ...]], Claim] = {}
    for place, demand in enumerate(demands):
        same = (demand.type, demand.group, demand.tenants)
        claim = claims.get(same)
        if claim is None:
            claims[same] = claim = Claim([], [])
        claim.demands.append(demand)
        claim.places.append(place)
    return list(claims.values())


def shared_out(
    claimed: Iterable[tuple[Claim, list[LeasedJob]]], demands: int
) -> tuple[list[LeasedJob], tuple[int, ...]]:
    """Jobs in the order of the demands, and how many each demand got."""
    shares: list[Sequence[LeasedJob]] = [()] * demands
    for claim, jobs in claimed:
        for place, (_, share) in zip(claim.places, claim.parted(jobs), strict=True):
            shares[place] = share
    return [job for share in shares for job in share], tuple(map(len, shares))


FIRST_STEP: Final = 16
STEP_MAX: Final = 64
"""However small those before were: the next ones may be large."""
WIDE_STEP: Final = 200
NARROW_STEP: Final = 2_000
"""Where few may match, more candidates are looked for at once."""
STEP_GROWTH: Final = 10

T = TypeVar("T")


class Filling:
    """A page that is being filled: full with enough jobs, or with large ones."""

    def __init__(self, wanted: JobFilter, limit: int) -> None:
        self._wanted, self._limit = wanted, limit
        self.jobs: list[Job] = []
        self._size = self._read = self._read_size = 0

    @property
    def is_full(self) -> bool:
        """Whether no further job has room."""
        return len(self.jobs) >= self._limit or self._size >= PAGE_BYTES_MAX

    @property
    def step(self) -> int:
        """How many jobs to read next: as many as fit into memory, going by those that were read."""
        fitting = PAGE_BYTES_MAX * self._read // self._read_size if self._read_size else FIRST_STEP
        return max(1, min(fitting, STEP_MAX, self._limit - len(self.jobs)))

    def add(self, jobs: Sequence[Job | None], now_ms: int) -> None:
        """Take those that match, now that they have been read in whole."""
        for job in jobs:
            size = 0 if job is None else len(job.variables) + len(job.result or "")
            self._read, self._read_size = self._read + 1, self._read_size + size
            if job is not None and matches(job, self._wanted, now_ms):
                self.jobs.append(job)
                self._size += size

    def ended(self) -> Page:
        """The page, after which there is more."""
        return Page(self.jobs, self.jobs[-1].key)


def first_step(wanted: JobFilter, limit: int) -> int:
    """How many candidates to look for at first."""
    return max(limit + 1, NARROW_STEP if asks_of_job(wanted) or asks_of_attempt(wanted) else WIDE_STEP)


def next_step(wanted: JobFilter, seen: int, step: int) -> int:
    """How many to look for next, soon many at once, because each step has a price of its own; 0: enough were seen.

    What attempts have left stands apart from the job: a third as many are looked at in the same time.
    """
    most = LIST_SCAN_MAX // 3 if asks_of_attempt(wanted) else LIST_SCAN_MAX
    return max(0, min(step * STEP_GROWTH, most - seen))


def asks_of_job(wanted: JobFilter) -> bool:
    """Whether a filter asks for what never changes of a job, besides type and group."""
    asked = (wanted.correlation_id, wanted.created_after_ms, wanted.created_before_ms)
    return bool(wanted.tenants) or any(one is not None for one in asked)


def asks_of_attempt(wanted: JobFilter) -> bool:
    """Whether a filter asks for what attempts have left: worker, error."""
    return wanted.worker is not None or wanted.error_text is not None


def parted(items: Sequence[T], step: int) -> Iterator[Sequence[T]]:
    """Items in pieces."""
    return (items[start : start + step] for start in range(0, len(items), step))


PORTION_HOURS: Final = 24


class Hours(NamedTuple):
    """The hours behind one, up to another."""

    behind: int
    last: int


def portions(hours: int, now_ms: int) -> Iterator[Hours]:
    """The last so many hours, oldest first; the last portion has also what was counted before a clock was set back."""
    now = now_ms // HOUR_MS
    for behind in range(now - hours, now, PORTION_HOURS):
        last = behind + PORTION_HOURS
        yield Hours(behind, last if last < now else INSTANT_MS_MAX // HOUR_MS)
