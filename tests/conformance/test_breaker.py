"""A type's breaker: what counts, when it opens, and what happens while it is open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.core.breaker import BreakerState
from everwork.core.leasing import Demand, Verdict
from everwork.core.outcome import Complete, Failed, Reject, Release, Retry, Throw
from everwork.core.queries import Reason
from everwork.core.states import State
from tests.conformance.failing import (
    RULE,
    an_open_breaker,
    fail_finally,
    failures,
    leased,
    standing,
    where_it_is_decided,
)
from tests.conformance.observe import seen
from tests.conformance.test_registry import info_of
from tests.conformance.test_sweep import swept
from tests.factories import TYPE, WORKER, a_new_job, a_pending_job, a_policy, asked, leased_keys, settled, the_job
from tests.stores import HOUR_MS, MINUTE_MS, SECOND_MS

if TYPE_CHECKING:
    from everwork.core.outcome import Outcome
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

pytestmark = where_it_is_decided

CLOSED, OPEN = BreakerState.CLOSED, BreakerState.OPEN

UNCOUNTED: list[Outcome] = [
    Failed(0, 1, "told", backoff_ms=HOUR_MS, is_counted=False),
    Failed(0, 1, "told", final=True, is_counted=False),
    Retry(0, 1, "again", delay_ms=HOUR_MS),
    Reject(0, 1, "nonsense"),
    Throw(0, 1, "E42"),
]


# Opening ------------------------------------------------------------------------------------------


async def test_the_third_failure_in_a_row_opens_the_breaker_for_a_minute(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, **RULE)
    await failures(engine, 2)
    assert await standing(engine) == (CLOSED, 2)
    await failures(engine, 1)
    assert await standing(engine) == (OPEN, 3)
    assert (await info_of(engine)).breaker_open_until_ms == clock.now_ms + MINUTE_MS


async def test_one_job_that_fails_three_times_opens_the_breaker(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, **RULE)
    job = await a_pending_job(engine)
    for attempt in (1, 2, 3):
        assert await leased_keys(engine) == [job.key]
        await settled(engine, Failed(job.key, attempt, "boom"))
        clock.advance(seconds=30)
    assert await standing(engine) == (OPEN, 3)
    assert await leased_keys(engine) == []


async def test_a_success_in_between_begins_the_count_anew(engine: Engine) -> None:
    await a_policy(engine, **RULE)
    for _ in range(2):
        await failures(engine, 2)
        [job] = await leased(engine)
        await settled(engine, Complete(job.key, 1))
        assert await standing(engine) == (CLOSED, 0)


async def test_failures_need_not_stand_close_together_to_be_in_a_row(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, **RULE)
    for _ in range(3):
        await failures(engine, 1)
        clock.advance(ms=HOUR_MS)
    assert (await info_of(engine)).breaker_failures == 3


async def test_the_policy_says_how_many_failures_open_it_and_for_how_long(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, breaker_failures=1, breaker_seconds=7.5)
    await failures(engine, 1)
    assert (await info_of(engine)).breaker_open_until_ms == clock.now_ms + 7_500


async def test_what_does_not_count_neither_adds_to_the_failures_nor_ends_their_row(engine: Engine) -> None:
    await a_policy(engine, **RULE)
    await failures(engine, 2)
    for job, outcome in zip(await leased(engine, len(UNCOUNTED)), UNCOUNTED, strict=True):
        await settled(engine, outcome._replace(key=job.key))
        assert await standing(engine) == (CLOSED, 2), outcome
    await failures(engine, 1)
    assert await standing(engine) == (OPEN, 3)


async def test_releases_and_cancels_do_not_count(engine: Engine) -> None:
    await a_policy(engine, **RULE)
    await failures(engine, 2)
    for job in await leased(engine, 4):
        await settled(engine, Release(job.key, 1))
        await engine.cancel([job.key])
    running = await leased(engine, 4)
    await engine.cancel([job.key for job in running])
    assert await standing(engine) == (CLOSED, 2)


async def test_lapsed_leases_count(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, **RULE)
    await leased(engine, 2, lease_ms=SECOND_MS)
    clock.advance(seconds=2)
    await swept(engine)
    assert await standing(engine) == (CLOSED, 2)
    await leased(engine, 1, lease_ms=SECOND_MS)
    clock.advance(seconds=2)
    await swept(engine)
    assert (await info_of(engine)).breaker_open_until_ms == clock.now_ms + MINUTE_MS


async def test_failures_of_one_batch_all_count(engine: Engine) -> None:
    await a_policy(engine, **RULE)
    jobs = await leased(engine, 5)
    await engine.settle([Failed(job.key, 1, "boom") for job in jobs[:2]])
    assert await standing(engine) == (CLOSED, 2)
    await engine.settle([Failed(job.key, 1, "boom") for job in jobs[2:]])
    assert await standing(engine) == (OPEN, 5)


@pytest.mark.parametrize("order", ["completions first", "failures first"])
async def test_the_completions_of_a_batch_come_before_its_failures(engine: Engine, order: str) -> None:
    await a_policy(engine, **RULE)
    await failures(engine, 2)
    done, *bad = await leased(engine, 6)
    outcomes: list[Outcome] = [Complete(done.key, 1), *(Failed(job.key, 1, "boom") for job in bad[:2])]
    await engine.settle(outcomes if order == "completions first" else outcomes[::-1])
    assert await standing(engine) == (CLOSED, 2)


async def test_a_batch_of_many_failures_opens_it_whatever_was_completed(engine: Engine) -> None:
    await a_policy(engine, **RULE)
    done, *bad = await leased(engine, 4)
    await engine.settle([*(Failed(job.key, 1, "boom") for job in bad), Complete(done.key, 1)])
    assert await standing(engine) == (OPEN, 3)


async def test_a_batch_of_several_types_counts_for_each_of_them(engine: Engine) -> None:
    for type in "ab":
        await a_policy(engine, type=type, **RULE)
    jobs = [*await leased(engine, 3, type="a"), *await leased(engine, 2, type="b"), *await leased(engine, 4)]
    await engine.settle([Failed(job.key, 1, "boom") for job in jobs])
    assert [await standing(engine, type) for type in ("a", "b", TYPE)] == [(OPEN, 3), (CLOSED, 2), (CLOSED, 0)]


async def test_an_outcome_reported_again_counts_once(engine: Engine) -> None:
    await a_policy(engine, **RULE)
    [job] = await leased(engine)
    outcome = Failed(job.key, 1, "boom")
    await engine.settle([outcome, outcome])
    answers = (await engine.settle([outcome])).judged
    assert seen(answers) == [(Verdict.REPEATED, State.PENDING)]
    assert await standing(engine) == (CLOSED, 1)


async def test_a_refused_outcome_does_not_count(engine: Engine) -> None:
    await a_policy(engine, **RULE)
    [done] = await leased(engine)
    await settled(engine, Complete(done.key, 1))
    await engine.settle([Failed(done.key, 1, "late"), Failed(999_999, 1, "never was"), Failed(done.key, 9, "not yet")])
    assert await standing(engine) == (CLOSED, 0)


async def test_a_type_without_a_rule_never_opens(engine: Engine) -> None:
    await a_policy(engine, max_attempts=7)
    await failures(engine, 5)
    assert await standing(engine) == (CLOSED, 0)
    assert len(await leased(engine)) == 1


async def test_failures_count_from_the_rule_on(engine: Engine) -> None:
    await failures(engine, 2)
    await a_policy(engine, **RULE)
    await failures(engine, 2)
    assert await standing(engine) == (CLOSED, 2)


async def test_the_groups_of_a_type_have_one_breaker(engine: Engine) -> None:
    await a_policy(engine, **RULE)
    await engine.add_group(TYPE, "audit")
    await engine.create([a_new_job() for _ in range(3)])
    jobs = [*(await asked(engine, 2)).jobs, *(await asked(engine, 1, group="audit")).jobs]
    await fail_finally(engine, *jobs)
    assert await standing(engine) == (OPEN, 3)
    assert await leased_keys(engine) + await leased_keys(engine, group="audit") == []


# While it is open -----------------------------------------------------------------------------------


async def test_nothing_of_the_type_starts_while_it_is_open_and_the_waiting_keep_their_attempts(
    engine: Engine, clock: VirtualClock
) -> None:
    await an_open_breaker(engine)
    waiting = await a_pending_job(engine)
    for _ in range(6):
        assert await leased_keys(engine) == []
        clock.advance(ms=9_999)
    assert await the_job(engine, waiting.key) == waiting


async def test_other_types_are_not_touched(engine: Engine) -> None:
    await a_policy(engine, type="other", **RULE)
    await failures(engine, 2, type="other")
    await an_open_breaker(engine)
    assert await standing(engine, "other") == (CLOSED, 2)
    assert len(await leased(engine, 3, type="other")) == 3


async def test_one_call_gets_the_jobs_of_other_types(engine: Engine) -> None:
    await an_open_breaker(engine)
    await engine.create([a_new_job(), a_new_job(type="other")])
    answer = await engine.activate([Demand(TYPE, WORKER, 5), Demand("other", WORKER, 5)])
    assert answer.shares == (0, 1)


async def test_what_still_runs_and_ends_meanwhile_changes_nothing(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, **RULE)
    jobs = await leased(engine, 5)
    await fail_finally(engine, *jobs[:3])
    before = await info_of(engine)
    clock.advance(seconds=10)
    await settled(engine, Complete(jobs[3].key, 1))
    await fail_finally(engine, jobs[4])
    assert await info_of(engine) == before


async def test_the_failure_that_opens_it_gets_no_new_work_in_the_same_step(engine: Engine) -> None:
    await a_policy(engine, **RULE)
    jobs = await leased(engine, 3)
    await engine.create([a_new_job() for _ in range(3)])
    answer = await engine.settle([Failed(job.key, 1, "boom") for job in jobs], [Demand(TYPE, WORKER, 3)])
    assert answer.activation.jobs == []


async def test_asking_again_makes_sense_when_the_breaker_ends(engine: Engine, clock: VirtualClock) -> None:
    await an_open_breaker(engine)
    await a_pending_job(engine)
    until_ms = clock.now_ms + MINUTE_MS
    clock.advance(seconds=20)
    assert (await asked(engine)).next_due_ms == until_ms


async def test_a_waiting_job_explains_that_the_breaker_is_open(engine: Engine, clock: VirtualClock) -> None:
    await an_open_breaker(engine)
    job = await a_pending_job(engine)
    why = await engine.explain(job.key)
    assert why is not None
    assert (why.reason, why.until_ms) == (Reason.BREAKER, clock.now_ms + MINUTE_MS)


async def test_a_breaker_whose_rule_was_taken_away_stays_open(engine: Engine, clock: VirtualClock) -> None:
    await an_open_breaker(engine)
    await engine.set_policy(TYPE, None)
    await a_pending_job(engine)
    assert await leased_keys(engine) == []
    assert (await info_of(engine)).breaker_open_until_ms == clock.now_ms + MINUTE_MS


async def test_a_success_while_the_rule_was_taken_away_begins_the_count_anew(engine: Engine) -> None:
    await a_policy(engine, **RULE)
    await failures(engine, 2)
    await engine.set_policy(TYPE, None)
    [job] = await leased(engine)
    await settled(engine, Complete(job.key, 1))
    await a_policy(engine, **RULE)
    await failures(engine, 1)
    assert await standing(engine) == (BreakerState.CLOSED, 1)
