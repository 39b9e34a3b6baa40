"""get and list: every job as it stands, found by filters, met once by paging."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest

from everwork.core.limits import PAGE_BYTES_MAX
from everwork.core.outcome import Failed
from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.engines.portions import FIRST_STEP
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
    a_scheduled_job,
    settled,
    the_job,
)
from tests.stores import HOUR_MS, SECOND_MS

if TYPE_CHECKING:
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

STAGES: list[Stage] = [
    a_pending_job,
    a_scheduled_job,
    a_processing_job,
    a_completed_job,
    a_dead_letter,
    a_cancelled_job,
]


async def found(engine: Engine, wanted: JobFilter) -> list[int]:
    """The keys that a filter shows, newest first."""
    return [job.key for job in await every_job(engine, wanted)]


async def one_of_each(engine: Engine) -> dict[State, int]:
    """A job in every state, of different types, so that they do not mix."""
    made: list[Stage] = [a_pending_job, a_processing_job, a_completed_job, a_dead_letter, a_cancelled_job]
    jobs = [await stage(engine, type=f"type-{number}") for number, stage in enumerate(made)]
    return {job.state: job.key for job in jobs}


async def test_get_answers_in_the_order_of_the_request_and_none_for_the_unknown(engine: Engine) -> None:
    first, second = await a_pending_job(engine), await a_pending_job(engine)
    assert await engine.get([second.key, 999_999, first.key, second.key]) == [second, None, first, second]


async def test_getting_nothing_answers_nothing(engine: Engine) -> None:
    assert await engine.get([]) == []


@pytest.mark.parametrize("stage", STAGES)
async def test_list_shows_a_job_exactly_as_get_does(engine: Engine, stage: Stage) -> None:
    job = await stage(engine, variables='{"n":1}', headers='{"h":1}', limit_key="c", priority=3, correlation_id="x")
    assert await every_job(engine) == [job]


async def test_a_retried_job_is_listed_as_get_shows_it(engine: Engine) -> None:
    job = await a_processing_job(engine)
    again = await settled(engine, Failed(job.key, 1, "boom"))
    assert await every_job(engine) == [again]


async def test_an_empty_store_has_an_empty_page(engine: Engine) -> None:
    page = await engine.find(JobFilter(), 10)
    assert (page.jobs, page.next) == ([], None)


async def test_the_newest_key_comes_first(engine: Engine) -> None:
    keys = list((await one_of_each(engine)).values())
    assert await found(engine, JobFilter()) == sorted(keys, reverse=True)


@pytest.mark.parametrize("page", [1, 2, 3, 7, 100])
async def test_paging_meets_every_job_once_even_with_equal_timestamps(engine: Engine, page: int) -> None:
    created = await engine.create([a_new_job(tenant="ab"[n % 2], type="xyz"[n % 3]) for n in range(20)])
    await engine.cancel([job.key for job in created[::4]])
    keys = [job.key for job in await every_job(engine, page=page)]
    assert keys == sorted((job.key for job in created), reverse=True)


async def test_paging_goes_on_below_the_cursor_while_jobs_come_and_change(engine: Engine) -> None:
    created = [job.key for job in await engine.create([a_new_job() for _ in range(6)])]
    first = await engine.find(JobFilter(), 3)
    await engine.create([a_new_job() for _ in range(3)])
    await engine.cancel(created[:2])
    second = await engine.find(JobFilter(), 10, first.next)
    assert [job.key for job in first.jobs + second.jobs] == created[::-1]


async def test_a_page_has_at_most_its_limit(engine: Engine) -> None:
    await engine.create([a_new_job() for _ in range(5)])
    assert len((await engine.find(JobFilter(), 4)).jobs) == 4


@pytest.mark.parametrize("state", State)
async def test_jobs_are_found_by_their_state(engine: Engine, state: State) -> None:
    keys = await one_of_each(engine)
    assert await found(engine, JobFilter(states=frozenset({state}))) == [keys[state]]


async def test_several_states_may_be_asked_for(engine: Engine) -> None:
    keys = await one_of_each(engine)
    wanted = {State.PENDING, State.FAILED, State.CANCELLED}
    expected = sorted((keys[state] for state in wanted), reverse=True)
    assert await found(engine, JobFilter(states=frozenset(wanted))) == expected


@pytest.mark.parametrize("page", [1, 2, 5])
async def test_paging_within_a_state_meets_every_job_once(engine: Engine, page: int) -> None:
    created = [job.key for job in await engine.create([a_new_job(type="xyz"[n % 3]) for n in range(9)])]
    await engine.cancel(created[::2])
    jobs = await every_job(engine, JobFilter(states=frozenset({State.CANCELLED})), page)
    assert [job.key for job in jobs] == sorted(created[::2], reverse=True)


@pytest.mark.parametrize("stage", STAGES)
async def test_jobs_are_found_by_type_tenant_and_correlation(engine: Engine, stage: Stage) -> None:
    await stage(engine, type="other", tenant="other", correlation_id="other")
    job = await stage(engine, tenant="acme", correlation_id="c-1")
    for wanted in (JobFilter(type=TYPE), JobFilter(tenants=("acme",)), JobFilter(correlation_id="c-1")):
        assert await found(engine, wanted) == [job.key]


async def test_several_tenants_may_be_asked_for(engine: Engine) -> None:
    keys = [(await a_pending_job(engine, tenant=tenant)).key for tenant in ("a", "b", "c")]
    assert await found(engine, JobFilter(tenants=("c", "a"))) == [keys[2], keys[0]]


@pytest.mark.parametrize("stage", [a_processing_job, a_completed_job, a_dead_letter])
async def test_jobs_are_found_by_their_worker(engine: Engine, stage: Stage) -> None:
    await stage(engine, worker="w1")
    job = await stage(engine, worker="w2")
    assert await found(engine, JobFilter(worker="w2")) == [job.key]


async def test_jobs_are_found_by_the_time_of_their_creation(engine: Engine, clock: VirtualClock) -> None:
    keys = []
    for _ in range(4):
        keys.append((await a_pending_job(engine)).key)
        clock.advance(seconds=10)
    start = clock.now_ms - 40_000
    assert await found(engine, JobFilter(created_after_ms=start + 5_000)) == [keys[3], keys[2], keys[1]]
    assert await found(engine, JobFilter(created_before_ms=start + 25_000)) == [keys[2], keys[1], keys[0]]
    both = JobFilter(created_after_ms=start + 5_000, created_before_ms=start + 15_000)
    assert await found(engine, both) == [keys[1]]


async def test_jobs_are_found_by_a_part_of_their_error(engine: Engine) -> None:
    await a_dead_letter(engine, error="connection reset")
    job = await a_dead_letter(engine, error="no such address: 100%_ann@example.org")
    assert await found(engine, JobFilter(error_text="100%_ann@")) == [job.key]
    assert await found(engine, JobFilter(error_text="0%ann")) == []


async def test_jobs_that_will_be_retried_are_found_by_their_error_too(engine: Engine) -> None:
    job = await a_processing_job(engine)
    await settled(engine, Failed(job.key, 1, "connection reset"))
    await a_pending_job(engine)
    assert await found(engine, JobFilter(error_text="reset")) == [job.key]


async def test_filters_restrict_together(engine: Engine) -> None:
    await a_completed_job(engine, tenant="acme")
    await a_dead_letter(engine, tenant="birch")
    job = await a_dead_letter(engine, tenant="acme")
    await a_dead_letter(engine, tenant="acme", type="other")
    wanted = JobFilter(type=TYPE, tenants=("acme",), states=frozenset({State.FAILED}))
    assert await found(engine, wanted) == [job.key]


async def test_an_unknown_type_or_tenant_finds_nothing(engine: Engine) -> None:
    await a_pending_job(engine)
    assert await found(engine, JobFilter(type="nobody")) == []
    assert await found(engine, JobFilter(tenants=("nobody",))) == []


async def test_the_copies_of_a_group_are_found_by_it(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")
    job = await a_pending_job(engine)
    [copy] = await found(engine, JobFilter(group="audit"))
    assert ((await the_job(engine, copy)).copy_of, await found(engine, JobFilter())) == (job.key, [copy, job.key])


async def test_what_was_written_into_a_job_cannot_change_the_question(engine: Engine) -> None:
    name = "'; DROP TABLE ew_job; -- \" % _ \\"
    job = await a_pending_job(engine, type=name, tenant=name, correlation_id=name, limit_key=name, dedupe_key=name)
    assert await found(engine, JobFilter(type=name, tenants=(name,), correlation_id=name)) == [job.key]
    assert await found(engine, JobFilter(dedupe_key=name)) == [job.key]


# Only what is due ---------------------------------------------------------------------------------


async def test_only_pending_jobs_whose_time_has_come_are_due(engine: Engine, clock: VirtualClock) -> None:
    jobs = await one_of_each(engine)
    soon = await a_scheduled_job(engine, delay_ms=SECOND_MS)
    later = await a_scheduled_job(engine, delay_ms=HOUR_MS)
    due = JobFilter(due=True)
    assert await found(engine, due) == [jobs[State.PENDING]]
    clock.advance(ms=SECOND_MS)
    assert await found(engine, due) == [soon.key, jobs[State.PENDING]]
    clock.advance(ms=HOUR_MS)
    assert await found(engine, due) == [later.key, soon.key, jobs[State.PENDING]]


async def test_a_job_that_was_rescheduled_is_no_longer_due(engine: Engine) -> None:
    jobs = [await a_pending_job(engine) for _ in range(3)]
    await engine.reschedule([jobs[1].key], delay_ms=HOUR_MS)
    assert await found(engine, JobFilter(due=True)) == [jobs[2].key, jobs[0].key]


async def test_due_restricts_together_with_the_other_filters(engine: Engine) -> None:
    job = await a_pending_job(engine, tenant="acme")
    await a_scheduled_job(engine, tenant="acme")
    await a_pending_job(engine, type="other", tenant="acme")
    await a_pending_job(engine, tenant="birch")
    wanted = JobFilter(type=TYPE, tenants=("acme",), states=frozenset({State.PENDING, State.FAILED}), due=True)
    assert await found(engine, wanted) == [job.key]


async def test_no_job_is_due_in_a_state_other_than_pending(engine: Engine) -> None:
    await one_of_each(engine)
    assert await found(engine, JobFilter(states=frozenset({State.FAILED}), due=True)) == []


async def test_jobs_that_are_due_are_found_behind_many_scheduled_ones(engine: Engine) -> None:
    first, second = [await a_pending_job(engine) for _ in range(2)]
    await engine.create([a_new_job(delay_ms=HOUR_MS) for _ in range(2_500)])
    assert [job.key for job in (await engine.find(JobFilter(due=True), 1)).jobs] == [second.key]
    page = await engine.find(JobFilter(due=True), 1, second.key)
    assert ([job.key for job in page.jobs], page.next) == ([first.key], None)


LARGE = '{"text":"' + "x" * 1_000_000 + '"}'


async def test_a_page_of_large_jobs_ends_before_it_fills_the_memory(engine: Engine) -> None:
    keys = [created.key for created in await engine.create([a_new_job(variables=LARGE)] * 40)]
    page = await engine.find(JobFilter(), 1_000)
    met = [job.key for job in page.jobs]
    assert 0 < len(met) <= PAGE_BYTES_MAX // len(LARGE) + 1 + FIRST_STEP
    while page.next is not None:
        page = await engine.find(JobFilter(), 1_000, page.next)
        met += [job.key for job in page.jobs]
    assert met == keys[::-1]


async def test_a_search_that_finds_nothing_holds_few_jobs_at_a_time(engine: Engine) -> None:
    await engine.create([a_new_job(variables=LARGE)] * 40)
    tracemalloc.start()
    try:
        for wanted in (
            JobFilter(worker="nobody"),
            JobFilter(tenants=("nobody",)),
            JobFilter(error_text="nothing"),
            JobFilter(dedupe_key="nothing"),
            JobFilter(variables_text="nothing"),
        ):
            assert (await engine.find(wanted, 100)).jobs == []
        assert tracemalloc.get_traced_memory()[1] < 2.5 * FIRST_STEP * len(LARGE)
    finally:
        tracemalloc.stop()
