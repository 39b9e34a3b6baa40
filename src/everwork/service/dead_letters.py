"""Dead letters: their filter, and their groups by error. Jobs rejected by their workers are not included."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from enum import Enum
from typing import Final, NamedTuple

from everwork.core import checks
from everwork.core.fingerprint import FINGERPRINT_CHARS, exception_class, fingerprint
from everwork.core.job import StoredJob
from everwork.core.limits import LIST_LIMIT_MAX
from everwork.core.queries import JobFilter, Order
from everwork.core.states import State
from everwork.exceptions import InvalidInput, NothingMatches
from everwork.service.bulk import BulkFilter, Reader

SCANNED_MAX: Final = 100_000
READ_CHARS_MAX: Final = 512 * 1_048_576
"""The maximum size of one read: jobs are read together with their variables."""
SAMPLE_CHARS_MAX: Final = 500
SURVEY_JOBS: Final = 200
SURVEY_CHARS_MAX: Final = 32 * 1_048_576
SURVEY_STEPS_MAX: Final = 10
"""The maximum number of steps in a survey with few matches; each step skips thousands of non-matching jobs."""
SURVEY_SECONDS: Final = 0.1
"""Time limit per thousand jobs, not counting the running step."""
GROUPS_MAX: Final = 1_000
GROUPS_DEFAULT: Final = 100
GROUP_ORDERS: Final = ("frequent", Order.FAILED.label)


class DeadLetterAction(Enum):
    """The actions of a bulk change of dead letters."""

    REQUEUE = "requeue"
    PURGE = "purge"


def dead_filter(
    *,
    type: str | None = None,
    tenants: tuple[str, ...] = (),
    error_text: str | None = None,
    fingerprint: str | None = None,
    failed_after_ms: int | None = None,
    failed_before_ms: int | None = None,
    rejected: bool = False,
) -> BulkFilter:
    """Selects dead letters: all of them by default; with `rejected`, rejected jobs instead."""
    failed = JobFilter(type=type, states=frozenset([State.FAILED]), tenants=tenants, error_text=error_text)
    return BulkFilter(
        failed,
        fingerprint=fingerprint,
        failed_after_ms=failed_after_ms,
        failed_before_ms=failed_before_ms,
        rejected=rejected,
    )


class DeadLetterGroup(NamedTuple):
    """Dead letters of one type in the same error group. `key` and `error` are from the latest one.

    `exception_class` is "" if the error names none.
    """

    type: str
    fingerprint: str
    jobs: int
    first_ms: int
    last_ms: int
    key: int
    error: str
    exception_class: str


class Grouped(NamedTuple):
    """The largest groups, the number of jobs scanned, whether older jobs were skipped, and how many groups are omitted.

    `rejected`: how many of the scanned jobs would match, but were rejected.
    """

    groups: list[DeadLetterGroup]
    looked_at: int
    is_cut: bool
    left_out: int
    rejected: int


class Survey(NamedTuple):
    """A scan of the newest dead letters: the number of matches, their groups, and the newest matches."""

    matched: int
    grouped: Grouped
    newest: list[StoredJob]


async def grouped(
    jobs: Reader, filter_: BulkFilter, limit: int = GROUPS_DEFAULT, order: str = GROUP_ORDERS[0]
) -> Grouped:
    """Dead letters of the caller's tenants by type and error group, most frequent first; the newest are scanned.

    With `order` 'failed', the most recent failures are scanned, and groups are sorted by their latest failure.
    """
    checks.whole_number("limit", limit, 1, GROUPS_MAX)
    if order not in GROUP_ORDERS:
        raise InvalidInput("order", f"must be one of {', '.join(GROUP_ORDERS)}, not {checks.shown(order)}")
    if order == Order.FAILED.label:
        filter_ = replace(filter_, filter=replace(filter_.filter, order=Order.FAILED))
    found: dict[tuple[str, str], DeadLetterGroup] = {}
    looked_at = read = rejected = 0
    async for page in _pages(jobs, filter_):
        for job in page[: SCANNED_MAX - looked_at]:
            if filter_.matches_failure(job):
                _add(found, job)
            rejected += filter_.leaves_out(job)
        read += sum(len(job.variables) for job in page)
        looked_at += len(page)
        if looked_at > SCANNED_MAX or read > READ_CHARS_MAX:
            break
    is_cut = looked_at > SCANNED_MAX or read > READ_CHARS_MAX
    shown = _first_groups(found, len(found), min(looked_at, SCANNED_MAX), is_cut, rejected)
    if order == Order.FAILED.label:
        shown.groups.sort(key=lambda group: -group.last_ms)
    return shown._replace(groups=shown.groups[:limit], left_out=len(shown.groups[limit:]))


async def survey(jobs: Reader, filter_: BulkFilter, scan_max: int, newest_max: int = 0) -> Survey:
    """Like `grouped`, but for a page: takes few steps, however many dead letters there are and however few match."""
    found: dict[tuple[str, str], DeadLetterGroup] = {}
    newest: list[StoredJob] = []
    matched = looked_at = read = rejected = 0
    cursor: int | None = None
    until = time.monotonic() + max(SURVEY_SECONDS, scan_max * SURVEY_SECONDS / 1_000)
    for _ in range(max(SURVEY_STEPS_MAX, scan_max // SURVEY_JOBS)):
        page = await jobs.find_step(filter_.filter, min(SURVEY_JOBS, scan_max - looked_at), cursor)
        matching = [job for job in page.jobs if filter_.matches_failure(job)]
        for job in matching:
            _add(found, job)
        rejected += sum(map(filter_.leaves_out, page.jobs))
        newest += matching[: newest_max - len(newest)]
        matched, looked_at, cursor = matched + len(matching), looked_at + len(page.jobs), page.next
        read += sum(len(job.variables) for job in page.jobs)
        is_enough = looked_at >= scan_max or read > SURVEY_CHARS_MAX or time.monotonic() > until
        if cursor is None or is_enough:
            break
    shown = _first_groups(found, GROUPS_DEFAULT, looked_at, cursor is not None, rejected)
    return Survey(matched, shown, newest)


async def newest(jobs: Reader, kind: str, limit: int) -> list[StoredJob]:
    """The newest failed jobs with a fingerprint, rejected or not; `NothingMatches` if there are none."""
    filter_ = replace(dead_filter(fingerprint=require_fingerprint(kind)), rejected=None)
    found: list[StoredJob] = []
    async for page in _pages(jobs, filter_):
        found += [job for job in page if filter_.matches_failure(job)]
        if len(found) >= limit:
            break
    if not found:
        raise NothingMatches(f"no dead letter has the fingerprint '{kind}'")
    return found[:limit]


def require_fingerprint(text: object, field: str = "fingerprint") -> str:
    """Check a fingerprint, in the form that lists show."""
    if not isinstance(text, str) or len(text) != FINGERPRINT_CHARS or not set(text) <= set("abcdefghijklmnop"):
        allowed = f"must be {FINGERPRINT_CHARS} letters from a to p, as shown by everwork dead list"
        raise InvalidInput(field, f"{allowed}, not {checks.shown(text)}")
    return text


def _first_groups(
    found: dict[tuple[str, str], DeadLetterGroup], limit: int, looked_at: int, is_cut: bool, rejected: int
) -> Grouped:
    groups = sorted(found.values(), key=lambda group: (-group.jobs, group.type, group.fingerprint))
    return Grouped(groups[:limit], looked_at, is_cut, len(groups[limit:]), rejected)


def _add(found: dict[tuple[str, str], DeadLetterGroup], job: StoredJob) -> None:
    error, failed_ms = job.last_error or "", job.finished_at_ms or job.created_at_ms
    kind = (job.type, fingerprint(error))
    one = found.get(kind)
    if one is None:
        shown = error[:SAMPLE_CHARS_MAX]
        found[kind] = DeadLetterGroup(*kind, 1, failed_ms, failed_ms, job.key, shown, exception_class(error))
        return
    more = one._replace(jobs=one.jobs + 1, first_ms=min(one.first_ms, failed_ms))
    if failed_ms > one.last_ms:
        more = more._replace(last_ms=failed_ms, key=job.key, error=error[:SAMPLE_CHARS_MAX])
    found[kind] = more


async def _pages(jobs: Reader, filter_: BulkFilter) -> AsyncIterator[list[StoredJob]]:
    cursor: int | None = None
    while True:
        page = await jobs.find(filter_.filter, LIST_LIMIT_MAX, cursor)
        yield page.jobs
        cursor = page.next
        if cursor is None:
            return
