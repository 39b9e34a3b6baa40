"""The jobs that are leased now, with worker and start time, and which of these workers are registered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from everwork.core.job import StoredJob
from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.engines.contract import Engine
from everwork.service.fleet.entries import ProcessEntry

RUNNING_JOBS_MAX: Final = 500


class RunningJob(NamedTuple):
    """A leased job.

    `process` is the registered process, stream or poller that leases under the worker's name, and `kind` is its kind.
    Both are None if it has just died, is a poller that has not polled for a while, or shares the name with others.
    """

    key: int
    type: str
    tenant: str
    attempt: int
    worker: str
    process: str | None
    activated_at_ms: int
    lease_until_ms: int
    kind: str | None = None


class RunningJobs(NamedTuple):
    """Leased jobs, longest running first; `is_cut` means that there are more, with lower keys."""

    jobs: list[RunningJob]
    is_cut: bool

    @property
    def others(self) -> dict[str, int]:
        """How many of these jobs are leased by unregistered workers, by worker name."""
        return dict(sorted(Counter(job.worker for job in self.jobs if job.process is None).items()))


def by_lease_name(processes: Iterable[ProcessEntry]) -> dict[str, ProcessEntry]:
    """Processes by the name under which they lease, if that name is unique."""
    found: dict[str, ProcessEntry] = {}
    shared: set[str] = set()
    for one in processes:
        if one.lease_name in found:
            shared.add(one.lease_name)
        found[one.lease_name] = one
    return {name: one for name, one in found.items() if name not in shared}


async def running_jobs(engine: Engine, processes: Mapping[str, ProcessEntry], limit: int) -> RunningJobs:
    """The newest leased jobs, up to `limit`; `processes` maps lease names to the running processes."""
    page = await engine.find(JobFilter(states=frozenset([State.PROCESSING])), limit)
    jobs = [_running(job, processes.get(job.worker or "")) for job in page.jobs]
    return RunningJobs(sorted(jobs, key=lambda job: (job.activated_at_ms, job.key)), page.next is not None)


def _running(job: StoredJob, process: ProcessEntry | None) -> RunningJob:
    return RunningJob(
        job.key,
        job.type,
        job.tenant,
        job.attempt,
        job.worker or "",
        None if process is None else process.name,
        job.activated_at_ms or 0,
        job.lease_until_ms or 0,
        None if process is None else process.kind,
    )
