"""Lanes take turns: tenants and limit keys are served alike, whatever their priorities (G9)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from everwork.core.outcome import Complete
from tests.factories import a_new_job, a_pending_job, asked, leased_keys, settled

if TYPE_CHECKING:
    from everwork.core.job import LeasedJob
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

LANE_FIELDS = ["tenant", "limit_key"]


async def lanes_full_of_work(engine: Engine, field: str, lanes: str, jobs: int = 20, **fields: Any) -> None:
    """The same number of jobs in each lane, created lane after lane."""
    for lane in lanes:
        await engine.create([a_new_job(**{field: lane}, **fields) for _ in range(jobs)])


async def taken(engine: Engine, limit: int, **demand: Any) -> list[LeasedJob]:
    """Up to `limit` jobs, asking again while the engine says that there may be more."""
    jobs: list[LeasedJob] = []
    for _ in range(limit):
        answer = await asked(engine, limit - len(jobs), **demand)
        jobs += answer.jobs
        if len(jobs) == limit or not answer.jobs:
            break
    return jobs


def shares(jobs: list[LeasedJob], field: str) -> Counter[str]:
    return Counter(getattr(job, field) for job in jobs)


@pytest.mark.parametrize("field", LANE_FIELDS)
async def test_one_demand_is_shared_alike_between_the_lanes(engine: Engine, field: str) -> None:
    await lanes_full_of_work(engine, field, "abcd")
    assert shares(await taken(engine, 8), field) == {"a": 2, "b": 2, "c": 2, "d": 2}


@pytest.mark.parametrize("field", LANE_FIELDS)
async def test_the_remainder_of_a_turn_moves_to_the_next_lanes(engine: Engine, field: str) -> None:
    await lanes_full_of_work(engine, field, "abcd")
    jobs = [job for _ in range(4) for job in (await asked(engine, 6)).jobs]
    assert shares(jobs, field) == {"a": 6, "b": 6, "c": 6, "d": 6}


@pytest.mark.parametrize("field", LANE_FIELDS)
async def test_single_demands_visit_the_lanes_in_turn(engine: Engine, field: str) -> None:
    await lanes_full_of_work(engine, field, "abc")
    order = [getattr((await asked(engine, 1)).jobs[0], field) for _ in range(9)]
    assert order[:3] == order[3:6] == order[6:]
    assert sorted(order[:3]) == ["a", "b", "c"]


@pytest.mark.parametrize("field", LANE_FIELDS)
async def test_lanes_that_one_demand_visits_keep_their_order(engine: Engine, field: str) -> None:
    for lane in "cab":
        await lanes_full_of_work(engine, field, lane)
        await asked(engine, 1)
    before = [getattr((await asked(engine, 1)).jobs[0], field) for _ in range(3)]
    assert shares((await asked(engine, 3)).jobs, field) == {"a": 1, "b": 1, "c": 1}
    assert [getattr((await asked(engine, 1)).jobs[0], field) for _ in range(3)] == before


@pytest.mark.parametrize("field", LANE_FIELDS)
async def test_turns_beat_priority_between_lanes(engine: Engine, field: str) -> None:
    await lanes_full_of_work(engine, field, "a", priority=511)
    await lanes_full_of_work(engine, field, "b", priority=-512)
    assert shares(await taken(engine, 10), field) == {"a": 5, "b": 5}


@pytest.mark.parametrize("field", LANE_FIELDS)
async def test_turns_beat_age_between_lanes(engine: Engine, clock: VirtualClock, field: str) -> None:
    await lanes_full_of_work(engine, field, "a", jobs=200)
    clock.advance(seconds=60)
    await lanes_full_of_work(engine, field, "b", jobs=3)
    assert shares(await taken(engine, 6), field) == {"a": 3, "b": 3}


@pytest.mark.parametrize("field", LANE_FIELDS)
async def test_inside_each_lane_the_order_holds(engine: Engine, field: str) -> None:
    batch = [a_new_job(**{field: lane}, priority=priority) for priority in (0, 2, 1, 2) for lane in "ab"]
    await engine.create(batch)
    jobs = await taken(engine, 8)
    for lane in "ab":
        mine = [job for job in jobs if getattr(job, field) == lane]
        assert [job.priority for job in mine] == [2, 2, 1, 0]
        assert mine[0].key < mine[1].key


@pytest.mark.parametrize("field", LANE_FIELDS)
async def test_the_order_holds_where_each_turn_takes_one_job_of_each_lane(
    engine: Engine, clock: VirtualClock, field: str
) -> None:
    batch = [
        a_new_job(**{field: lane}, priority=priority, delay_ms=delay_ms)
        for priority, delay_ms in ((0, 1_000), (0, 1_000), (1, 2_000), (1, 1_000))
        for lane in "ab"
    ]
    keys = [one.key for one in await engine.create(batch)]
    clock.advance(seconds=5)
    turns = [{job.key for job in (await asked(engine, 2)).jobs} for _ in range(5)]
    assert turns == [set(keys[6:]), set(keys[4:6]), set(keys[:2]), set(keys[2:4]), set()]


async def test_a_tenant_s_limit_keys_are_lanes_of_their_own(engine: Engine) -> None:
    batch = [a_new_job(tenant=tenant, limit_key=key) for tenant in "xy" for key in ("1", "2", None) for _ in range(4)]
    await engine.create(batch)
    served = Counter((job.tenant, job.limit_key) for job in await taken(engine, 12))
    assert served == {(tenant, key): 2 for tenant in "xy" for key in ("1", "2", None)}


@pytest.mark.parametrize("field", LANE_FIELDS)
async def test_what_an_empty_lane_leaves_goes_to_the_others(engine: Engine, field: str) -> None:
    await lanes_full_of_work(engine, field, "a", jobs=1)
    await lanes_full_of_work(engine, field, "b", jobs=9)
    assert shares(await taken(engine, 8), field) == {"a": 1, "b": 7}


@pytest.mark.parametrize("field", LANE_FIELDS)
async def test_a_short_answer_says_that_asking_again_at_once_may_find_more(
    engine: Engine, clock: VirtualClock, field: str
) -> None:
    await lanes_full_of_work(engine, field, "a", jobs=1)
    await lanes_full_of_work(engine, field, "b", jobs=9)
    answer = await asked(engine, 8)
    assert len(answer.jobs) == 8 or answer.next_due_ms == clock.now_ms


@pytest.mark.parametrize("field", LANE_FIELDS)
async def test_a_lane_that_comes_back_does_not_catch_up(engine: Engine, field: str) -> None:
    await lanes_full_of_work(engine, field, "a", jobs=1)
    await lanes_full_of_work(engine, field, "b", jobs=40)
    await taken(engine, 20)
    await lanes_full_of_work(engine, field, "a", jobs=40)
    assert shares(await taken(engine, 10), field) == {"a": 5, "b": 5}


@pytest.mark.parametrize("field", LANE_FIELDS)
async def test_many_lanes_are_all_served_before_any_is_served_twice(engine: Engine, field: str) -> None:
    lanes = [f"lane-{n:03}" for n in range(60)]
    await engine.create([a_new_job(**{field: lane}) for lane in lanes for _ in range(2)])
    jobs = [job for _ in range(6) for job in await taken(engine, 10)]
    assert shares(jobs, field) == dict.fromkeys(lanes, 1)


@pytest.mark.parametrize("field", LANE_FIELDS)
async def test_jobs_that_became_due_are_shared_alike_too(engine: Engine, clock: VirtualClock, field: str) -> None:
    await lanes_full_of_work(engine, field, "abcd", delay_ms=5_000)
    clock.advance(seconds=5)
    assert shares(await taken(engine, 8), field) == {"a": 2, "b": 2, "c": 2, "d": 2}


async def test_of_the_tenants_asked_for_each_gets_the_same(engine: Engine) -> None:
    await lanes_full_of_work(engine, "tenant", "abcd")
    assert shares(await taken(engine, 6, tenants=("b", "d")), "tenant") == {"b": 3, "d": 3}


async def test_the_turns_of_one_type_do_not_touch_another(engine: Engine) -> None:
    await lanes_full_of_work(engine, "tenant", "ab", type="x")
    await lanes_full_of_work(engine, "tenant", "ab", type="y")
    first = (await asked(engine, 1, type="x")).jobs[0].tenant
    assert (await asked(engine, 1, type="y")).jobs[0].tenant == first


@pytest.mark.parametrize("field", LANE_FIELDS)
async def test_all_work_of_all_lanes_is_done_in_the_end(engine: Engine, field: str) -> None:
    await lanes_full_of_work(engine, field, "abc", jobs=7)
    done = 0
    for _ in range(30):
        for job in (await asked(engine, 4)).jobs:
            await settled(engine, Complete(job.key, job.attempt))
            done += 1
    assert done == 21
    assert await leased_keys(engine) == []


async def test_a_lane_of_the_default_tenant_takes_turns_with_named_tenants(engine: Engine) -> None:
    for _ in range(4):
        await a_pending_job(engine)
    await lanes_full_of_work(engine, "tenant", "a", jobs=4)
    assert sorted(shares(await taken(engine, 4), "tenant").values()) == [2, 2]
