"""An outcome of an old attempt in the same batch as one of the live attempt: each is judged by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.core.leasing import Verdict
from everwork.core.outcome import Complete, Failed, Outcome, Reject, Release, Retry
from everwork.core.states import State
from tests.factories import a_processing_job, activated, settled, the_job

if TYPE_CHECKING:
    from everwork.core.job import StoredJob
    from everwork.engines.contract import Engine

OLD: dict[str, Outcome] = {
    "retry": Retry(0, 1, "old", delay_ms=60_000),
    "fail": Failed(0, 1, "old", backoff_ms=60_000),
    "release": Release(0, 1),
    "complete": Complete(0, 1, '"old"'),
}
LIVE: dict[str, Outcome] = {"reject": Reject(0, 2, "live"), "fail": Failed(0, 2, "live", final=True)}
every_pair = pytest.mark.parametrize(("old", "live"), [(old, live) for old in OLD for live in LIVE])


async def a_job_at_its_second_attempt(engine: Engine) -> StoredJob:
    first = await a_processing_job(engine)
    released = await settled(engine, Release(first.key, 1))
    return await activated(engine, released)


async def judged_as(engine: Engine, key: int, *outcomes: Outcome) -> list[Verdict]:
    return [one.verdict for one in (await engine.settle([one._replace(key=key) for one in outcomes])).judged]


@every_pair
async def test_a_failure_behind_an_old_outcome_is_decided_by_what_it_says_itself(
    engine: Engine, old: str, live: str
) -> None:
    job = await a_job_at_its_second_attempt(engine)
    refused = Verdict.REPEATED if old == "release" else Verdict.LEASE_LOST
    assert await judged_as(engine, job.key, OLD[old], LIVE[live]) == [refused, Verdict.ACCEPTED]
    now = await the_job(engine, job.key)
    assert (now.state, now.last_error) == (State.FAILED, "live")


@every_pair
async def test_a_failure_in_front_of_an_old_outcome_is_decided_by_what_it_says_itself(
    engine: Engine, old: str, live: str
) -> None:
    job = await a_job_at_its_second_attempt(engine)
    refused = Verdict.REPEATED if old == "release" else Verdict.LEASE_LOST
    assert await judged_as(engine, job.key, LIVE[live], OLD[old]) == [Verdict.ACCEPTED, refused]
    now = await the_job(engine, job.key)
    assert (now.state, now.last_error) == (State.FAILED, "live")
