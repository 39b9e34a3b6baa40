"""A half-open breaker: one probe over the whole fleet tries whether things work again."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from everwork.core.breaker import BreakerState
from everwork.core.job import LeasedJob
from everwork.core.leasing import Demand
from everwork.core.outcome import Complete, Failed, Reject, Release, Retry, Throw
from everwork.core.queries import Reason
from tests.conformance.failing import (
    RULE,
    a_half_open_breaker,
    a_probe,
    an_open_breaker,
    another,
    fail_finally,
    failures,
    leased,
    standing,
    where_it_is_decided,
)
from tests.conformance.test_registry import info_of
from tests.conformance.test_sweep import swept
from tests.factories import TYPE, WORKER, a_new_job, a_pending_job, a_policy, asked, leased_keys, settled
from tests.stores import HOUR_MS, MINUTE_MS, SECOND_MS

if TYPE_CHECKING:
    from everwork.core.outcome import Outcome
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

pytestmark = where_it_is_decided

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN

NO_ANSWER: list[Outcome] = [
    Release(0, 1),
    Reject(0, 1, "nonsense"),
    Throw(0, 1, "E42"),
    Retry(0, 1, "again", delay_ms=HOUR_MS),
    Failed(0, 1, "told", backoff_ms=HOUR_MS, is_counted=False),
]
"""Ends of a probe that do not tell whether things work."""


# One probe ------------------------------------------------------------------------------------------


async def test_after_its_time_one_job_may_start_and_no_other_while_it_runs(engine: Engine, clock: VirtualClock) -> None:
    keys = await a_half_open_breaker(engine, clock)
    assert await leased_keys(engine, 10) == keys[:1]
    clock.advance(seconds=20)
    assert await leased_keys(engine, 10) == []


async def test_the_breaker_holds_to_the_last_millisecond(engine: Engine, clock: VirtualClock) -> None:
    await an_open_breaker(engine)
    job = await a_pending_job(engine)
    clock.advance(ms=59_999)
    assert await leased_keys(engine) == []
    clock.advance(ms=1)
    assert await leased_keys(engine) == [job.key]


async def test_of_fifty_demands_in_one_call_one_gets_the_probe(engine: Engine, clock: VirtualClock) -> None:
    await engine.add_group(TYPE, "audit")
    await a_half_open_breaker(engine, clock)
    await engine.create([a_new_job(tenant=tenant) for tenant in "ab"])
    groups = [Demand(TYPE, f"w{n}", 3, group=group) for n, group in enumerate(["", "audit"] * 10)]
    tenants = [Demand(TYPE, f"w{n}", 3, tenants=tenants) for n, tenants in enumerate([("a",), ("b",), ()] * 10)]
    answer = await engine.activate([*groups, *tenants])
    assert (len(answer.jobs), sum(answer.shares)) == (1, 1)


async def test_of_fifty_workers_at_once_on_several_engines_one_gets_the_probe(
    engine: Engine, clock: VirtualClock
) -> None:
    await a_half_open_breaker(engine, clock)
    async with AsyncExitStack() as stack:
        fleet = [engine, *[await stack.enter_async_context(another(engine)) for _ in range(4)]]
        answers = await asyncio.gather(*(fleet[n % 5].activate([Demand(TYPE, f"w{n}", 5)]) for n in range(50)))
    probes = [job for answer in answers for job in answer.jobs]
    assert [job.key for job in probes] == [(await info_of(engine)).breaker_probe_key]


async def test_a_probe_among_fifty_calls_that_also_report_is_one(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, **RULE)
    running = await leased(engine, 23)
    await fail_finally(engine, *running[:3])
    await engine.create([a_new_job() for _ in range(30)])
    clock.advance(seconds=60)
    done = [Complete(job.key, 1) for job in running[3:]]
    answers = await asyncio.gather(*(engine.settle([one], [Demand(TYPE, WORKER, 5)]) for one in done))
    assert sum(len(answer.activation.jobs) for answer in answers) == 1


async def test_asking_without_work_takes_nobody_s_place(engine: Engine, clock: VirtualClock) -> None:
    await a_half_open_breaker(engine, clock, waiting=0)
    assert await leased_keys(engine) == []
    assert (await info_of(engine)).breaker_probe_key is None
    job = await a_pending_job(engine)
    assert await leased_keys(engine) == [job.key]


async def test_everybody_sees_the_probe(engine: Engine, clock: VirtualClock) -> None:
    keys = await a_half_open_breaker(engine, clock)
    probe = await a_probe(engine)
    info = await info_of(engine)
    assert (info.breaker, info.breaker_probe_key, info.breaker_open_until_ms) == (HALF_OPEN, probe.key, None)
    why = await engine.explain(keys[1])
    assert why is not None
    assert (why.reason, str(probe.key) in why.text) == (Reason.BREAKER, True)


async def test_a_half_open_breaker_without_a_probe_is_no_reason_to_wait(engine: Engine, clock: VirtualClock) -> None:
    keys = await a_half_open_breaker(engine, clock)
    why = await engine.explain(keys[0])
    assert why is not None
    assert why.reason is not Reason.BREAKER


async def test_nobody_is_sent_to_ask_at_once_while_the_probe_runs(engine: Engine, clock: VirtualClock) -> None:
    await a_half_open_breaker(engine, clock)
    for answer in [await asked(engine, 1), await asked(engine, 1)]:
        assert answer.next_due_ms is None or answer.next_due_ms > clock.now_ms


async def test_other_types_start_as_ever_beside_a_probe(engine: Engine, clock: VirtualClock) -> None:
    await a_half_open_breaker(engine, clock)
    await engine.create([a_new_job(type="other") for _ in range(3)])
    answer = await engine.activate([Demand(TYPE, WORKER, 5), Demand("other", WORKER, 5)])
    assert answer.shares == (1, 3)


# How it ends ----------------------------------------------------------------------------------------


async def test_the_probe_s_success_closes_the_breaker(engine: Engine, clock: VirtualClock) -> None:
    keys = await a_half_open_breaker(engine, clock)
    probe = await a_probe(engine)
    await settled(engine, Complete(probe.key, probe.attempt))
    assert await standing(engine) == (CLOSED, 0)
    assert await leased_keys(engine) == keys[1:]


async def test_the_probe_s_failure_opens_the_breaker_for_another_minute(engine: Engine, clock: VirtualClock) -> None:
    await a_half_open_breaker(engine, clock)
    probe = await a_probe(engine)
    clock.advance(seconds=3)
    await settled(engine, Failed(probe.key, probe.attempt, "boom"))
    assert (await info_of(engine)).breaker_open_until_ms == clock.now_ms + MINUTE_MS
    clock.advance(ms=59_999)
    assert await leased_keys(engine) == []
    clock.advance(ms=1)
    await a_probe(engine)


async def test_after_a_probe_s_success_three_failures_open_it_again(engine: Engine, clock: VirtualClock) -> None:
    await a_half_open_breaker(engine, clock, waiting=1)
    probe = await a_probe(engine)
    await settled(engine, Complete(probe.key, probe.attempt))
    await failures(engine, 2)
    assert await standing(engine) == (CLOSED, 2)
    await failures(engine, 1)
    assert await standing(engine) == (OPEN, 3)


async def test_a_probe_that_ends_without_an_answer_frees_its_place(engine: Engine, clock: VirtualClock) -> None:
    await a_half_open_breaker(engine, clock, waiting=9)
    for outcome in NO_ANSWER:
        probe = await a_probe(engine)
        assert await leased_keys(engine) == []
        await settled(engine, outcome._replace(key=probe.key, attempt=probe.attempt))
        info = await info_of(engine)
        assert (info.breaker, info.breaker_probe_key) == (HALF_OPEN, None), outcome


async def test_a_cancelled_probe_frees_its_place(engine: Engine, clock: VirtualClock) -> None:
    keys = await a_half_open_breaker(engine, clock)
    probe = await a_probe(engine)
    await engine.cancel([probe.key])
    assert (await a_probe(engine)).key == keys[1]


async def test_a_lapsed_probe_opens_the_breaker_again(engine: Engine, clock: VirtualClock) -> None:
    await a_half_open_breaker(engine, clock)
    await a_probe(engine, lease_ms=SECOND_MS)
    clock.advance(seconds=2)
    assert await leased_keys(engine) == []
    await swept(engine)
    assert (await info_of(engine)).breaker_open_until_ms == clock.now_ms + MINUTE_MS


@pytest.mark.parametrize("end", ["complete", "fail"])
async def test_what_is_not_the_probe_neither_closes_nor_opens_it(engine: Engine, clock: VirtualClock, end: str) -> None:
    old, probe = await an_old_attempt_beside_a_probe(engine, clock)
    await settled(engine, Complete(old.key, 1) if end == "complete" else Failed(old.key, 1, "boom", final=True))
    assert await standing(engine) == (HALF_OPEN, 3)
    assert (await info_of(engine)).breaker_probe_key == probe.key


async def test_the_probe_s_later_attempts_are_as_any_other_s(engine: Engine, clock: VirtualClock) -> None:
    await a_half_open_breaker(engine, clock, waiting=1)
    probe = await a_probe(engine)
    await settled(engine, Release(probe.key, 1))
    again = await a_probe(engine)
    assert (again.key, again.attempt) == (probe.key, 2)
    await engine.settle([Complete(probe.key, 1)])
    assert await standing(engine) == (HALF_OPEN, 3)
    await settled(engine, Complete(probe.key, 2))
    assert await standing(engine) == (CLOSED, 0)


@pytest.mark.parametrize(
    ("outcome", "state"), [(Complete(0, 0), CLOSED), (Failed(0, 0, "boom"), OPEN)], ids=["complete", "fail"]
)
async def test_the_probe_decides_also_when_its_attempt_is_not_named(
    engine: Engine, clock: VirtualClock, outcome: Outcome, state: BreakerState
) -> None:
    await a_half_open_breaker(engine, clock)
    probe = await a_probe(engine)
    await settled(engine, outcome._replace(key=probe.key))
    assert (await info_of(engine)).breaker is state


async def an_old_attempt_beside_a_probe(engine: Engine, clock: VirtualClock) -> tuple[LeasedJob, LeasedJob]:
    """An attempt from before the breaker opened, still leased, and the probe."""
    await a_policy(engine, **RULE)
    old, *bad = await leased(engine, 4)
    await fail_finally(engine, *bad)
    await a_pending_job(engine)
    clock.advance(seconds=60)
    probe = await a_probe(engine)
    return old, probe


async def test_a_batch_closes_it_by_its_probe_before_other_failures_count(engine: Engine, clock: VirtualClock) -> None:
    old, probe = await an_old_attempt_beside_a_probe(engine, clock)
    await engine.settle([Failed(old.key, 1, "boom"), Complete(probe.key, 1)])
    assert await standing(engine) == (CLOSED, 1)


async def test_a_batch_with_the_probe_s_failure_opens_it(engine: Engine, clock: VirtualClock) -> None:
    old, probe = await an_old_attempt_beside_a_probe(engine, clock)
    await engine.settle([Complete(old.key, 1), Failed(probe.key, 1, "boom")])
    assert (await info_of(engine)).breaker_open_until_ms == clock.now_ms + MINUTE_MS


@pytest.mark.parametrize(("end", "jobs"), [("complete", 4), ("release", 1), ("fail", 0)])
async def test_who_reports_the_probe_gets_what_the_breaker_then_allows(
    engine: Engine, clock: VirtualClock, end: str, jobs: int
) -> None:
    await a_half_open_breaker(engine, clock)
    probe = await a_probe(engine)
    ends: dict[str, Outcome] = {
        "complete": Complete(probe.key, 1),
        "release": Release(probe.key, 1),
        "fail": Failed(probe.key, 1, "boom"),
    }
    answer = await engine.settle([ends[end]], [Demand(TYPE, WORKER, 10)])
    assert len(answer.activation.jobs) == jobs


async def test_a_breaker_whose_rule_was_taken_away_closes_with_its_probe(engine: Engine, clock: VirtualClock) -> None:
    await a_half_open_breaker(engine, clock)
    await engine.set_policy(TYPE, None)
    probe = await a_probe(engine)
    assert await leased_keys(engine) == []
    await settled(engine, Complete(probe.key, 1))
    assert await standing(engine) == (CLOSED, 0)


async def test_a_paused_type_sends_no_probe(engine: Engine, clock: VirtualClock) -> None:
    await a_half_open_breaker(engine, clock)
    await engine.pause(TYPE, True)
    assert await leased_keys(engine) == []
    await engine.pause(TYPE, False)
    await a_probe(engine)
