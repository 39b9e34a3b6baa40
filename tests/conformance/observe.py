"""What can be seen of a store, to compare before with after."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from everwork.core.queries import Count, JobFilter
from everwork.core.states import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everwork.core.job import HistoryEntry, StoredJob
    from everwork.core.leasing import Judged, Verdict
    from everwork.engines.contract import Engine


class Sight(NamedTuple):
    """A job, its history and the counts of the store."""

    job: StoredJob | None
    history: list[HistoryEntry]
    counts: dict[tuple[str, str, str, State], int]


async def sight(engine: Engine, key: int) -> Sight:
    """Everything that anyone can see of this job."""
    [job] = await engine.get([key])
    return Sight(job, await engine.history(key), await counted(engine))


async def counted(engine: Engine) -> dict[tuple[str, str, str, State], int]:
    """The maintained counts."""
    counts = await engine.count()
    by_place = {count[:4]: count.jobs for count in counts}
    assert len(by_place) == len(counts), "count() answers a place twice"
    return by_place


async def every_job(engine: Engine, wanted: JobFilter | None = None, page: int = 100) -> list[StoredJob]:
    """All jobs that match, by paging to the end."""
    jobs: list[StoredJob] = []
    cursor: int | None = None
    for _ in range(1_000):
        answer = await engine.find(wanted or JobFilter(), page, cursor)
        jobs += answer.jobs
        cursor = answer.next
        if cursor is None:
            return jobs
    raise AssertionError("list() never ends")


async def assert_counts_add_up(engine: Engine) -> None:
    """The counts are those of the jobs that list() shows, and none is zero."""
    jobs = await every_job(engine)
    recounted = Counter(Count(job.tenant, job.type, job.group, job.state, 0)[:4] for job in jobs)
    assert await counted(engine) == dict(recounted)


async def kinds(engine: Engine, key: int) -> list[tuple[int, str]]:
    """The history in short: which attempt ended how."""
    return [(event.attempt, event.kind) for event in await engine.history(key)]


def seen(answers: Sequence[Judged]) -> list[tuple[Verdict, State | None]]:
    """The verdicts and the states in which the jobs were found."""
    return [(answer.verdict, answer.state) for answer in answers]


async def count_of(engine: Engine, state: State) -> int:
    """How many jobs are in this state, by the maintained counts."""
    return sum(count.jobs for count in await engine.count() if count.state is state)
