"""What failed for good lately, by what went wrong: for pages that are no list of dead letters, but lead to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from everwork.core.fingerprint import fingerprint
from everwork.core.job import Job
from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.server.http.ui.hidden import Hidden, masks_of
from everwork.server.http.ui.render import address
from everwork.server.http.ui.timeline import gist
from everwork.server.http.ui.visit import Visit
from everwork.service import bulk

LOOK_MAX: Final = 100
"""So many of the newest dead letters are looked at."""
KINDS_MAX: Final = 5
_FAILED: Final = JobFilter(states=frozenset([State.FAILED]))


class Kind(NamedTuple):
    """Dead letters of one type and one kind of error; `job` is the latest of them, `error` its own without secrets."""

    jobs: int
    job: Job
    error: str
    href: str

    @property
    def failed_ms(self) -> int:
        """When the latest of them failed."""
        return _failed_ms(self.job)


class Failing(NamedTuple):
    """The kinds that came last, and of how many dead letters they are; `is_cut`: there are more than were looked at."""

    kinds: list[Kind]
    looked_at: int
    is_cut: bool


async def failing(visit: Visit, type: str | None = None) -> Failing | None:
    """What failed lately, the latest first; None for whoever may not see jobs."""
    if not visit.may_see_jobs:
        return None
    page = await bulk.found(visit.desk, bulk.Search(replace(_FAILED, type=type)), LOOK_MAX, 0)
    found: dict[tuple[str, str], list[Job]] = {}
    for job in page.jobs:
        found.setdefault((job.type, fingerprint(job.last_error or "")), []).append(job)
    latest = [(kind, len(jobs), max(jobs, key=_failed_ms)) for kind, jobs in found.items()]
    latest.sort(key=lambda one: _failed_ms(one[2]), reverse=True)
    kinds = [_kind(visit, mark, jobs, job) for (_, mark), jobs, job in latest[:KINDS_MAX]]
    return Failing(kinds, len(page.jobs), page.next is not None)


def _kind(visit: Visit, mark: str, jobs: int, job: Job) -> Kind:
    error = gist(Hidden(masks_of(visit), job).cleaned(job.last_error or ""))
    return Kind(jobs, job, error, address("/ui/dead", type=job.type, fingerprint=mark))


def _failed_ms(job: Job) -> int:
    return job.finished_at_ms or job.created_at_ms
