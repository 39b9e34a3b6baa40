"""What is leased now, by whom and since when; and which of them are processes of managers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final, NamedTuple

from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.engines.contract import Engine

RUNNING_JOBS_MAX: Final = 500


class RunningJob(NamedTuple):
    """A job that is leased: since when, until when, and under which name.

    `process` is the process of that name that lives; None: the name is that of an application, of a worker of the API,
    or of a process that has just died.
    """

    key: int
    type: str
    tenant: str
    attempt: int
    worker: str
    process: str | None
    activated_at_ms: int
    lease_until_ms: int


class RunningJobs(NamedTuple):
    """Leased jobs, those first that run longest; `is_cut`: there are more, with lower keys."""

    jobs: list[RunningJob]
    is_cut: bool

    @property
    def others(self) -> dict[str, int]:
        """How many of these jobs are held under names that are no process's, by name."""
        return dict(sorted(Counter(job.worker for job in self.jobs if job.process is None).items()))


async def at_work(engine: Engine, processes: Collection[str], limit: int) -> RunningJobs:
    """The newest leased jobs, at most so many; `processes` are the names of those that live."""
    page = await engine.find(JobFilter(states=frozenset([State.PROCESSING])), limit)
    jobs = [
        RunningJob(
            job.key,
            job.type,
            job.tenant,
            job.attempt,
            job.worker or "",
            job.worker if job.worker in processes else None,
            job.activated_at_ms or 0,
            job.lease_until_ms or 0,
        )
        for job in page.jobs
    ]
    return RunningJobs(sorted(jobs, key=lambda job: (job.activated_at_ms, job.key)), page.next is not None)
