"""The registry: pauses, policies, groups, entries that run out, and turns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from everwork.codec.json import encode_policy
from everwork.core.leasing import Created
from everwork.core.outcome import Complete, Failed, Release
from everwork.core.queries import JobFilter, TypeInfo
from everwork.core.retry import RetryPolicy
from everwork.core.states import State
from everwork.engines.open import open_engine
from everwork.engines.values import Registered
from everwork.exceptions import EngineUnavailable
from tests.conformance.observe import every_job, sight
from tests.factories import (
    TYPE,
    a_completed_job,
    a_dead_letter,
    a_new_job,
    a_pending_job,
    a_processing_job,
    a_scheduled_job,
    asked,
    leased_keys,
    settled,
    the_job,
    the_state,
)
from tests.stores import DAY_MS, MINUTE_MS, SECOND_MS, url_of

if TYPE_CHECKING:
    from pathlib import Path

    from everwork.core.job import StoredJob
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

pytestmark = pytest.mark.every_way("redis-cluster")


async def info_of(engine: Engine, type: str = TYPE) -> TypeInfo:
    """What the engine knows of a type that it must have seen."""
    [info] = [info for info in await engine.types() if info.type == type]
    return info


# pause --------------------------------------------------------------------------------------------


async def test_nothing_of_a_paused_type_is_leased_until_it_is_resumed(engine: Engine) -> None:
    job = await a_pending_job(engine)
    await engine.pause(TYPE, True)
    assert await leased_keys(engine) == []
    await engine.pause(TYPE, False)
    assert await leased_keys(engine) == [job.key]


async def test_a_type_may_be_paused_before_its_first_job(engine: Engine) -> None:
    await engine.pause(TYPE, True)
    await a_pending_job(engine)
    assert await leased_keys(engine) == []


async def test_other_types_go_on_while_one_is_paused(engine: Engine) -> None:
    await engine.pause(TYPE, True)
    job = await a_pending_job(engine, type="other")
    assert await leased_keys(engine, type="other") == [job.key]


async def test_what_runs_goes_on_while_its_type_is_paused(engine: Engine) -> None:
    job = await a_processing_job(engine)
    await engine.pause(TYPE, True)
    assert (await settled(engine, Complete(job.key, 1))).state is State.COMPLETED


async def test_a_paused_type_accepts_jobs_and_retries_and_leases_none_of_them(
    engine: Engine, clock: VirtualClock
) -> None:
    job = await a_processing_job(engine)
    await engine.pause(TYPE, True)
    await settled(engine, Failed(job.key, 1, "boom"))
    await a_scheduled_job(engine, delay_ms=SECOND_MS)
    clock.advance(ms=MINUTE_MS)
    assert await leased_keys(engine) == []
    await engine.pause(TYPE, False)
    assert len(await leased_keys(engine)) == 2


async def test_pausing_or_resuming_twice_changes_nothing(engine: Engine) -> None:
    await engine.pause(TYPE, True)
    await engine.pause(TYPE, True)
    assert (await info_of(engine)).paused
    await engine.pause(TYPE, False)
    await engine.pause(TYPE, False)
    assert not (await info_of(engine)).paused


async def test_a_pause_holds_for_every_group_of_the_type(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")
    await a_pending_job(engine)
    await engine.pause(TYPE, True)
    assert await leased_keys(engine, group="audit") == []


# Policies and types -------------------------------------------------------------------------------


async def test_every_type_that_was_seen_is_listed_by_name(engine: Engine) -> None:
    await a_pending_job(engine, type="b")
    await asked(engine, type="c")
    await engine.pause("a", True)
    assert [info.type for info in await engine.types()] == ["a", "b", "c"]


async def test_a_type_stays_known_when_its_jobs_are_gone(engine: Engine) -> None:
    job = await a_completed_job(engine)
    await engine.delete([job.key])
    assert (await info_of(engine)).type == TYPE


async def test_a_new_type_has_no_pause_no_policy_and_nobody_has_asked_for_it(engine: Engine) -> None:
    await a_pending_job(engine)
    info = await info_of(engine)
    assert (info.paused, info.policy, info.last_asked_ms) == (False, None, None)


async def test_a_policy_is_kept_until_it_is_taken_away(engine: Engine) -> None:
    policy = encode_policy(RetryPolicy(max_attempts=9))
    await engine.set_policy(TYPE, policy)
    assert (await info_of(engine)).policy == policy
    await engine.set_policy(TYPE, None)
    assert (await info_of(engine)).policy is None
    assert (await a_pending_job(engine)).max_attempts == 5


async def test_a_new_policy_decides_the_delay_of_jobs_that_wait_already(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine)
    await engine.set_policy(TYPE, encode_policy(RetryPolicy(max_attempts=9, base=1.0)))
    again = await settled(engine, Failed(job.key, 1, "boom"))
    assert (again.run_at_ms, again.max_attempts) == (clock.now_ms + 1_000, 5)


async def test_a_lapsed_lease_follows_the_policy_of_its_type(engine: Engine, clock: VirtualClock) -> None:
    await engine.set_policy(TYPE, encode_policy(RetryPolicy(base=60.0)))
    job = await a_processing_job(engine, lease_ms=SECOND_MS)
    clock.advance(seconds=2)
    await engine.sweep("s")
    assert (await the_job(engine, job.key)).run_at_ms == clock.now_ms + MINUTE_MS


# Groups -------------------------------------------------------------------------------------------


async def copies_of(engine: Engine, job: StoredJob) -> list[StoredJob]:
    """The copies that the other groups got of a job, oldest first."""
    return [other for other in reversed(await every_job(engine)) if other.copy_of == job.key]


async def test_each_further_group_gets_a_copy_with_a_key_of_its_own(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")
    await engine.add_group(TYPE, "mirror")
    job = await a_pending_job(engine, variables='{"n":1}', priority=3, tenant="acme", max_attempts=2)
    copies = await copies_of(engine, job)
    assert (job.group, job.copy_of) == ("", None)
    assert sorted(copy.group for copy in copies) == ["audit", "mirror"]
    assert len({job.key, *(copy.key for copy in copies)}) == 3
    for copy in copies:
        assert (copy.variables, copy.priority, copy.tenant, copy.max_attempts) == ('{"n":1}', 3, "acme", 2)


async def test_a_group_takes_only_its_own_copies(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")
    job = await a_pending_job(engine)
    [copy] = await copies_of(engine, job)
    assert await leased_keys(engine, group="audit") == [copy.key]
    assert await leased_keys(engine) == [job.key]


async def test_the_copies_live_lives_of_their_own(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")
    job = await a_pending_job(engine)
    [copy] = (await asked(engine, group="audit")).jobs
    assert copy.group == "audit"
    await settled(engine, Complete(copy.key, 1))
    assert await the_job(engine, job.key) == job


async def test_only_jobs_created_after_its_registration_are_copied_for_a_group(engine: Engine) -> None:
    before = await a_pending_job(engine)
    await engine.add_group(TYPE, "audit")
    after = await a_pending_job(engine)
    assert (len(await copies_of(engine, before)), len(await copies_of(engine, after))) == (0, 1)


async def test_a_group_of_one_type_gets_no_copies_of_another(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")
    job = await a_pending_job(engine, type="other")
    assert await copies_of(engine, job) == []


async def test_registering_a_group_twice_makes_one_copy(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")
    await engine.add_group(TYPE, "audit")
    assert len(await copies_of(engine, await a_pending_job(engine))) == 1


async def test_the_groups_of_a_type_are_listed(engine: Engine) -> None:
    await engine.add_group(TYPE, "mirror")
    await engine.add_group(TYPE, "audit")
    assert [group for group in (await info_of(engine)).groups if group] == ["audit", "mirror"]


async def test_dedupe_is_judged_once_for_the_job_and_its_copies(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")
    job = await a_pending_job(engine, dedupe_key="d")
    await engine.add_group(TYPE, "mirror")
    assert await engine.create([a_new_job(dedupe_key="d")] * 2) == [Created(job.key, True)] * 2
    assert [copy.group for copy in await copies_of(engine, job)] == ["audit"]


async def test_the_dedupe_key_names_the_default_copy_alone(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")
    job = await a_pending_job(engine, dedupe_key="d")
    [copy] = await copies_of(engine, job)
    assert (job.dedupe_key, copy.dedupe_key) == ("d", None)
    await engine.cancel([copy.key])
    await engine.delete([copy.key])
    assert await engine.create([a_new_job(dedupe_key="d")]) == [Created(job.key, True)]


async def test_keys_increase_in_the_order_of_the_request_with_copies_between(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")
    keys = [created.key for created in await engine.create([a_new_job() for _ in range(5)])]
    assert keys == sorted(set(keys))
    assert len(await every_job(engine, JobFilter(group="audit"))) == 5


async def test_a_scheduled_copy_is_due_with_its_job(engine: Engine, clock: VirtualClock) -> None:
    await engine.add_group(TYPE, "audit")
    await a_scheduled_job(engine, delay_ms=SECOND_MS)
    assert await leased_keys(engine, group="audit") == []
    clock.advance(ms=SECOND_MS)
    assert len(await leased_keys(engine, group="audit")) == 1


async def test_a_copy_is_requeued_by_its_own_key(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")
    job = await a_dead_letter(engine)
    [copy] = (await asked(engine, group="audit")).jobs
    await settled(engine, Failed(copy.key, 1, "boom", final=True))
    await engine.requeue([copy.key])
    assert [await the_state(engine, key) for key in (copy.key, job.key)] == [State.PENDING, State.FAILED]


async def test_dropping_a_group_cancels_what_waits_and_leaves_what_runs(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")
    await engine.create([a_new_job(), a_new_job(), a_new_job(delay_ms=MINUTE_MS), a_new_job()])
    [running] = (await asked(engine, 1, group="audit")).jobs
    assert await engine.drop_group(TYPE, "audit") == 3
    copies = await every_job(engine, JobFilter(group="audit"))
    assert sorted(copy.state for copy in copies) == [State.PROCESSING] + [State.CANCELLED] * 3
    assert (await settled(engine, Complete(running.key, 1))).state is State.COMPLETED


async def test_dropping_a_group_leaves_the_default_group_alone(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")
    job = await a_pending_job(engine)
    await engine.drop_group(TYPE, "audit")
    assert await leased_keys(engine) == [job.key]


async def test_a_dropped_group_gets_no_more_copies_and_is_not_listed(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")
    await engine.drop_group(TYPE, "audit")
    assert await copies_of(engine, await a_pending_job(engine)) == []
    assert "audit" not in (await info_of(engine)).groups


async def test_a_group_that_was_dropped_may_be_registered_again(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")
    await engine.drop_group(TYPE, "audit")
    await engine.add_group(TYPE, "audit")
    job = await a_pending_job(engine)
    assert await leased_keys(engine, group="audit") == [copy.key for copy in await copies_of(engine, job)]
    assert len(await copies_of(engine, job)) == 1


async def test_dropping_an_unknown_group_cancels_nothing(engine: Engine) -> None:
    job = await a_pending_job(engine)
    before = await sight(engine, job.key)
    assert await engine.drop_group(TYPE, "nobody") == 0
    assert await sight(engine, job.key) == before


async def test_a_group_that_nobody_registered_gets_nothing(engine: Engine) -> None:
    await a_pending_job(engine)
    assert await leased_keys(engine, group="nobody") == []


async def test_a_running_job_of_a_dropped_group_still_lapses(engine: Engine, clock: VirtualClock) -> None:
    await engine.add_group(TYPE, "audit")
    await a_pending_job(engine)
    [running] = (await asked(engine, group="audit", lease_ms=SECOND_MS)).jobs
    await engine.drop_group(TYPE, "audit")
    clock.advance(seconds=2)
    assert (await engine.sweep("s")).lapsed == 1
    assert await the_state(engine, running.key) is not State.PROCESSING


async def test_a_job_that_comes_back_to_a_dropped_group_is_cancelled_by_the_sweep(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")
    await a_pending_job(engine)
    [running] = (await asked(engine, group="audit")).jobs
    await engine.drop_group(TYPE, "audit")
    await settled(engine, Release(running.key, running.attempt))
    await engine.sweep("s")
    assert await the_state(engine, running.key) is State.CANCELLED


async def test_the_entries_of_every_kind_stand_by_kind_and_name(engine: Engine, clock: VirtualClock) -> None:
    await engine.register("worker", "b", "{}")
    await engine.register("worker", "a", '{"n":1}', ttl_ms=SECOND_MS)
    await engine.register("key", "z", "{}")
    until_ms = clock.now_ms + SECOND_MS
    entries = [("key", "z", "{}", None), ("worker", "a", '{"n":1}', until_ms), ("worker", "b", "{}", None)]
    assert await engine.registered(None) == entries
    clock.advance(ms=SECOND_MS)
    assert [entry.name for entry in await engine.registered(None)] == ["z", "b"]


async def test_a_turn_is_no_entry(engine: Engine) -> None:
    await engine.take_turn("upkeep", "a", SECOND_MS)
    await engine.sweep("s")
    assert await engine.registered(None) == []


async def test_an_entry_called_turn_does_not_take_anybody_s_turn(engine: Engine) -> None:
    await engine.register("turn", "sweep", "{}")
    assert await engine.take_turn("sweep", "me", SECOND_MS)


# Entries ------------------------------------------------------------------------------------------


async def test_an_entry_stays_until_it_is_taken_away(engine: Engine, clock: VirtualClock) -> None:
    await engine.register("manager", "m1", '{"host":"a"}')
    clock.advance(ms=1_000 * DAY_MS)
    assert await engine.registered("manager") == [Registered("manager", "m1", '{"host":"a"}', None)]
    assert await engine.unregister("manager", "m1")
    assert await engine.registered("manager") == []


async def test_an_entry_with_a_time_to_live_runs_out(engine: Engine, clock: VirtualClock) -> None:
    await engine.register("manager", "m1", "{}", ttl_ms=10_000)
    until_ms = clock.now_ms + 10_000
    clock.advance(ms=9_999)
    assert await engine.registered("manager") == [Registered("manager", "m1", "{}", until_ms)]
    clock.advance(ms=2)
    assert await engine.registered("manager") == []


async def test_writing_an_entry_anew_replaces_it(engine: Engine, clock: VirtualClock) -> None:
    await engine.register("manager", "m1", '{"n":1}', ttl_ms=10_000)
    clock.advance(seconds=9)
    await engine.register("manager", "m1", '{"n":2}', ttl_ms=10_000)
    assert await engine.registered("manager") == [Registered("manager", "m1", '{"n":2}', clock.now_ms + 10_000)]


async def test_entries_are_listed_by_name_and_kept_apart_by_kind(engine: Engine) -> None:
    for kind, name in (("worker", "b"), ("manager", "a"), ("worker", "a")):
        await engine.register(kind, name, "{}")
    assert [entry.name for entry in await engine.registered("worker")] == ["a", "b"]
    assert [entry.name for entry in await engine.registered("manager")] == ["a"]


async def test_taking_away_what_is_not_there_says_so(engine: Engine) -> None:
    await engine.register("manager", "m1", "{}")
    assert not await engine.unregister("worker", "m1")
    assert not await engine.unregister("manager", "m2")
    assert len(await engine.registered("manager")) == 1


# Turns --------------------------------------------------------------------------------------------


async def test_one_holder_has_the_turn_at_a_time(engine: Engine) -> None:
    assert await engine.take_turn("sweep", "a", 10_000)
    assert not await engine.take_turn("sweep", "b", 10_000)


async def test_a_turn_can_be_prolonged_by_its_holder_alone(engine: Engine, clock: VirtualClock) -> None:
    await engine.take_turn("upkeep", "a", 10_000)
    clock.advance(seconds=9)
    assert not await engine.take_turn("upkeep", "b", 10_000)
    assert await engine.take_turn("upkeep", "a", 10_000)
    clock.advance(seconds=9)
    assert not await engine.take_turn("upkeep", "b", 10_000)


async def test_a_turn_that_ran_out_goes_to_whoever_asks_first(engine: Engine, clock: VirtualClock) -> None:
    await engine.take_turn("upkeep", "a", 10_000)
    clock.advance(ms=10_001)
    assert await engine.take_turn("upkeep", "b", 10_000)
    assert not await engine.take_turn("upkeep", "a", 10_000)


async def test_turns_of_different_names_do_not_meet(engine: Engine) -> None:
    assert await engine.take_turn("upkeep", "a", 10_000)
    assert await engine.take_turn("triggers", "b", 10_000)


async def test_of_many_who_ask_at_once_one_gets_the_turn(engine: Engine) -> None:
    answers = await asyncio.gather(*(engine.take_turn("upkeep", f"h{n}", 10_000) for n in range(20)))
    assert sum(answers) == 1


async def test_turns_are_not_mixed_up_with_entries(engine: Engine) -> None:
    await engine.register("manager", "upkeep", "{}")
    assert await engine.take_turn("upkeep", "a", 10_000)


# Schema -------------------------------------------------------------------------------------------


async def test_the_schema_is_told_by_an_engine_that_is_not_open(engine: Engine) -> None:
    schema = await engine.fresh().schema()
    assert schema == await engine.schema()
    assert schema.stored == schema.newest == (await engine.health()).schema_version


async def test_a_store_that_nobody_has_opened_has_no_schema_and_gets_none_by_asking(
    engine_name: str, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    unopened = open_engine(url_of(engine_name, tmp_path / "other"))
    assert [(await unopened.schema()).stored for _ in range(2)] == [None, None]
    with pytest.raises(EngineUnavailable):
        await unopened.open(create=False)


async def test_nothing_is_leased_from_a_group_that_was_dropped(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")
    await a_pending_job(engine)
    [held] = await leased_keys(engine, group="audit")
    await engine.drop_group(TYPE, "audit")
    await settled(engine, Release(held, 1))
    assert await leased_keys(engine, group="audit") == []
