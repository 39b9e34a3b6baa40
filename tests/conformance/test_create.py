"""create: accepted once, all or none, in order, and deduplicated (G1, G7)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from everwork.codec.json import encode_policy
from everwork.core.job import NewJob, StoredJob
from everwork.core.leasing import Created
from everwork.core.limits import ATTEMPTS_DEFAULT, DEFAULT_GROUP, DEFAULT_TENANT
from everwork.core.outcome import Complete, Failed
from everwork.core.retry import RetryPolicy
from everwork.core.states import State
from tests.conformance.observe import every_job
from tests.factories import (
    TYPE,
    Stage,
    a_cancelled_job,
    a_completed_job,
    a_dead_letter,
    a_new_job,
    a_pending_job,
    a_processing_job,
    asked,
    leased_keys,
    settled,
    the_job,
)
from tests.stores import DAY_MS, MINUTE_MS, open_store

if TYPE_CHECKING:
    from pathlib import Path

    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

pytestmark = pytest.mark.every_way


UNSTORABLE = '{"half a character": "\ud83e"}'
"""Half of a surrogate pair, which no store can write; `service.intake` would have refused it."""


async def test_a_created_job_is_pending_and_due_at_once(engine: Engine, clock: VirtualClock) -> None:
    job = await a_pending_job(engine)
    assert job == StoredJob(
        key=job.key,
        type=TYPE,
        state=State.PENDING,
        tenant=DEFAULT_TENANT,
        group=DEFAULT_GROUP,
        max_attempts=ATTEMPTS_DEFAULT,
        retries=ATTEMPTS_DEFAULT,
        created_at_ms=clock.now_ms,
        run_at_ms=clock.now_ms,
    )


async def test_everything_given_to_create_is_kept(engine: Engine, clock: VirtualClock) -> None:
    new = NewJob(
        type="invoice-print",
        variables='{"name":"Zoë 🦉", "n": 1.50}',
        tenant="acme",
        priority=-7,
        delay_ms=2_000,
        max_attempts=9,
        dedupe_key="d-1",
        limit_key="customer-3",
        correlation_id="c-77",
        expires_at_ms=clock.now_ms + DAY_MS,
        timeout_ms=5_000,
        headers='{"trace":"00-1"}',
        extra='{"bpmn":"x"}',
    )
    [created] = await engine.create([new])
    job = await the_job(engine, created.key)
    kept = {name: value for name, value in new._asdict().items() if name not in {"delay_ms", "run_at_ms", "retry"}}
    assert {name: getattr(job, name) for name in kept} == kept
    assert job.run_at_ms == clock.now_ms + 2_000


async def test_keys_are_positive_and_increase_in_the_order_of_the_request(engine: Engine) -> None:
    first = await engine.create([a_new_job(priority=priority) for priority in (0, 5, -5)])
    second = await engine.create([a_new_job(type="another-type"), a_new_job(tenant="acme")])
    keys = [created.key for created in first + second]
    assert keys == sorted(set(keys))
    assert keys[0] > 0


async def test_a_key_is_never_given_twice_even_after_its_job_was_deleted(engine: Engine) -> None:
    job = await a_completed_job(engine)
    await engine.delete([job.key])
    assert (await a_pending_job(engine)).key > job.key


async def test_creating_nothing_answers_nothing(engine: Engine) -> None:
    assert await engine.create([]) == []


async def test_a_large_batch_is_created_as_a_whole(engine: Engine) -> None:
    created = await engine.create([a_new_job(variables=f'{{"n":{n}}}') for n in range(2_500)])
    assert [job.key for job in reversed(await every_job(engine, page=1_000))] == [item.key for item in created]


async def test_a_batch_that_cannot_be_stored_leaves_nothing_behind(engine: Engine) -> None:
    with pytest.raises(UnicodeEncodeError):
        await engine.create([a_new_job(), a_new_job(variables=UNSTORABLE), a_new_job()])
    assert await every_job(engine) == []
    assert await leased_keys(engine) == []


async def test_a_batch_that_cannot_be_stored_does_not_disturb_the_callers_beside_it(engine: Engine) -> None:
    batches = [[a_new_job()], [a_new_job(), a_new_job(variables=UNSTORABLE)], [a_new_job()]]
    answers = await asyncio.gather(*(engine.create(batch) for batch in batches), return_exceptions=True)
    assert [isinstance(answer, BaseException) for answer in answers] == [False, True, False]
    assert len(await every_job(engine)) == 2


async def test_concurrent_creates_all_get_keys_of_their_own(engine: Engine) -> None:
    answers = await asyncio.gather(*(engine.create([a_new_job(), a_new_job()]) for _ in range(50)))
    keys = [created.key for answer in answers for created in answer]
    assert len(set(keys)) == 100
    assert {job.key for job in await every_job(engine)} == set(keys)


async def test_what_an_engine_accepted_before_it_was_closed_is_there_for_the_next(
    engine: Engine, engine_name: str, tmp_path: Path, clock: VirtualClock
) -> None:
    other = await open_store(engine_name, tmp_path, clock)
    running, waiting = await a_processing_job(other), await a_pending_job(other)
    await other.close()
    assert await engine.get([running.key, waiting.key]) == [running, waiting]


# Delay, run_at, attempts --------------------------------------------------------------------------


async def test_a_delay_counts_from_the_engine_s_now(engine: Engine, clock: VirtualClock) -> None:
    clock.advance(seconds=17)
    assert (await a_pending_job(engine, delay_ms=1_500)).run_at_ms == clock.now_ms + 1_500


async def test_a_job_may_name_the_instant_at_which_it_runs(engine: Engine, clock: VirtualClock) -> None:
    run_at_ms = clock.now_ms + DAY_MS
    job = await a_pending_job(engine, run_at_ms=run_at_ms)
    assert (job.run_at_ms, job.state) == (run_at_ms, State.PENDING)
    assert await leased_keys(engine) == []


async def test_a_job_whose_instant_has_passed_is_due_at_once(engine: Engine, clock: VirtualClock) -> None:
    job = await a_pending_job(engine, run_at_ms=clock.now_ms - MINUTE_MS)
    assert await leased_keys(engine) == [job.key]


async def test_a_job_without_max_attempts_gets_those_of_its_type_s_policy(engine: Engine) -> None:
    await engine.set_policy(TYPE, encode_policy(RetryPolicy(max_attempts=2)))
    plain, own, other = await engine.create([a_new_job(), a_new_job(max_attempts=7), a_new_job(type="another-type")])
    jobs = [await the_job(engine, created.key) for created in (plain, own, other)]
    assert [job.max_attempts for job in jobs] == [2, 7, ATTEMPTS_DEFAULT]


async def test_the_delay_after_a_failure_comes_from_the_type_s_policy(engine: Engine, clock: VirtualClock) -> None:
    await engine.set_policy(TYPE, encode_policy(RetryPolicy(base=7.0)))
    job = await a_processing_job(engine)
    assert (await settled(engine, Failed(job.key, 1, "boom"))).run_at_ms == clock.now_ms + 7_000


async def test_a_policy_of_the_job_s_own_beats_its_type_s(engine: Engine, clock: VirtualClock) -> None:
    await engine.set_policy(TYPE, encode_policy(RetryPolicy(base=7.0)))
    job = await a_processing_job(engine, retry=encode_policy(RetryPolicy(base=2.0)))
    assert (await settled(engine, Failed(job.key, 1, "boom"))).run_at_ms == clock.now_ms + 2_000


# Dedupe (G7) --------------------------------------------------------------------------------------


async def test_the_same_dedupe_key_creates_nothing_and_answers_the_first_key(engine: Engine) -> None:
    first = await a_pending_job(engine, dedupe_key="d", variables='{"n":1}')
    assert await engine.create([a_new_job(dedupe_key="d", variables='{"n":2}')]) == [Created(first.key, True)]
    assert await every_job(engine) == [first]


async def test_a_dedupe_key_holds_inside_one_batch(engine: Engine) -> None:
    batch = [a_new_job(dedupe_key=key) for key in ("a", "b", "a", None, "b", None)]
    created = await engine.create(batch)
    assert [item.deduplicated for item in created] == [False, False, True, False, True, False]
    assert (created[2].key, created[4].key) == (created[0].key, created[1].key)
    assert len(await every_job(engine)) == 4


async def test_a_batch_may_mix_known_and_new_dedupe_keys(engine: Engine) -> None:
    first = await a_pending_job(engine, dedupe_key="a")
    created = await engine.create([a_new_job(dedupe_key="b"), a_new_job(dedupe_key="a"), a_new_job(dedupe_key="c")])
    assert [item.deduplicated for item in created] == [False, True, False]
    assert created[1].key == first.key
    assert created[0].key < created[2].key


async def test_dedupe_keys_of_other_types_and_tenants_are_other_keys(engine: Engine) -> None:
    jobs = [a_new_job(), a_new_job(type="another-type"), a_new_job(tenant="acme"), a_new_job(tenant="acme", type="x")]
    created = await engine.create([job._replace(dedupe_key="d") for job in jobs])
    assert [item.deduplicated for item in created] == [False] * 4
    assert len({item.key for item in created}) == 4


async def test_jobs_without_a_dedupe_key_are_never_deduplicated(engine: Engine) -> None:
    created = await engine.create([a_new_job(), a_new_job()])
    assert created[0].key != created[1].key


@pytest.mark.parametrize("stage", [a_processing_job, a_completed_job, a_dead_letter, a_cancelled_job])
async def test_a_dedupe_key_holds_for_as_long_as_its_job_is_kept(engine: Engine, stage: Stage) -> None:
    job = await stage(engine, dedupe_key="d")
    assert await engine.create([a_new_job(dedupe_key="d")]) == [Created(job.key, True)]


async def test_a_dedupe_key_is_free_again_when_its_job_was_deleted(engine: Engine) -> None:
    job = await a_completed_job(engine, dedupe_key="d")
    await engine.delete([job.key])
    [created] = await engine.create([a_new_job(dedupe_key="d")])
    assert (created.deduplicated, created.key > job.key) == (False, True)


async def test_concurrent_creates_with_one_dedupe_key_make_one_job(engine: Engine) -> None:
    answers = await asyncio.gather(*(engine.create([a_new_job(dedupe_key="d")]) for _ in range(20)))
    assert len({answer[0].key for answer in answers}) == 1
    assert sum(not answer[0].deduplicated for answer in answers) == 1


async def test_a_deduplicated_create_leaves_a_running_job_alone(engine: Engine) -> None:
    job = await a_processing_job(engine, dedupe_key="d")
    await engine.create([a_new_job(dedupe_key="d", priority=99, delay_ms=MINUTE_MS)])
    assert await the_job(engine, job.key) == job


# Events of a Complete (G8) ------------------------------------------------------------------------


async def test_the_events_of_a_complete_are_created_with_it(engine: Engine) -> None:
    job = await a_processing_job(engine)
    await settled(engine, Complete(job.key, 1, None, (a_new_job(type="next"), a_new_job(type="next", priority=5))))
    assert [event.priority for event in (await asked(engine, type="next")).jobs] == [5, 0]


async def test_the_events_of_a_refused_complete_are_not_created(engine: Engine) -> None:
    job = await a_processing_job(engine)
    stale = Complete(job.key, job.attempt + 1, None, (a_new_job(type="next"),))
    assert not (await engine.settle([stale])).judged[0].ok
    assert [found.key for found in await every_job(engine)] == [job.key]


async def test_the_events_of_a_repeated_complete_are_created_once(engine: Engine) -> None:
    job = await a_processing_job(engine)
    outcome = Complete(job.key, 1, None, (a_new_job(type="next"),))
    await settled(engine, outcome)
    await settled(engine, outcome)
    assert len(await every_job(engine)) == 2


async def test_of_a_mixed_batch_only_the_accepted_events_are_created(engine: Engine) -> None:
    good, cancelled = await a_processing_job(engine), await a_processing_job(engine)
    await engine.cancel([cancelled.key])
    await engine.settle(
        [Complete(job.key, 1, None, (a_new_job(type=f"after-{job.key}"),)) for job in (cancelled, good)]
    )
    assert await leased_keys(engine, type=f"after-{cancelled.key}") == []
    assert len(await leased_keys(engine, type=f"after-{good.key}")) == 1


async def test_the_events_of_a_complete_are_deduplicated_like_any_job(engine: Engine) -> None:
    known = await a_pending_job(engine, type="next", dedupe_key="d")
    job = await a_processing_job(engine)
    await settled(engine, Complete(job.key, 1, None, (a_new_job(type="next", dedupe_key="d"),)))
    assert await leased_keys(engine, type="next") == [known.key]


async def test_the_events_of_a_complete_reach_every_group_of_their_type(engine: Engine) -> None:
    await engine.add_group("next", "audit")
    job = await a_processing_job(engine)
    await settled(engine, Complete(job.key, 1, None, (a_new_job(type="next"),)))
    [plain], [copy] = await leased_keys(engine, type="next"), await leased_keys(engine, type="next", group="audit")
    assert (await the_job(engine, copy)).copy_of == plain


async def test_an_event_runs_like_any_other_job(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine)
    await settled(engine, Complete(job.key, 1, None, (a_new_job(type="next", delay_ms=MINUTE_MS),)))
    assert await leased_keys(engine, type="next") == []
    clock.advance(ms=MINUTE_MS)
    [event] = (await asked(engine, type="next")).jobs
    assert (await settled(engine, Complete(event.key, event.attempt))).state is State.COMPLETED
