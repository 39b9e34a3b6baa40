"""How a list reads whole jobs, in every engine: few at a time, because each may hold megabytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from everwork.core.job import Job
from everwork.core.limits import LIST_SCAN_MAX, PAGE_BYTES_MAX
from everwork.core.queries import JobFilter, Page
from everwork.engines.rules import matches

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
