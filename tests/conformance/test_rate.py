"""A rate: so many jobs of a type start in each window, and the first start after a window begins the next."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from everwork.core.leasing import Demand
from everwork.core.outcome import Complete, Failed, Release
from everwork.core.queries import Explanation, Reason
from everwork.core.states import State
from tests.conformance.failing import another, where_it_is_decided
from tests.conformance.observe import count_of
from tests.conformance.test_lanes_turns import taken
from tests.conformance.test_registry import info_of
from tests.factories import TYPE, WORKER, a_new_job, a_pending_job, a_policy, asked, leased_keys, settled
from tests.stores import MINUTE_MS

if TYPE_CHECKING:
    from everwork.core.outcome import Outcome
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

pytestmark = where_it_is_decided

RATE: dict[str, Any] = {"rate_jobs": 3, "rate_seconds": 60.0}


async def a_rated_type(engine: Engine, waiting: int = 10, **said: Any) -> list[int]:
    """A type of which three jobs may start in a minute; the keys of those that wait."""
    await a_policy(engine, **RATE, **said)
    return [one.key for one in await engine.create([a_new_job() for _ in range(waiting)])]


async def explained(engine: Engine, key: int) -> Explanation:
    explanation = await engine.explain(key)
    assert explanation is not None
    return explanation


async def test_no_more_jobs_start_in_a_window_than_the_rate_says(engine: Engine, clock: VirtualClock) -> None:
    keys = await a_rated_type(engine)
    assert await leased_keys(engine, 10) == keys[:3]
    clock.advance(ms=59_999)
    assert await leased_keys(engine, 10) == []
    clock.advance(ms=1)
    assert await leased_keys(engine, 10) == keys[3:6]


async def test_a_window_begins_with_its_first_start(engine: Engine, clock: VirtualClock) -> None:
    await a_rated_type(engine)
    clock.advance(seconds=50)
    assert len(await leased_keys(engine, 1)) == 1
    clock.advance(seconds=50)
    assert len(await leased_keys(engine, 10)) == 2
    clock.advance(seconds=10)
    assert len(await leased_keys(engine, 10)) == 3


async def test_what_a_window_leaves_is_not_carried_over(engine: Engine, clock: VirtualClock) -> None:
    await a_rated_type(engine)
    await leased_keys(engine, 1)
    clock.advance(ms=10 * MINUTE_MS)
    assert len(await leased_keys(engine, 10)) == 3
    clock.advance(ms=59_999)
    assert await leased_keys(engine, 10) == []


async def test_several_calls_share_a_window(engine: Engine) -> None:
    await a_rated_type(engine)
    assert [len(await leased_keys(engine, 2)) for _ in range(3)] == [2, 1, 0]


async def test_the_demands_and_lanes_of_one_call_share_a_window(engine: Engine) -> None:
    await a_policy(engine, **RATE)
    await engine.create([a_new_job(tenant=tenant, limit_key=key) for tenant in "ab" for key in ("x", "y", None)])
    tenants: list[tuple[str, ...]] = [(), ("a",), ("b",), ("a", "b")]
    await engine.activate([Demand(TYPE, WORKER, 2, tenants=some) for some in tenants])
    await taken(engine, 10)
    assert await count_of(engine, State.PROCESSING) == 3


async def test_fifty_workers_at_once_on_several_engines_share_a_window(engine: Engine) -> None:
    await a_rated_type(engine, waiting=60)
    async with AsyncExitStack() as stack:
        fleet = [engine, *[await stack.enter_async_context(another(engine)) for _ in range(2)]]
        answers = await asyncio.gather(*(fleet[n % 3].activate([Demand(TYPE, f"w{n}", 2)]) for n in range(50)))
    assert sum(len(answer.jobs) for answer in answers) == 3


@pytest.mark.parametrize(
    "outcome", [Complete(0, 1), Release(0, 1), Failed(0, 1, "boom", backoff_ms=0)], ids=["complete", "release", "fail"]
)
async def test_a_job_that_has_started_counts_however_it_ends(
    engine: Engine, clock: VirtualClock, outcome: Outcome
) -> None:
    await a_rated_type(engine)
    for key in await leased_keys(engine, 3):
        await settled(engine, outcome._replace(key=key))
    assert await leased_keys(engine, 10) == []
    clock.advance(ms=MINUTE_MS)
    assert len(await leased_keys(engine, 10)) == 3


async def test_who_reports_gets_no_more_than_the_window_has_left(engine: Engine) -> None:
    await a_rated_type(engine)
    running = await leased_keys(engine, 2)
    answer = await engine.settle([Complete(key, 1) for key in running], [Demand(TYPE, WORKER, 10)])
    assert len(answer.activation.jobs) == 1


async def test_rate_and_limit_hold_together(engine: Engine, clock: VirtualClock) -> None:
    await a_rated_type(engine, max_running=2)
    first = await leased_keys(engine, 10)
    assert len(first) == 2
    await engine.settle([Complete(key, 1) for key in first])
    assert len(await leased_keys(engine, 10)) == 1
    clock.advance(ms=MINUTE_MS)
    assert len(await leased_keys(engine, 10)) == 1


async def test_other_types_have_windows_of_their_own(engine: Engine) -> None:
    await a_rated_type(engine)
    await a_policy(engine, type="other", rate_jobs=2)
    await engine.create([a_new_job(type="other") for _ in range(5)])
    answer = await engine.activate([Demand(TYPE, WORKER, 10), Demand("other", WORKER, 10)])
    assert answer.shares == (3, 2)


async def test_the_groups_of_a_type_have_windows_for_themselves(engine: Engine, clock: VirtualClock) -> None:
    await engine.add_group(TYPE, "audit")
    await a_rated_type(engine)
    answer = await engine.activate([Demand(TYPE, WORKER, 10), Demand(TYPE, WORKER, 10, group="audit")])
    assert answer.shares == (3, 3)
    clock.advance(ms=MINUTE_MS)
    assert len(await leased_keys(engine, 10, group="audit")) == 3


async def test_a_higher_rate_leaves_more_of_the_same_window(engine: Engine) -> None:
    await a_rated_type(engine)
    await leased_keys(engine, 10)
    await a_policy(engine, rate_jobs=5, rate_seconds=60.0)
    assert len(await leased_keys(engine, 10)) == 2


async def test_a_rate_that_is_taken_away_holds_no_longer(engine: Engine) -> None:
    await a_rated_type(engine)
    await leased_keys(engine, 10)
    await engine.set_policy(TYPE, None)
    assert len(await leased_keys(engine, 10)) == 7
    assert (await info_of(engine)).rate_full_until_ms is None


async def test_a_rate_that_is_set_again_inside_of_its_window_counts_what_had_started(
    engine: Engine, clock: VirtualClock
) -> None:
    await a_rated_type(engine)
    await leased_keys(engine, 2)
    clock.advance(seconds=20)
    await engine.set_policy(TYPE, None)
    await a_policy(engine, **RATE)
    assert [len(await leased_keys(engine, 10)) for _ in range(2)] == [1, 0]
    clock.advance(seconds=40)
    assert len(await leased_keys(engine, 10)) == 3


async def test_everybody_sees_until_when_a_window_is_full(engine: Engine, clock: VirtualClock) -> None:
    keys = await a_rated_type(engine)
    until_ms = clock.now_ms + MINUTE_MS
    await leased_keys(engine, 2)
    clock.advance(seconds=10)
    assert (await info_of(engine)).rate_full_until_ms is None
    assert (await explained(engine, keys[5])).reason is Reason.QUEUED
    await leased_keys(engine, 2)
    assert (await info_of(engine)).rate_full_until_ms == until_ms
    why = await explained(engine, keys[5])
    assert (why.reason, why.until_ms) == (Reason.LIMIT, until_ms)
    clock.advance(seconds=50)
    assert (await info_of(engine)).rate_full_until_ms is None


async def test_asking_again_makes_sense_when_a_full_window_ends(engine: Engine, clock: VirtualClock) -> None:
    await a_rated_type(engine)
    until_ms = clock.now_ms + MINUTE_MS
    await leased_keys(engine, 3)
    clock.advance(seconds=20)
    assert (await asked(engine)).next_due_ms == until_ms


async def test_who_gets_all_that_was_asked_for_is_told_when_the_window_it_filled_ends(
    engine: Engine, clock: VirtualClock
) -> None:
    await a_rated_type(engine)
    answer = await asked(engine, 3)
    assert (len(answer.jobs), answer.next_due_ms) == (3, clock.now_ms + MINUTE_MS)


async def test_a_full_window_without_work_is_no_reason_to_ask(engine: Engine) -> None:
    await a_rated_type(engine, waiting=3)
    await leased_keys(engine, 3)
    assert (await asked(engine)).next_due_ms is None
    await a_pending_job(engine)
    assert (await asked(engine)).next_due_ms is not None
