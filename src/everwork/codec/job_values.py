"""A job as Python callers see it: with values where the record has JSON texts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple

from everwork.aio.loops import within
from everwork.codec.fields import JOB, JSON_TEXTS
from everwork.codec.json import decode_shown
from everwork.core.instants import utc_text
from everwork.core.job import StoredJob
from everwork.core.limits import LIST_LIMIT_MAX
from everwork.core.queries import Explanation, Reason
from everwork.core.states import FINISHED_STATES, State
from everwork.exceptions import EverworkError, ResultTimeout

PAGE_JOBS: Final = LIST_LIMIT_MAX // 4
"""How many jobs a list reads per page."""
EXPLAIN_SECONDS: Final = 1.0
"""How long a caller waits for an explanation after its timeout."""
ERROR_SHOWN_CHARS_MAX: Final = 200
"""How much of a failed attempt's error is quoted in the message of a timeout."""

_NAMES = tuple(field.name for field in JOB)
_VALUES = attrgetter(*_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(StoredJob):
    """A job in its current state, returned by `get`, `list` and `page`. Times are milliseconds since 1970, UTC."""

    variables: dict[str, Any]  # type: ignore[assignment]  # The record has its JSON text, here and below.
    """The arguments as JSON values."""
    headers: dict[str, Any] | None = None  # type: ignore[assignment]
    result: Any = None
    """The handler's return value as a JSON value."""
    extra: dict[str, Any] | None = None  # type: ignore[assignment]

    @classmethod
    def of(cls, record: StoredJob) -> Job:
        """The job that a record describes."""
        values = dict(zip(_NAMES, _VALUES(record), strict=True))
        for name in JSON_TEXTS:
            if (text := values[name]) is not None:
                values[name] = decode_shown(text)
        return cls(**values)


class JobPage(NamedTuple):
    """One page of jobs, and the cursor of the next; None on the last page."""

    jobs: Sequence[Job]
    next: int | None


async def every_job(page: Callable[[int | None], Awaitable[JobPage]]) -> AsyncIterator[Job]:
    """The jobs of all pages; `page` reads the page at a cursor."""
    cursor: int | None = None
    while True:
        jobs, cursor = await page(cursor)
        for job in jobs:
            yield job
        if cursor is None:
            return


def every_job_blocking(page: Callable[[int | None], JobPage]) -> Iterator[Job]:
    """The same for a `page` that blocks."""
    cursor: int | None = None
    while True:
        jobs, cursor = page(cursor)
        yield from jobs
        if cursor is None:
            return


async def with_reason(
    error: ResultTimeout, explaining: Awaitable[Explanation], reading: Awaitable[Job]
) -> ResultTimeout:
    """The same error, extended with the last failed attempt and why the job has not finished, if known."""
    try:
        found, job = await within(EXPLAIN_SECONDS, asyncio.gather(explaining, reading))
    except (EverworkError, TimeoutError):
        return error
    return error if found.state in FINISHED_STATES else ResultTimeout(f"{error}: {_reason(found, job)}")


def _reason(found: Explanation, job: Job) -> str:
    failed = job.attempts - (job.state is State.PROCESSING)
    if job.last_error is None or failed < 1:
        return found.text
    text = f"attempt {failed} of {job.max_attempts} failed ({_short(job.last_error)})"
    if found.reason is Reason.SCHEDULED and found.until_ms is not None:
        return f"{text}, retrying at {utc_text(found.until_ms)}"
    return f"{text}; {found.text}"


def _short(error: str) -> str:
    line = " ".join(error[: 2 * ERROR_SHOWN_CHARS_MAX].split())
    return line if len(line) <= ERROR_SHOWN_CHARS_MAX else f"{line[:ERROR_SHOWN_CHARS_MAX]}…"
