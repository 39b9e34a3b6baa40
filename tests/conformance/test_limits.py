"""Limits of a type: never more at once than its policy says, and always as many as there is room for."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from everwork.core.leasing import Demand
from everwork.core.outcome import Complete, Failed, Reject, Release, Retry, Throw
from everwork.core.queries import Reason
from tests.conformance.failing import another, where_it_is_decided
from tests.conformance.test_lanes_turns import taken
from tests.conformance.test_sweep import swept
from tests.factories import (
    LEASE_MS,
    TYPE,
    WORKER,
    a_dead_letter,
    a_new_job,
    a_pending_job,
    a_policy,
    asked,
    leased_keys,
    settled,
)
from tests.stores import HOUR_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everwork.core.outcome import Outcome
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

pytestmark = [where_it_is_decided, pytest.mark.every_way("redis-cluster")]

ENDS: list[Outcome] = [
    Complete(0, 1),
    Failed(0, 1, "boom", backoff_ms=HOUR_MS),
    Failed(0, 1, "boom", final=True),
    Retry(0, 1, "again", delay_ms=HOUR_MS),
    Reject(0, 1, "nonsense"),
    Throw(0, 1, "E42"),
    Release(0, 1),
]

LIMITS: dict[str, dict[str, Any]] = {"of the type": {"max_running": 3}, "of the key": {"max_running_per_key": 3}}


async def waiting(engine: Engine, jobs: int, keys: Sequence[str | None] = ("k",), **fields: Any) -> list[int]:
    """So many jobs of each limit key, key after key."""
    batch = [a_new_job(limit_key=key, **fields) for key in keys for _ in range(jobs)]
    return [one.key for one in await engine.create(batch)]


# How many -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", LIMITS)
async def test_one_demand_gets_no_more_than_may_run(engine: Engine, limit: str) -> None:
    await a_policy(engine, **LIMITS[limit])
    keys = await waiting(engine, 10)
    assert await leased_keys(engine, 10) == keys[:3]
    assert await leased_keys(engine, 10) == []


@pytest.mark.parametrize("limit", LIMITS)
async def test_several_demands_together_get_no_more_than_may_run(engine: Engine, limit: str) -> None:
    await a_policy(engine, **LIMITS[limit])
    await waiting(engine, 10)
    assert [len(await leased_keys(engine, 2)) for _ in range(3)] == [2, 1, 0]


@pytest.mark.parametrize("limit", LIMITS)
async def test_the_demands_of_one_call_share_the_room(engine: Engine, limit: str) -> None:
    await a_policy(engine, **LIMITS[limit])
    await waiting(engine, 10, tenant="a")
    tenants: list[tuple[str, ...]] = [(), ("a",), ("a", "b"), ()]
    answer = await engine.activate([Demand(TYPE, f"w{n}", 2, tenants=some) for n, some in enumerate(tenants)])
    assert (len(answer.jobs), sum(answer.shares)) == (3, 3)


@pytest.mark.parametrize("limit", LIMITS)
async def test_fifty_workers_at_once_on_several_engines_get_no_more_than_may_run(engine: Engine, limit: str) -> None:
    await a_policy(engine, **LIMITS[limit])
    await waiting(engine, 60)
    async with AsyncExitStack() as stack:
        fleet = [engine, *[await stack.enter_async_context(another(engine)) for _ in range(2)]]
        answers = await asyncio.gather(*(fleet[n % 3].activate([Demand(TYPE, f"w{n}", 2)]) for n in range(50)))
    assert sum(len(answer.jobs) for answer in answers) == 3


async def test_the_type_s_limit_holds_over_all_lanes(engine: Engine) -> None:
    await a_policy(engine, max_running=7)
    for tenant in "abc":
        await waiting(engine, 3, ("x", "y", None), tenant=tenant)
    assert len(await taken(engine, 20)) == 7
    assert await leased_keys(engine) == []


async def test_the_key_s_limit_holds_for_each_key_of_each_tenant(engine: Engine) -> None:
    await a_policy(engine, max_running_per_key=2)
    for tenant in "ab":
        await waiting(engine, 5, ("x", "y"), tenant=tenant)
    lanes = Counter((job.tenant, job.limit_key) for job in await taken(engine, 20))
    assert lanes == {(tenant, key): 2 for tenant in "ab" for key in "xy"}


async def test_jobs_without_a_limit_key_are_not_bound_by_the_key_s_limit(engine: Engine) -> None:
    await a_policy(engine, max_running_per_key=1)
    await waiting(engine, 6, (None, "x"))
    assert Counter(job.limit_key for job in await taken(engine, 12)) == {None: 6, "x": 1}


async def test_both_limits_hold_together(engine: Engine) -> None:
    await a_policy(engine, max_running=5, max_running_per_key=2)
    await waiting(engine, 4, ("x", "y", "z"))
    running = Counter(job.limit_key for job in await taken(engine, 12))
    assert sorted(running.values()) == [1, 2, 2]


@pytest.mark.parametrize("limit", LIMITS)
async def test_the_groups_of_a_type_have_their_limits_for_themselves(engine: Engine, limit: str) -> None:
    await a_policy(engine, **LIMITS[limit])
    await engine.add_group(TYPE, "audit")
    await waiting(engine, 5)
    answer = await engine.activate([Demand(TYPE, WORKER, 9), Demand(TYPE, WORKER, 9, group="audit")])
    assert answer.shares == (3, 3)


async def test_other_types_of_the_call_are_served_in_full(engine: Engine) -> None:
    await a_policy(engine, max_running=1)
    await engine.create([a_new_job(type=type) for type in (TYPE, "other") for _ in range(4)])
    answer = await engine.activate([Demand(TYPE, WORKER, 4), Demand("other", WORKER, 4)])
    assert answer.shares == (1, 4)


@pytest.mark.parametrize("limit", LIMITS)
async def test_jobs_that_became_due_are_bound_like_others(engine: Engine, clock: VirtualClock, limit: str) -> None:
    await a_policy(engine, **LIMITS[limit])
    await waiting(engine, 5, delay_ms=5_000)
    clock.advance(seconds=5)
    assert len(await taken(engine, 10)) == 3


async def test_a_full_lane_keeps_nobody_else_from_being_served(engine: Engine) -> None:
    await a_policy(engine, max_running_per_key=1)
    await waiting(engine, 300, ("full",), priority=9)
    await leased_keys(engine, 1)
    [free] = await waiting(engine, 1, ("free",))
    assert await leased_keys(engine, 1) == [free]


async def test_a_great_number_of_full_lanes_keeps_nobody_else_from_being_served(engine: Engine) -> None:
    await a_policy(engine, max_running_per_key=1)
    lanes = [f"lane-{n}" for n in range(150)]
    await waiting(engine, 2, lanes)
    assert len(await taken(engine, 300)) == 150
    [free] = await waiting(engine, 1, ("free",))
    assert await leased_keys(engine, 1) == [free]


# Room again -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", LIMITS)
async def test_every_end_of_an_attempt_gives_its_room_back(engine: Engine, limit: str) -> None:
    await a_policy(engine, **LIMITS[limit])
    await waiting(engine, 20)
    running = await leased_keys(engine, 9)
    for outcome in ENDS:
        await settled(engine, outcome._replace(key=running.pop(0)))
        started = await leased_keys(engine, 9)
        assert len(started) == 1, outcome
        running += started


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_cancel_gives_room_once(engine: Engine, limit: str) -> None:
    await a_policy(engine, **LIMITS[limit])
    keys = await waiting(engine, 9)
    await leased_keys(engine, 9)
    for _ in range(2):
        await engine.cancel([keys[0], keys[8]])
    assert len(await leased_keys(engine, 9)) == 1


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_lease_that_ran_out_gives_its_room_back_when_it_is_taken_away(
    engine: Engine, clock: VirtualClock, limit: str
) -> None:
    await a_policy(engine, **LIMITS[limit])
    await waiting(engine, 9)
    await leased_keys(engine, 9)
    clock.advance(ms=LEASE_MS + 1)
    assert await leased_keys(engine, 9) == []
    await swept(engine)
    assert len(await leased_keys(engine, 9)) == 3


@pytest.mark.parametrize("limit", LIMITS)
async def test_an_outcome_that_changes_nothing_gives_no_room(engine: Engine, limit: str) -> None:
    await a_policy(engine, **LIMITS[limit])
    keys = await waiting(engine, 9)
    await leased_keys(engine, 9)
    done = Complete(keys[0], 1)
    await engine.settle([done, done, Failed(keys[0], 1, "late"), Complete(keys[8], 1)])
    await engine.settle([done])
    assert len(await leased_keys(engine, 9)) == 1


@pytest.mark.parametrize("limit", LIMITS)
async def test_who_ends_attempts_gets_the_room_in_the_same_step(engine: Engine, limit: str) -> None:
    await a_policy(engine, **LIMITS[limit])
    await waiting(engine, 9)
    running = await leased_keys(engine, 9)
    answer = await engine.settle([Complete(key, 1) for key in running[:2]], [Demand(TYPE, WORKER, 9)])
    assert len(answer.activation.jobs) == 2


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_requeued_dead_letter_needs_room_like_others(engine: Engine, limit: str) -> None:
    dead = await a_dead_letter(engine, limit_key="k")
    await a_policy(engine, **LIMITS[limit])
    await waiting(engine, 3)
    await leased_keys(engine, 9)
    await engine.requeue([dead.key])
    assert await leased_keys(engine, 9) == []


# Changes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_limit_that_is_set_while_jobs_run_holds_from_then_on(engine: Engine, limit: str) -> None:
    await waiting(engine, 9)
    running = await leased_keys(engine, 5)
    await a_policy(engine, **LIMITS[limit])
    assert await leased_keys(engine, 9) == []
    for key in running[:3]:
        await settled(engine, Complete(key, 1))
    assert len(await leased_keys(engine, 9)) == 1


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_limit_that_is_taken_away_holds_no_longer(engine: Engine, limit: str) -> None:
    await a_policy(engine, **LIMITS[limit])
    await waiting(engine, 9)
    await leased_keys(engine, 9)
    await engine.set_policy(TYPE, None)
    assert len(await taken(engine, 9)) == 6


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_limit_may_be_set_again(engine: Engine, limit: str) -> None:
    await a_policy(engine, **LIMITS[limit])
    await waiting(engine, 9)
    first = await leased_keys(engine, 9)
    await engine.set_policy(TYPE, None)
    await taken(engine, 2)
    await settled(engine, Complete(first[0], 1))
    await a_policy(engine, **LIMITS[limit])
    assert await leased_keys(engine, 9) == []
    for key in first[1:]:
        await settled(engine, Complete(key, 1))
    assert len(await leased_keys(engine, 9)) == 1


@pytest.mark.parametrize("limit", LIMITS)
async def test_running_jobs_that_came_from_another_store_take_room(engine: Engine, limit: str) -> None:
    await a_policy(engine, **LIMITS[limit])
    await waiting(engine, 2)
    await leased_keys(engine, 1)
    [running, pending] = await engine.dump(0, 10)
    await engine.load([running._replace(job=replace(running.job, key=running.job.key + 1_000))])
    assert await leased_keys(engine, 9) == [pending.job.key]
    await waiting(engine, 1)
    assert await leased_keys(engine, 9) == []


# What is said of it -----------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_job_explains_that_a_limit_holds_it_back(engine: Engine, limit: str) -> None:
    await a_policy(engine, **LIMITS[limit])
    keys = await waiting(engine, 9)
    await leased_keys(engine, 9)
    why = await engine.explain(keys[5])
    assert why is not None
    assert (why.reason, "3" in why.text) == (Reason.LIMIT, True)
    await settled(engine, Complete(keys[0], 1))
    why = await engine.explain(keys[5])
    assert why is not None
    assert why.reason is Reason.QUEUED


async def test_a_job_of_a_free_lane_is_not_held_back(engine: Engine) -> None:
    await a_policy(engine, max_running_per_key=1)
    await waiting(engine, 2, ("full",))
    await leased_keys(engine)
    for key in ("free", None):
        job = await a_pending_job(engine, limit_key=key)
        why = await engine.explain(job.key)
        assert why is not None
        assert why.reason is Reason.QUEUED


@pytest.mark.parametrize("limit", LIMITS)
async def test_nobody_is_sent_to_ask_at_once_while_there_is_no_room(
    engine: Engine, clock: VirtualClock, limit: str
) -> None:
    await a_policy(engine, **LIMITS[limit])
    await waiting(engine, 9)
    await leased_keys(engine, 3)
    answer = await asked(engine, 3)
    assert answer.next_due_ms is None or answer.next_due_ms > clock.now_ms


# Turns ----------------------------------------------------------------------------------------------


async def test_limits_leave_each_tenant_its_turn(engine: Engine) -> None:
    await a_policy(engine, max_running=10, max_running_per_key=5)
    await waiting(engine, 1_000, (None,), tenant="a")
    await waiting(engine, 10, (None,), tenant="b")
    served: list[str] = []
    done: list[Complete] = []
    for _ in range(5):
        jobs = (await engine.settle(done, [Demand(TYPE, WORKER, 10)])).activation.jobs
        done = [Complete(job.key, job.attempt) for job in jobs]
        served += [job.tenant for job in jobs]
    assert (served.count("b"), len(served)) == (10, 50)
