"""What a worker holds, as the store knows it: also what was leased by a step whose answer never arrived."""

from __future__ import annotations

from everwork.core.limits import LIST_LIMIT_MAX
from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.service.service import JobService


async def held_by(service: JobService, worker: str) -> dict[tuple[int, int], None]:
    """The keys and attempts of the jobs that are leased by a name, each once, in their order."""
    wanted = JobFilter(worker=worker, states=frozenset([State.PROCESSING]))
    held: dict[tuple[int, int], None] = {}
    cursor: int | None = None
    while True:
        page = await service.find(wanted, LIST_LIMIT_MAX, cursor)
        held |= {(job.key, job.attempt): None for job in page.jobs}
        cursor = page.next
        if cursor is None:
            return held
