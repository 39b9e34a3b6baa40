"""Lists that walk over buckets of keys: where a bucket ends the list must not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.core.queries import JobFilter
from tests.factories import a_new_job

if TYPE_CHECKING:
    from everwork.engines.contract import Engine

BUCKET = 1_000
"""So many keys share one hash of the store."""


@pytest.mark.parametrize("in_newest", [1, 200, BUCKET])
async def test_a_walk_that_ends_with_a_bucket_goes_on_in_the_next(engine: Engine, in_newest: int) -> None:
    jobs = [a_new_job(correlation_id="c" if number % 3 else "d") for number in range(2 * BUCKET + in_newest - 1)]
    for start in range(0, len(jobs), 500):
        await engine.create(jobs[start : start + 500])
    found, cursor = 0, None
    while True:
        page = await engine.find(JobFilter(correlation_id="c"), BUCKET, cursor)
        found, cursor = found + len(page.jobs), page.next
        if cursor is None:
            break
    assert found == sum(job.correlation_id == "c" for job in jobs)
