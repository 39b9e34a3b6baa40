"""dump and load: a store moves to another of any engine, and nobody can tell the difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.core.leasing import Created, Lease, LeaseStatus, Verdict
from everwork.core.outcome import Complete, Failed
from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.engines.values import Swept
from tests.conformance.lives import OWN_POLICY, every_stage, moved, whole
from tests.conformance.observe import assert_counts_add_up, counted, every_job, kinds
from tests.factories import (
    TYPE,
    a_completed_job,
    a_dead_letter,
    a_new_job,
    a_pending_job,
    a_processing_job,
    a_scheduled_job,
    asked,
    judged,
    leased_keys,
    settled,
    the_job,
    the_state,
)
from tests.stores import ENGINES, SECOND_MS, at_length, open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from everwork.core.outcome import Outcome
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

pytestmark = pytest.mark.every_way("redis-cluster")


@pytest.fixture(params=range(at_length(len(ENGINES), 1)))
async def target(
    request: pytest.FixtureRequest, engine_name: str, tmp_path: Path, clock: VirtualClock
) -> AsyncIterator[Engine]:
    """An empty store of the next engine, to move to: so every engine is moved from, and to. Or of each engine."""
    folder = tmp_path / "target"
    folder.mkdir()
    here = ENGINES.index(engine_name.partition("-")[0])
    opened = await open_store(ENGINES[(here + 1 + request.param) % len(ENGINES)], folder, clock, reuse=True)
    yield opened
    await assert_counts_add_up(opened)
    await opened.close()


# What is seen ---------------------------------------------------------------------------------------


async def test_after_a_move_everything_looks_as_before(engine: Engine, target: Engine, clock: VirtualClock) -> None:
    await every_stage(engine, clock)
    await moved(engine, target)
    (jobs, counts), (loaded, loaded_counts) = await whole(engine), await whole(target)
    for before, after in zip(jobs, loaded, strict=True):
        assert after == before
    assert loaded_counts == counts


async def test_a_store_that_moved_can_move_on(engine: Engine, target: Engine, clock: VirtualClock) -> None:
    await every_stage(engine, clock)
    records = await moved(engine, target, step=1_000)
    assert await target.dump(0, 1_000) == records


async def test_loading_again_changes_nothing(engine: Engine, target: Engine, clock: VirtualClock) -> None:
    await every_stage(engine, clock)
    records = await moved(engine, target)
    before = await whole(target)
    assert await target.load(records) == 0
    assert await whole(target) == before


async def test_a_load_that_was_cut_short_is_repeated(engine: Engine, target: Engine, clock: VirtualClock) -> None:
    await every_stage(engine, clock)
    records = await engine.dump(0, 1_000)
    assert await target.load(records[:5]) == 5
    assert await target.load(records) == len(records) - 5
    assert await whole(target) == await whole(engine)


async def test_a_job_whose_key_exists_is_left_as_it_is(engine: Engine, target: Engine) -> None:
    await a_completed_job(engine)
    other = await a_pending_job(target, type="another")
    assert await target.load(await engine.dump(0, 10)) == 0
    assert await every_job(target) == [other]


async def test_types_and_groups_appear_as_they_are_met(engine: Engine, target: Engine, clock: VirtualClock) -> None:
    await every_stage(engine, clock)
    await moved(engine, target)
    names = [(info.type, info.groups) for info in await engine.types()]
    assert [(info.type, info.groups) for info in await target.types()] == names


@pytest.mark.parametrize("max_attempts", [1, 5])
async def test_a_lapse_that_was_counted_elsewhere_is_undone_without_statistics(
    engine: Engine, target: Engine, clock: VirtualClock, max_attempts: int
) -> None:
    job = await a_processing_job(engine, lease_ms=SECOND_MS, max_attempts=max_attempts)
    clock.advance(ms=SECOND_MS)
    await engine.sweep("s")
    await moved(engine, target)
    assert await target.reclaim([Lease(job.key, 1)], SECOND_MS) == [LeaseStatus.HELD]
    assert ((await target.stats(24)).hours, await target.measures(24)) == ([], [])
    assert (await settled(target, Complete(job.key, 1))).attempts == 1


async def test_nothing_to_load_changes_nothing(target: Engine) -> None:
    assert await target.load([]) == 0
    assert await counted(target) == {}


# dump -------------------------------------------------------------------------------------------------


async def test_a_dump_goes_up_by_key_and_ends(engine: Engine) -> None:
    keys = [created.key for created in await engine.create([a_new_job() for _ in range(5)])]
    first = await engine.dump(0, 2)
    second = await engine.dump(first[-1].job.key, 10)
    assert [record.job.key for record in first + second] == keys
    assert await engine.dump(keys[-1], 10) == []


async def test_a_dump_passes_over_keys_that_are_gone(engine: Engine) -> None:
    gone = await a_completed_job(engine)
    stays = await a_pending_job(engine)
    await engine.delete([gone.key])
    assert [record.job for record in await engine.dump(0, 1)] == [stays]


async def test_a_dump_of_an_empty_store_is_empty(engine: Engine) -> None:
    assert await engine.dump(0, 10) == []


async def test_a_dump_tells_what_only_the_store_knows(engine: Engine) -> None:
    job = await a_pending_job(engine, max_attempts=3, retry=OWN_POLICY)
    await engine.set_retries(job.key, 50)
    [record] = await engine.dump(0, 10)
    assert (record.created_max_attempts, record.retry, record.job.max_attempts) == (3, OWN_POLICY, 50)


# How it goes on -----------------------------------------------------------------------------------------


async def test_keys_given_later_are_higher_than_every_key_loaded(engine: Engine, target: Engine) -> None:
    created = await engine.create([a_new_job() for _ in range(40)])
    await moved(engine, target)
    assert (await a_pending_job(target)).key > created[-1].key


async def test_keys_do_not_go_back_when_older_jobs_are_loaded(engine: Engine, target: Engine) -> None:
    await a_pending_job(engine)
    keys = [created.key for created in await target.create([a_new_job(type="own") for _ in range(40)])]
    await target.load(await engine.dump(0, 10))
    assert (await a_pending_job(target)).key > keys[-1]


async def test_a_dedupe_key_names_the_same_job_as_before(engine: Engine, target: Engine) -> None:
    waiting = await a_pending_job(engine, dedupe_key="a", tenant="acme")
    done = await a_completed_job(engine, dedupe_key="b", type="other")
    await moved(engine, target)
    again = [a_new_job(dedupe_key="a", tenant="acme"), a_new_job(dedupe_key="b", type="other")]
    assert await target.create(again) == [Created(waiting.key, True), Created(done.key, True)]
    assert not (await target.create([a_new_job(dedupe_key="a")]))[0].deduplicated


async def test_with_the_job_its_dedupe_key_is_deleted(engine: Engine, target: Engine) -> None:
    done = await a_completed_job(engine, dedupe_key="b")
    await moved(engine, target)
    await target.delete([done.key])
    assert not (await target.create([a_new_job(dedupe_key="b")]))[0].deduplicated


async def test_a_dedupe_key_that_another_job_has_stays_with_it(engine: Engine, target: Engine) -> None:
    await engine.create([a_new_job(type="filler")])
    loaded = await a_completed_job(engine, dedupe_key="d")
    own = await a_pending_job(target, dedupe_key="d")
    assert await target.load(await engine.dump(loaded.key - 1, 10)) == 1
    await target.delete([loaded.key])
    assert await target.create([a_new_job(dedupe_key="d")]) == [Created(own.key, True)]


async def test_jobs_are_leased_in_the_same_order(engine: Engine, target: Engine, clock: VirtualClock) -> None:
    await engine.create([a_new_job(priority=index % 3, run_at_ms=clock.now_ms - index % 2) for index in range(12)])
    await moved(engine, target)
    assert await leased_keys(target, 20) == await leased_keys(engine, 20)


async def test_lanes_are_the_same(engine: Engine, target: Engine) -> None:
    theirs = await a_pending_job(engine, tenant="acme", limit_key="customer-1")
    await a_pending_job(engine)
    await moved(engine, target)
    assert await leased_keys(target, tenants=("acme",)) == [theirs.key]


async def test_a_scheduled_job_starts_when_it_is_due(engine: Engine, target: Engine, clock: VirtualClock) -> None:
    job = await a_scheduled_job(engine, delay_ms=SECOND_MS)
    await moved(engine, target)
    assert await leased_keys(target) == []
    clock.advance(ms=SECOND_MS)
    assert await leased_keys(target) == [job.key]


async def test_the_next_attempt_has_the_next_number(engine: Engine, target: Engine) -> None:
    job = await a_processing_job(engine)
    await settled(engine, Failed(job.key, 1, "boom", backoff_ms=0))
    await moved(engine, target)
    [leased] = (await asked(target)).jobs
    assert (leased.key, leased.attempt, leased.attempts) == (job.key, 2, 2)


async def test_a_job_that_was_running_is_settled_by_its_attempt_alone(engine: Engine, target: Engine) -> None:
    job = await a_processing_job(engine)
    await moved(engine, target)
    assert await target.check([Lease(job.key, 1), Lease(job.key, 2)]) == [LeaseStatus.HELD, LeaseStatus.LOST]
    assert (await judged(target, Complete(job.key, 2))).verdict is Verdict.LEASE_LOST
    assert (await settled(target, Complete(job.key, 1, '"done"'))).result == '"done"'


async def test_a_job_that_was_running_lapses(engine: Engine, target: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine, lease_ms=SECOND_MS, worker="w1")
    await moved(engine, target)
    assert await target.sweep("s") == Swept()
    clock.advance(ms=SECOND_MS + 1)
    assert (await target.sweep("s")).lapsed == 1
    assert await kinds(target, job.key) == [(1, "lapse")]


@pytest.mark.parametrize(
    "outcome",
    [Complete(0, 1), Failed(0, 1, "boom"), Failed(0, 1, "boom", final=True)],
    ids=["complete", "retry", "fail"],
)
async def test_an_outcome_reported_before_the_move_is_a_repeat(
    engine: Engine, target: Engine, outcome: Outcome
) -> None:
    job = await a_processing_job(engine)
    reported = outcome._replace(key=job.key)
    await settled(engine, reported)
    await moved(engine, target)
    before = await whole(target)
    assert (await judged(target, reported)).verdict is Verdict.REPEATED
    assert await whole(target) == before


async def test_a_dead_letter_comes_back_with_the_attempts_it_was_created_with(engine: Engine, target: Engine) -> None:
    job = await a_pending_job(engine, max_attempts=3)
    await engine.set_retries(job.key, 50)
    await asked(engine)
    await settled(engine, Failed(job.key, 1, "boom", final=True))
    await moved(engine, target)
    await target.requeue([job.key])
    again = await the_job(target, job.key)
    assert (again.state, again.attempts, again.max_attempts, again.attempt) == (State.PENDING, 0, 3, 1)
    assert await kinds(target, job.key) == [(1, "fail"), (1, "requeue")]


async def test_a_job_keeps_its_own_retry_policy(engine: Engine, target: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine, retry=OWN_POLICY)
    await moved(engine, target)
    again = await settled(target, Failed(job.key, 1, "boom"))
    assert again.run_at_ms == clock.now_ms + 7_000


async def test_a_pending_job_still_expires(engine: Engine, target: Engine, clock: VirtualClock) -> None:
    waiting = await a_pending_job(engine, type="waiting", expires_at_ms=clock.now_ms + SECOND_MS)
    running = await a_processing_job(engine, expires_at_ms=clock.now_ms + SECOND_MS)
    await moved(engine, target)
    clock.advance(seconds=2)
    assert (await target.sweep("s")).expired == 1
    assert [await the_state(target, job.key) for job in (waiting, running)] == [State.CANCELLED, State.PROCESSING]


async def test_a_copy_goes_to_its_group(engine: Engine, target: Engine) -> None:
    await engine.add_group(TYPE, "audit")
    job = await a_pending_job(engine)
    await moved(engine, target)
    [copy] = (await asked(target, group="audit")).jobs
    assert (await the_job(target, copy.key)).copy_of == job.key
    assert await leased_keys(target) == [job.key]


async def test_a_finished_job_is_kept_as_long_as_if_it_had_finished_here(
    engine: Engine, target: Engine, clock: VirtualClock
) -> None:
    job = await a_dead_letter(engine)
    await moved(engine, target)
    clock.advance(ms=target.retention[State.FAILED] - 1)
    assert (await target.sweep("s")).deleted == 0
    clock.advance(ms=SECOND_MS)
    assert (await target.sweep("s")).deleted == 1
    assert await target.get([job.key]) == [None]


async def test_a_job_that_finished_before_older_ones_is_not_kept_as_long_as_they(
    engine: Engine, target: Engine, clock: VirtualClock
) -> None:
    slow = await a_processing_job(engine)
    quick = await a_dead_letter(engine)
    clock.advance(ms=target.retention[State.FAILED] - SECOND_MS)
    await settled(engine, Failed(slow.key, 1, "boom", final=True))
    await moved(engine, target)
    clock.advance(ms=2 * SECOND_MS)
    assert (await target.sweep("s")).deleted == 1
    assert [job.key for job in await every_job(target)] == [slow.key]
    assert await target.get([quick.key]) == [None]


async def test_a_load_wakes_those_who_wait(engine: Engine, target: Engine) -> None:
    await a_pending_job(engine)
    mark = target.mark()
    await moved(engine, target)
    assert await target.wait([TYPE], 10_000, since=mark)


async def test_a_loaded_job_is_listed_where_it_belongs(engine: Engine, target: Engine, clock: VirtualClock) -> None:
    await every_stage(engine, clock)
    await moved(engine, target)
    for state in State:
        wanted = JobFilter(states=frozenset([state]))
        assert await every_job(target, wanted) == await every_job(engine, wanted)
