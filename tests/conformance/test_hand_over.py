"""A create that meets a parked demand leases its job to the waiting worker, as if the worker had activated it."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest

from everwork.core.job import NewJob
from everwork.core.leasing import Demand, Stamp
from everwork.core.limits import HANDED_BYTES_MAX, PARK_MS
from everwork.core.outcome import Complete, Failed
from everwork.core.queries import JobFilter
from everwork.core.states import State
from tests.app.waiting import until
from tests.conformance.observe import counted, every_job, kinds
from tests.factories import (
    LEASE_MS,
    TYPE,
    WORKER,
    a_new_job,
    a_pending_job,
    a_policy,
    a_processing_job,
    a_scheduled_job,
    asked,
    leased_keys,
    settled,
    the_job,
    the_state,
)
from tests.stores import START_MS, VirtualClock, open_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from everwork.core.job import LeasedJob, StoredJob
    from everwork.engines.contract import Engine

pytestmark = pytest.mark.every_way("sqlite-own-loop", "redis-cluster")

DEADLINE_S = 30.0
KEPT: list[Taker] = []
"""Keeps the workers of all tests alive: an engine does not keep parked workers alive."""


class Taker:
    """A waiting worker."""

    def __init__(self) -> None:
        self.jobs: list[LeasedJob] = []
        self.losses = 0
        self._came = asyncio.Event()

    def handed(self, job: LeasedJob) -> None:
        """Keep the job."""
        self.jobs.append(job)
        self._came.set()

    def lost(self) -> None:
        """Count the call."""
        self.losses += 1
        self._came.set()

    async def came(self) -> list[LeasedJob]:
        """The jobs, once there is one."""
        await asyncio.wait_for(self._came.wait(), DEADLINE_S)
        return self.jobs


async def parked(engine: Engine, *, worker: str = WORKER, taker: Taker | None = None, **demand: Any) -> Taker:
    """A worker that got no jobs and has parked its demand."""
    taker = taker or Taker()
    KEPT.append(taker)
    answer = await asked(engine, 1, worker=worker, receiver=taker, **demand)
    assert not answer.jobs
    return taker


async def another_store(engine_name: str, tmp_path: Path, clock: VirtualClock) -> Engine:
    """A store of its own."""
    folder = tmp_path / "other"
    folder.mkdir()
    return await open_store(engine_name, folder, clock, reuse=True)


# Handed over ----------------------------------------------------------------------------------------


FIELDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "full": {
        "variables": '{"to":"ada@example.com","n":[1,2.5,null]}',
        "tenant": "acme",
        "priority": 7,
        "max_attempts": 3,
        "limit_key": "ada",
        "correlation_id": "order-1",
        "timeout_ms": 5_000,
        "headers": '{"trace":"00-1"}',
        "extra": '{"a":1}',
    },
    "no object": {"variables": '"ünï\\ncode"'},
    "negative": {"priority": -512, "tenant": "b"},
}


async def everything(engine: Engine) -> object:
    """All that can be seen of a store."""
    jobs = await every_job(engine)
    return (
        jobs,
        await counted(engine),
        await engine.types(),
        [await engine.history(job.key) for job in jobs],
        await engine.stats(24),
        await engine.measures(24),
    )


@pytest.mark.parametrize("fields", FIELDS.values(), ids=list(FIELDS))
async def test_the_store_is_as_if_the_worker_had_activated_the_job(
    fields: dict[str, Any], engine: Engine, engine_name: str, tmp_path: Path, clock: VirtualClock
) -> None:
    taker = await parked(engine)
    [created] = await engine.create([a_new_job(**fields)])
    [job] = await taker.came()
    other = await another_store(engine_name, tmp_path, clock)
    try:
        await asked(other)
        await other.create([a_new_job(**fields)])
        [expected] = (await asked(other, 1)).jobs
        assert job == expected
        assert job.key == created.key
        assert await everything(engine) == await everything(other)
        await settled(engine, Complete(job.key, job.attempt, '"done"'))
        await settled(other, Complete(job.key, job.attempt, '"done"'))
        assert await everything(engine) == await everything(other)
    finally:
        await other.close()


async def test_a_policy_of_the_type_says_how_many_attempts_a_handed_job_has(engine: Engine) -> None:
    await a_policy(engine, max_attempts=2)
    taker = await parked(engine)
    await a_pending_job(engine)
    [job] = await taker.came()
    assert (job.attempt, job.attempts, job.max_attempts) == (1, 1, 2)


async def test_a_demand_is_parked_again_by_the_step_that_settles_its_job(engine: Engine) -> None:
    taker = await parked(engine)
    for n in range(1, 4):
        await a_pending_job(engine)
        while len(taker.jobs) < n:
            taker._came.clear()
            await taker.came()
        job = taker.jobs[-1]
        answer = await engine.settle([Complete(job.key, 1)], [Demand(TYPE, WORKER, 1, LEASE_MS, receiver=taker)])
        assert answer.judged[0].ok
        assert not answer.activation.jobs


async def test_a_demand_is_used_once(engine: Engine) -> None:
    taker = await parked(engine)
    await a_pending_job(engine)
    await taker.came()
    second = await a_pending_job(engine)
    assert second.state is State.PENDING
    assert await leased_keys(engine) == [second.key]
    assert len(taker.jobs) == 1


async def test_a_demand_that_got_some_jobs_is_parked_for_more(engine: Engine) -> None:
    first = await a_pending_job(engine)
    taker = Taker()
    answer = await asked(engine, 2, receiver=taker)
    assert [job.key for job in answer.jobs] == [first.key]
    second = await a_pending_job(engine)
    assert [job.key for job in await taker.came()] == [second.key]


async def test_the_last_worker_to_park_gets_the_job(engine: Engine) -> None:
    first = await parked(engine, worker="first")
    second = await parked(engine, worker="second")
    job = await a_pending_job(engine)
    assert [one.key for one in await second.came()] == [job.key]
    assert (await the_job(engine, job.key)).worker == "second"
    assert not first.jobs


async def test_another_engine_hands_a_job_over(
    engine: Engine, engine_name: str, tmp_path: Path, clock: VirtualClock
) -> None:
    other = await open_store(engine_name, tmp_path, clock)
    try:
        taker = await parked(engine)
        job = await a_pending_job(other)
        assert [one.key for one in await taker.came()] == [job.key]
    finally:
        await other.close()


async def test_types_are_parked_separately(engine: Engine) -> None:
    taker = Taker()
    await engine.activate([Demand(type, WORKER, 1, LEASE_MS, receiver=taker) for type in "abc"])
    for type in "abc":
        job = await a_pending_job(engine, type=type)
        assert job.state is State.PROCESSING
    while len(taker.jobs) < 3:
        taker._came.clear()
        await taker.came()
    assert [job.type for job in taker.jobs] == ["a", "b", "c"]


async def test_the_lane_of_a_handed_job_has_had_its_turn(engine: Engine) -> None:
    taker = await parked(engine)
    await a_pending_job(engine, tenant="a")
    [job] = await taker.came()
    await settled(engine, Complete(job.key, 1))
    for tenant in "ab":
        await engine.create([a_new_job(tenant=tenant) for _ in range(2)])
    assert [one.tenant for one in (await asked(engine, 1)).jobs] == ["b"]


async def test_a_job_for_later_is_not_in_the_way(engine: Engine) -> None:
    await a_scheduled_job(engine)
    taker = await parked(engine)
    job = await a_pending_job(engine)
    assert [one.key for one in await taker.came()] == [job.key]


async def test_the_lease_of_a_handed_job_expires_like_any_other(engine: Engine, clock: VirtualClock) -> None:
    taker = await parked(engine, lease_ms=1_000)
    await a_pending_job(engine, max_attempts=2)
    [job] = await taker.came()
    assert job.lease_until_ms == START_MS + 1_000
    clock.advance(ms=1_001)
    await engine.sweep("me")
    assert await kinds(engine, job.key) == [(1, "lapse")]
    assert (await the_job(engine, job.key)).attempts == 1


async def test_a_handed_job_fails_and_is_retried_by_its_rules(engine: Engine) -> None:
    taker = await parked(engine)
    await a_pending_job(engine)
    [job] = await taker.came()
    await settled(engine, Failed(job.key, 1, "boom", backoff_ms=0))
    [again] = (await asked(engine, 1)).jobs
    assert (again.key, again.attempt, again.attempts) == (job.key, 2, 2)


# Not handed over --------------------------------------------------------------------------------------


async def a_paused_type(engine: Engine) -> None:
    await engine.pause(TYPE, True)


async def an_open_breaker(engine: Engine) -> None:
    await engine.open_breaker(TYPE, 60_000)


async def a_group(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")


async def a_due_job(engine: Engine) -> None:
    await a_pending_job(engine, priority=1)


async def two_at_once(engine: Engine) -> None:
    """Jobs that are ahead of the tested one in the queue."""
    await engine.create([a_new_job(), a_new_job()])


async def a_withdrawal(engine: Engine) -> None:
    await engine.unpark(WORKER, [TYPE])


WHAT_COMES_BETWEEN: dict[str, Callable[[Engine], Awaitable[None]]] = {
    "a pause": a_paused_type,
    "an open breaker": an_open_breaker,
    "a breaker": lambda engine: a_policy(engine, breaker_failures=3),
    "max_running": lambda engine: a_policy(engine, max_running=5),
    "max_running_per_key": lambda engine: a_policy(engine, max_running_per_key=5),
    "a rate": lambda engine: a_policy(engine, rate_jobs=5, rate_seconds=60),
    "a group": a_group,
    "jobs before it": two_at_once,
    "a withdrawal": a_withdrawal,
}


@pytest.mark.parametrize("come_between", WHAT_COMES_BETWEEN.values(), ids=list(WHAT_COMES_BETWEEN))
async def test_a_job_is_not_handed_over_past(come_between: Callable[[Engine], Awaitable[None]], engine: Engine) -> None:
    taker = await parked(engine)
    await come_between(engine)
    job = await a_pending_job(engine)
    assert job.state is State.PENDING
    assert not taker.jobs


@pytest.mark.parametrize("come_before", list(WHAT_COMES_BETWEEN.values())[:-2], ids=list(WHAT_COMES_BETWEEN)[:-2])
async def test_nothing_is_parked_behind(come_before: Callable[[Engine], Awaitable[None]], engine: Engine) -> None:
    await come_before(engine)
    await parked(engine)
    assert (await a_pending_job(engine)).state is State.PENDING


@pytest.mark.parametrize(
    "fields",
    [
        {"delay_ms": 1},
        {"run_at_ms": START_MS + 1},
        {"expires_at_ms": START_MS + 1},
        {"dedupe_key": "once"},
        {"retry": '{"base":1}'},
        {"variables": '{"text":"%s"}' % ("x" * HANDED_BYTES_MAX)},
        {"variables": '{"text":"%s"}' % ("語" * (HANDED_BYTES_MAX // 3))},
        {"variables": '{"text":"%s"}' % ("x" * (HANDED_BYTES_MAX - 100)), "correlation_id": "x" * 100},
    ],
    ids=[
        "a delay",
        "a time",
        "an expiry",
        "a dedupe key",
        "a retry policy",
        "too long",
        "too long in bytes",
        "too long with its correlation id",
    ],
)
async def test_such_a_job_is_not_handed_over(fields: dict[str, Any], engine: Engine) -> None:
    await parked(engine)
    assert (await a_pending_job(engine, **fields)).state is State.PENDING


async def test_a_job_that_is_due_by_now_goes_first(engine: Engine, clock: VirtualClock) -> None:
    first = await a_scheduled_job(engine, delay_ms=500)
    await parked(engine)
    clock.advance(ms=500)
    second = await a_pending_job(engine)
    assert second.state is State.PENDING
    assert await leased_keys(engine) == [first.key, second.key]


async def test_a_worker_for_some_tenants_is_not_handed_anything(engine: Engine) -> None:
    await parked(engine, tenants=("acme",))
    assert (await a_pending_job(engine, tenant="acme")).state is State.PENDING


async def test_a_worker_of_a_group_is_not_handed_anything(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")
    await parked(engine, group="audit")
    await engine.create([a_new_job()])
    assert {job.state for job in await every_job(engine)} == {State.PENDING}


async def test_a_demand_without_a_receiver_is_not_parked(engine: Engine) -> None:
    await asked(engine, 1)
    assert (await a_pending_job(engine)).state is State.PENDING


async def test_a_parked_demand_does_not_outlast_its_worker_by_long(engine: Engine, clock: VirtualClock) -> None:
    await parked(engine)
    clock.advance(ms=PARK_MS)
    assert (await a_pending_job(engine)).state is State.PROCESSING
    await parked(engine, type="other")
    clock.advance(ms=PARK_MS + 1)
    assert (await a_pending_job(engine, type="other")).state is State.PENDING


async def test_a_demand_from_the_future_is_not_met(engine: Engine, clock: VirtualClock) -> None:
    """The clock was set back: it is unknown when the demand was parked."""
    await parked(engine)
    clock.advance(ms=-1)
    assert (await a_pending_job(engine)).state is State.PENDING


async def test_a_demand_that_got_all_its_jobs_is_withdrawn(engine: Engine) -> None:
    taker = await parked(engine)
    await engine.create([a_new_job(), a_new_job()])
    assert len((await asked(engine, 2, receiver=taker)).jobs) == 2
    assert (await a_pending_job(engine)).state is State.PENDING


@pytest.mark.parametrize("limit", [1, 2])
async def test_a_demand_that_may_not_be_parked_withdraws_the_earlier_one(engine: Engine, limit: int) -> None:
    taker = await parked(engine)
    for _ in range(2):
        await asked(engine, limit, receiver=taker, may_park=False)
        assert (await a_pending_job(engine)).state is State.PENDING
        assert len(await leased_keys(engine)) == 1
    other = await parked(engine, worker="other")
    await asked(engine, limit, receiver=taker, may_park=False)
    job = await a_pending_job(engine)
    assert [one.key for one in await other.came()] == [job.key]


async def test_a_demand_that_may_not_be_parked_does_not_keep_others_from_being_parked(engine: Engine) -> None:
    full = await parked(engine, worker="full")
    taker = Taker()
    await engine.activate(
        [
            Demand(TYPE, WORKER, 1, LEASE_MS, receiver=taker),
            Demand(TYPE, "full", 1, LEASE_MS, receiver=full, may_park=False),
        ]
    )
    job = await a_pending_job(engine)
    assert [one.key for one in await taker.came()] == [job.key]
    assert (await the_job(engine, job.key)).worker == WORKER


async def test_withdrawing_leaves_the_demands_of_others(engine: Engine) -> None:
    taker = await parked(engine, worker="other")
    await engine.unpark(WORKER, [TYPE, "unknown"])
    await engine.unpark("other", ["unknown"])
    job = await a_pending_job(engine)
    assert [one.key for one in await taker.came()] == [job.key]


async def test_a_worker_that_is_gone_is_handed_nothing(
    engine: Engine, engine_name: str, tmp_path: Path, clock: VirtualClock
) -> None:
    other = await open_store(engine_name, tmp_path, clock)
    taker = await parked(other)
    await other.close()
    job = await a_pending_job(engine)
    assert job.state is State.PENDING
    assert await leased_keys(engine) == [job.key]
    assert not taker.jobs


async def test_a_job_whose_receiver_no_longer_exists_is_released(engine: Engine) -> None:
    taker = Taker()
    await asked(engine, 1, receiver=taker)
    del taker
    gc.collect()
    [created] = await engine.create([a_new_job()])

    async def is_pending() -> bool:
        return await the_state(engine, created.key) is State.PENDING

    await until(is_pending)
    assert await leased_keys(engine) == [created.key]
    assert (await the_job(engine, created.key)).attempts == 1


async def test_a_stamped_create_is_repeated_whoever_runs_its_job(engine: Engine) -> None:
    await parked(engine)
    [created] = await engine.create([a_new_job()], Stamp("p", 1))
    assert await engine.create([a_new_job()], Stamp("p", 1)) == [created]
    assert len(await every_job(engine)) == 1


async def test_a_dedupe_key_holds_whoever_runs_its_job(engine: Engine) -> None:
    await parked(engine)
    [first] = await engine.create([a_new_job(dedupe_key="d")])
    [again] = await engine.create([a_new_job(dedupe_key="d")])
    assert (again.key, again.deduplicated) == (first.key, True)


async def test_concurrent_creates_hand_over_one_job(
    engine: Engine, engine_name: str, tmp_path: Path, clock: VirtualClock
) -> None:
    others = [await open_store(engine_name, tmp_path, clock) for _ in range(3)]
    try:
        taker = await parked(engine)
        await asyncio.gather(*(one.create([a_new_job()]) for one in [engine, *others] for _ in range(4)))
        jobs = await every_job(engine, JobFilter(states=frozenset([State.PROCESSING])))
        assert len(jobs) <= 1
        if jobs:
            assert [one.key for one in await taker.came()] == [jobs[0].key]
        rest = await leased_keys(engine, 20)
        assert len(rest) + len(jobs) == 16
        assert len({*rest, *(job.key for job in jobs)}) == 16
    finally:
        for one in others:
            await one.close()


async def test_the_plain_way_and_the_general_way_store_the_same(
    engine: Engine, engine_name: str, tmp_path: Path, clock: VirtualClock
) -> None:
    """A single job takes a shorter path than several jobs, with the same result."""
    other = await another_store(engine_name, tmp_path, clock)
    jobs: list[NewJob] = [a_new_job(**fields) for fields in FIELDS.values()]
    try:
        for one in (engine, other):
            await one.create([a_new_job()])
        for job in jobs:
            await engine.create([job])
        await other.create(jobs)
        assert await everything(engine) == await everything(other)
        assert await order_of(engine) == await order_of(other)
        assert await everything(engine) == await everything(other)
    finally:
        await other.close()


async def test_a_plain_job_of_a_known_type_wakes_a_waiting_worker(engine: Engine) -> None:
    await asked(engine)
    mark = engine.mark()
    await a_pending_job(engine)
    assert await engine.wait([TYPE], int(1_000 * DEADLINE_S), mark)


async def order_of(engine: Engine) -> list[tuple[int, StoredJob]]:
    """All jobs, in the order in which they are leased one by one."""
    keys = [key for _ in range(10) for key in await leased_keys(engine, 1)]
    return [(key, await the_job(engine, key)) for key in keys]


async def test_a_job_in_the_plain_way_needs_no_parked_demand(engine: Engine) -> None:
    job = await a_processing_job(engine)
    assert await the_state(engine, job.key) is State.PROCESSING
