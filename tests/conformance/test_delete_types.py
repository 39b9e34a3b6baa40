"""Names that callers choose are bounded: unused types are deleted, and further workers are counted together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.codec.json import encode_policy
from everwork.core.leasing import Demand, Verdict
from everwork.core.limits import STATISTICS_KEEP_HOURS, WORKER_ROWS_MAX
from everwork.core.measures import OTHER_WORKERS
from everwork.core.outcome import Complete
from everwork.core.queries import TypeInfo
from everwork.core.retry import RetryPolicy
from everwork.core.states import State
from everwork.engines.values import Registered
from tests.factories import (
    TYPE,
    Stage,
    a_cancelled_job,
    a_completed_job,
    a_dead_letter,
    a_new_job,
    a_pending_job,
    a_policy,
    a_processing_job,
    a_scheduled_job,
    asked,
    leased_keys,
    settled,
    the_state,
)
from tests.stores import DAY_MS, HOUR_MS, MINUTE_MS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

pytestmark = pytest.mark.every_way("redis-cluster")

POLICY = encode_policy(RetryPolicy(max_attempts=9))
STAGES: list[Stage] = [
    a_pending_job,
    a_scheduled_job,
    a_processing_job,
    a_completed_job,
    a_dead_letter,
    a_cancelled_job,
]


async def known(engine: Engine) -> list[str]:
    """The names of all types."""
    return [info.type for info in await engine.types()]


async def forgotten(engine: Engine, *types: str, policy: str | None = None, unused_ms: int = DAY_MS) -> list[str]:
    """Forget these types, each with the policy that the caller has seen; returns those that were deleted."""
    return await engine.forget_types(dict.fromkeys(types, policy), unused_ms)


async def a_type_that_has_worked(engine: Engine) -> None:
    """A type that has statistics, but no jobs any more."""
    job = await a_completed_job(engine)
    await engine.delete([job.key])


# delete_type --------------------------------------------------------------------------------------


async def test_a_type_without_jobs_is_deleted(engine: Engine) -> None:
    await asked(engine)
    await asked(engine, type="other")
    assert await engine.delete_type(TYPE) is Verdict.ACCEPTED
    assert await known(engine) == ["other"]


async def test_an_unknown_type_is_not_found(engine: Engine) -> None:
    assert await engine.delete_type(TYPE) is Verdict.NOT_FOUND
    await asked(engine)
    await engine.delete_type(TYPE)
    assert await engine.delete_type(TYPE) is Verdict.NOT_FOUND


@pytest.mark.parametrize("stage", STAGES)
async def test_a_type_with_jobs_in_any_state_stays_as_it_is(engine: Engine, stage: Stage) -> None:
    job = await stage(engine)
    await engine.set_policy(TYPE, POLICY)
    [before] = await engine.types()
    assert await engine.delete_type(TYPE) is Verdict.WRONG_STATE
    assert await engine.types() == [before]
    assert await the_state(engine, job.key) is job.state


async def test_a_job_of_a_further_group_keeps_its_type(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")
    job = await a_completed_job(engine)
    await engine.delete([job.key])
    assert await engine.delete_type(TYPE) is Verdict.WRONG_STATE


async def test_a_job_of_a_dropped_group_keeps_its_type(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")
    job = await a_completed_job(engine)
    await engine.delete([job.key])
    await engine.drop_group(TYPE, "audit")
    assert await engine.delete_type(TYPE) is Verdict.WRONG_STATE


async def test_a_deleted_type_comes_back_as_a_new_one(engine: Engine) -> None:
    await a_policy(engine, max_attempts=9, max_running=1, rate_jobs=1, rate_seconds=60, breaker_failures=1)
    await engine.add_group(TYPE, "audit")
    await engine.pause(TYPE, True)
    await engine.open_breaker(TYPE, MINUTE_MS)
    assert await engine.delete_type(TYPE) is Verdict.ACCEPTED
    jobs = [await a_pending_job(engine) for _ in range(3)]
    assert await engine.types() == [TypeInfo(TYPE)]
    assert jobs[0].max_attempts == 5
    assert await leased_keys(engine, group="audit") == []
    assert await leased_keys(engine) == [job.key for job in jobs]


async def test_a_deleted_type_comes_back_with_a_demand(engine: Engine, clock: VirtualClock) -> None:
    await asked(engine)
    await engine.delete_type(TYPE)
    clock.advance(ms=MINUTE_MS)
    await asked(engine)
    [info] = await engine.types()
    assert info.last_asked_ms == clock.now_ms


async def test_the_groups_of_a_deleted_type_get_no_copies_unless_they_are_added_again(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")
    await engine.add_group(TYPE, "billing")
    await engine.delete_type(TYPE)
    await engine.add_group(TYPE, "billing")
    await a_pending_job(engine)
    assert await leased_keys(engine, group="audit") == []
    assert len(await leased_keys(engine, group="billing")) == 1


async def test_the_statistics_of_a_deleted_type_are_gone_and_those_of_others_stay(engine: Engine) -> None:
    await a_type_that_has_worked(engine)
    await a_completed_job(engine, type="other")
    await engine.delete_type(TYPE)
    assert {row.type for row in (await engine.stats(1)).hours} == {"other"}
    assert {row.type for row in await engine.measures(1)} == {"other"}
    await a_completed_job(engine)
    assert [row.completed for row in (await engine.stats(1)).hours if row.type == TYPE] == [1]


async def test_statistics_of_past_hours_go_with_the_type(engine: Engine, clock: VirtualClock) -> None:
    for _ in range(3):
        await a_type_that_has_worked(engine)
        clock.advance(ms=5 * HOUR_MS)
    await engine.delete_type(TYPE)
    await a_pending_job(engine)
    assert (await engine.stats(48)).hours == []
    assert await engine.measures(48, TYPE) == []


async def test_the_owner_of_a_deleted_type_is_forgotten(engine: Engine) -> None:
    assert await engine.subscribe(TYPE, "first") == ""
    assert await engine.subscribe("other", "first") == ""
    await engine.delete_type(TYPE)
    assert await engine.registered("owner") == [Registered("owner", "other", "first", None)]
    assert await engine.subscribe(TYPE, "second") == ""


async def test_lanes_and_limits_begin_anew_with_the_type(engine: Engine) -> None:
    await a_policy(engine, max_running_per_key=1)
    for key in ("a", "b"):
        job = await a_processing_job(engine, limit_key=key)
        await settled(engine, Complete(job.key, 1))
        await engine.delete([job.key])
    assert await engine.delete_type(TYPE) is Verdict.ACCEPTED
    jobs = [await a_pending_job(engine, limit_key="a") for _ in range(2)]
    assert await leased_keys(engine) == [job.key for job in jobs]


async def test_a_name_that_begins_like_another_type_is_not_touched(engine: Engine) -> None:
    await a_completed_job(engine, type=f"{TYPE}-more")
    await engine.add_group(f"{TYPE}-more", "audit")
    await asked(engine)
    await engine.delete_type(TYPE)
    assert await known(engine) == [f"{TYPE}-more"]
    assert len((await engine.stats(1)).hours) == 1


# forget_types -------------------------------------------------------------------------------------


async def test_a_type_that_was_only_requested_is_forgotten_after_a_while(engine: Engine, clock: VirtualClock) -> None:
    await asked(engine)
    clock.advance(ms=DAY_MS - 1)
    assert await forgotten(engine, TYPE) == []
    clock.advance(ms=1)
    assert await forgotten(engine, TYPE) == [TYPE]
    assert await engine.types() == []


async def test_a_type_that_was_never_requested_is_forgotten_when_its_jobs_are_gone(engine: Engine) -> None:
    job = await a_cancelled_job(engine)
    assert await forgotten(engine, TYPE) == []
    await engine.delete([job.key])
    assert await forgotten(engine, TYPE) == [TYPE]


@pytest.mark.parametrize("stage", STAGES)
async def test_a_type_with_jobs_in_any_state_is_kept(engine: Engine, clock: VirtualClock, stage: Stage) -> None:
    await stage(engine)
    clock.advance(ms=40 * DAY_MS)
    assert await forgotten(engine, TYPE) == []


async def test_a_type_is_kept_as_long_as_its_statistics(engine: Engine, clock: VirtualClock) -> None:
    await a_type_that_has_worked(engine)
    clock.advance(ms=STATISTICS_KEEP_HOURS * HOUR_MS)
    assert await forgotten(engine, TYPE) == []
    clock.advance(ms=2 * HOUR_MS)
    while (await engine.sweep("s1")).more:
        pass
    assert await forgotten(engine, TYPE) == [TYPE]


async def _pause(engine: Engine) -> None:
    await engine.pause(TYPE, True)


async def _open(engine: Engine) -> None:
    await engine.open_breaker(TYPE, MINUTE_MS)


async def _add_group(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")


async def _subscribe(engine: Engine) -> None:
    await engine.subscribe(TYPE, "worker")


async def _set_policy(engine: Engine) -> None:
    await engine.set_policy(TYPE, POLICY)


@pytest.mark.parametrize("change", [_pause, _open, _add_group, _subscribe, _set_policy])
async def test_a_type_that_somebody_has_set_up_is_kept(
    engine: Engine, clock: VirtualClock, change: Callable[[Engine], Awaitable[None]]
) -> None:
    await asked(engine)
    await change(engine)
    [before] = await engine.types()
    clock.advance(ms=DAY_MS)
    assert await forgotten(engine, TYPE) == []
    assert [info.type for info in await engine.types()] == [before.type]


async def test_a_type_is_forgotten_with_the_policy_that_the_caller_has_seen_and_no_other(engine: Engine) -> None:
    await engine.set_policy(TYPE, POLICY)
    assert await forgotten(engine, TYPE, policy=encode_policy(RetryPolicy(max_attempts=8))) == []
    assert await forgotten(engine, TYPE, policy=POLICY) == [TYPE]
    await engine.pause(TYPE, False)
    assert await engine.types() == [TypeInfo(TYPE)]
    assert await forgotten(engine, TYPE, policy=POLICY) == []


async def test_of_many_types_only_the_unused_ones_are_forgotten(engine: Engine, clock: VirtualClock) -> None:
    names = [f"t{number:03}" for number in range(300)]
    await engine.create([a_new_job(type=name) for name in names[:3]])
    for name in names[3:]:
        await asked(engine, type=name)
    clock.advance(ms=DAY_MS)
    await asked(engine, type="t100")
    assert sorted(await forgotten(engine, *names, "never-seen")) == [name for name in names[3:] if name != "t100"]
    assert await known(engine) == ["t000", "t001", "t002", "t100"]
    assert await engine.forget_types({}, DAY_MS) == []


async def test_jobs_of_a_forgotten_type_are_created_and_run_as_ever(engine: Engine, clock: VirtualClock) -> None:
    await asked(engine)
    clock.advance(ms=DAY_MS)
    await forgotten(engine, TYPE)
    job = await a_completed_job(engine)
    assert job.state is State.COMPLETED
    assert [count.jobs for count in await engine.count()] == [1]


# Worker names -------------------------------------------------------------------------------------


async def test_an_hour_lists_a_bounded_number_of_workers_and_counts_the_others_together(
    engine: Engine, clock: VirtualClock
) -> None:
    """PostgreSQL folds statistics later, and the sums of Redis are counted one by one: hence the difference in time."""
    names = [f"w{number:04}" for number in range(2 * WORKER_ROWS_MAX + 100)]
    for start in range(0, len(names), 1_000):
        some = names[start : start + 1_000]
        await engine.create([a_new_job(variables="{}") for _ in some])
        clock.advance(ms=1)
        leased = (await engine.activate([Demand(TYPE, worker, 1) for worker in some])).jobs
        clock.advance(ms=1)
        await engine.settle([Complete(job.key, job.attempt) for job in leased])
    while (await engine.sweep("s1")).more:
        pass
    completed = {row.worker: row.completed for row in (await engine.stats(1)).hours}
    assert sum(completed.values()) == len(names)
    assert completed[OTHER_WORKERS] >= WORKER_ROWS_MAX
    assert len(completed) <= WORKER_ROWS_MAX + 1
