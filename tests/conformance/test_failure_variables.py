"""The variables that a failure brings take the place of the job's own, in the step that ends the attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from everwork.core.leasing import Verdict
from everwork.core.outcome import Complete, Failed, Outcome, Release, Throw
from everwork.core.states import State
from tests.conformance.observe import sight
from tests.factories import (
    TYPE,
    a_new_job,
    a_pending_job,
    a_processing_job,
    activated,
    asked,
    judged,
    leased_keys,
    settled,
    the_job,
)
from tests.stores import VirtualClock, open_store

if TYPE_CHECKING:
    from pathlib import Path

    from everwork.engines.contract import Engine

OLD, NEW = '{"step":1}', '{"step":2,"seen":["é","\\n"]}'
RARE: dict[str, Any] = {
    "headers": '{"h":1}', "correlation_id": "c1", "timeout_ms": 9, "extra": '{"e":1}', "dedupe_key": "d1",
    "limit_key": "k", "tenant": "acme", "expires_at_ms": 9_999_999_999_999, "retry": '{"max_attempts":7}',
}  # fmt: skip
BRINGERS: list[Outcome] = [
    Failed(0, 0, "boom", backoff_ms=0, variables=NEW),
    Failed(0, 0, "boom", final=True, variables=NEW),
    Failed(0, 0, "boom", retries=0, variables=NEW),
    Throw(0, 0, "E42", "no money", NEW),
]


def of(job: Any, outcome: Outcome) -> Outcome:
    """An outcome of the job's latest attempt."""
    return outcome._replace(key=job.key, attempt=job.attempt)


@pytest.mark.parametrize("outcome", BRINGERS, ids=str)
@pytest.mark.parametrize("rare", [{}, RARE], ids=["plain", "rare"])
async def test_the_job_has_the_variables_that_its_failure_brought_and_all_else_as_before(
    engine: Engine, outcome: Outcome, rare: dict[str, Any]
) -> None:
    job = await a_processing_job(engine, variables=OLD, **rare)
    after = await settled(engine, of(job, outcome))
    assert after.variables == NEW
    for field in ("headers", "correlation_id", "timeout_ms", "extra", "dedupe_key", "limit_key", "expires_at_ms"):
        assert getattr(after, field) == getattr(job, field)


@pytest.mark.parametrize("outcome", [Failed(0, 0, "boom", backoff_ms=0), Throw(0, 0, "E42")], ids=str)
async def test_without_variables_the_job_keeps_its_own(engine: Engine, outcome: Outcome) -> None:
    job = await a_processing_job(engine, variables=OLD)
    assert (await settled(engine, of(job, outcome))).variables == OLD


async def test_the_next_attempt_gets_the_new_variables(engine: Engine) -> None:
    job = await a_processing_job(engine, variables=OLD, headers='{"h":1}')
    await settled(engine, Failed(job.key, 1, "boom", backoff_ms=0, variables=NEW))
    [leased] = (await asked(engine)).jobs
    assert (leased.variables, leased.headers, leased.attempt) == (NEW, '{"h":1}', 2)


@pytest.mark.parametrize("variables", ["{}", "[1,2]", '"a text"', "null", ' {"a" : 1}', "[\n1,\n2]", '{"a":\n1}'])
@pytest.mark.parametrize("rare", [{}, RARE], ids=["plain", "rare"])
async def test_variables_may_be_any_json(engine: Engine, variables: str, rare: dict[str, Any]) -> None:
    job = await a_processing_job(engine, variables=OLD, **rare)
    await settled(engine, Failed(job.key, 1, "boom", backoff_ms=0, variables=variables))
    [leased] = (await asked(engine)).jobs
    assert (leased.variables, leased.headers) == (variables, job.headers)
    await settled(engine, Failed(job.key, 2, "boom", backoff_ms=0, variables=OLD))
    assert (await the_job(engine, job.key)).variables == OLD


async def test_a_requeued_dead_letter_keeps_the_new_variables(engine: Engine) -> None:
    job = await a_processing_job(engine, variables=OLD)
    await settled(engine, Throw(job.key, 1, "E42", variables=NEW))
    await engine.requeue([job.key])
    [leased] = (await asked(engine)).jobs
    assert leased.variables == NEW


async def test_a_refused_failure_changes_no_variables(engine: Engine) -> None:
    job = await a_processing_job(engine, variables=OLD)
    await settled(engine, Release(job.key, 1))
    before = await sight(engine, job.key)
    for outcome in BRINGERS:
        assert (await judged(engine, outcome._replace(key=job.key, attempt=1))).verdict is Verdict.WRONG_STATE
    assert await sight(engine, job.key) == before
    again = await activated(engine, job)
    assert (await judged(engine, Failed(job.key, 1, "boom", variables=NEW))).verdict is Verdict.LEASE_LOST
    assert (await the_job(engine, again.key)).variables == OLD


async def test_a_repeated_failure_changes_no_variables(engine: Engine) -> None:
    job = await a_processing_job(engine, variables=OLD)
    await settled(engine, Failed(job.key, 1, "boom", backoff_ms=0, variables=NEW))
    assert (await judged(engine, Failed(job.key, 1, "boom", variables='{"x":1}'))).verdict is Verdict.REPEATED
    assert (await the_job(engine, job.key)).variables == NEW


async def test_of_two_failures_of_one_attempt_in_one_batch_the_first_counts(engine: Engine) -> None:
    job = await a_processing_job(engine, variables=OLD)
    batch = [Failed(job.key, 1, "boom", variables=NEW), Failed(job.key, 1, "boom", variables='{"x":1}')]
    verdicts = [one.verdict for one in (await engine.settle(batch)).judged]
    assert verdicts == [Verdict.ACCEPTED, Verdict.REPEATED]
    assert (await the_job(engine, job.key)).variables == NEW


async def test_each_job_of_a_batch_gets_its_own_variables(engine: Engine) -> None:
    await engine.create([a_new_job(variables=OLD) for _ in range(6)])
    leased = (await asked(engine)).jobs
    batch: list[Outcome] = [
        Failed(leased[0].key, 1, "boom", variables='{"n":0}'),
        Complete(leased[1].key, 1, '{"n":"result"}'),
        Throw(leased[2].key, 1, "E42", variables='{"n":2}'),
        Failed(leased[3].key, 1, "boom"),
        Release(leased[4].key, 1),
        Failed(leased[5].key, 0, "boom", variables='{"n":5}'),
    ]
    assert all(one.ok for one in (await engine.settle(batch)).judged)
    jobs = [await the_job(engine, job.key) for job in leased]
    assert [job.variables for job in jobs] == ['{"n":0}', OLD, '{"n":2}', OLD, OLD, '{"n":5}']


async def test_the_copies_of_other_groups_keep_their_own_variables(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")
    job = await a_pending_job(engine, variables=OLD)
    [copy] = await leased_keys(engine, group="audit")
    await leased_keys(engine)
    await settled(engine, Failed(job.key, 1, "boom", variables=NEW))
    assert [(await the_job(engine, key)).variables for key in (job.key, copy)] == [NEW, OLD]
    await settled(engine, Throw(copy, 1, "E42", variables='{"copy":1}'))
    assert [(await the_job(engine, key)).variables for key in (job.key, copy)] == [NEW, '{"copy":1}']


async def test_a_job_that_moves_to_another_store_takes_its_new_variables_along(
    engine: Engine, engine_name: str, tmp_path: Path
) -> None:
    retried = await a_processing_job(engine, variables=OLD, **RARE)
    await settled(engine, Failed(retried.key, 1, "boom", backoff_ms=0, variables=NEW))
    dead = await a_processing_job(engine, type="other", variables=OLD)
    await settled(engine, Throw(dead.key, 1, "E42", variables='["thrown"]'))
    records = await engine.dump(0, 10)
    (tmp_path / "there").mkdir()
    there = await open_store(engine_name, tmp_path / "there", VirtualClock())
    try:
        assert await there.load(records) == 2
        found = [await the_job(there, key) for key in (retried.key, dead.key)]
    finally:
        await there.close()
    assert [job.variables for job in found] == [NEW, '["thrown"]']


async def test_a_lapsed_lease_leaves_the_variables_alone(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine, variables=OLD, lease_ms=1_000)
    clock.advance(seconds=2)
    assert (await engine.sweep("s")).lapsed == 1
    after = await the_job(engine, job.key)
    assert (after.state, after.variables) == (State.PENDING, OLD)
    assert not (await engine.settle([Failed(job.key, 1, "late", variables=NEW)])).judged[0].ok
    assert (await the_job(engine, job.key)).variables == OLD
