"""The jobs that are leased now, with worker and start; and which workers are processes of managers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final, NamedTuple

from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.engines.contract import Engine

RUNNING_JOBS_MAX: Final = 500


class RunningJob(NamedTuple):
    """A leased job.

    `process` is the running process of the worker's name; None if that is an application, a worker of the API, or a
    process that has just died.
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
    """Leased jobs, the longest running first; `is_cut`: there are more, with lower keys."""

    jobs: list[RunningJob]
    is_cut: bool

    @property
    def others(self) -> dict[str, int]:
        """How many of these jobs are leased by workers that are not processes of managers, by name."""
        return dict(sorted(Counter(job.worker for job in self.jobs if job.process is None).items()))


async def running_jobs(engine: Engine, processes: Collection[str], limit: int) -> RunningJobs:
    """The newest leased jobs, up to `limit`; `processes` are the names of the running ones."""
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
