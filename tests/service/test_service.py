"""The use cases: long poll, results, changes, and upkeep that goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from everwork.aio.loops import BackgroundLoop
from everwork.core.job import NewJob
from everwork.core.leasing import Demand, Lease, LeaseStatus
from everwork.core.limits import API_KEY_KEEP_MS
from everwork.core.outcome import Complete, Failed
from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.engines.contract import Engine
from everwork.exceptions import EngineUnavailable, InvalidInput, JobFailed, JobNotFound, ResultTimeout, WrongState
from everwork.service.access.keys import KeyRing
from everwork.service.jobs import in_process
from everwork.service.result_waiter import READ_BYTES_MAX
from everwork.service.service import JobService
from tests.app.waiting import DEADLINE_S, until
from tests.factories import LEASE_MS, TYPE, a_completed_job, a_dead_letter, a_pending_job, a_processing_job, the_job
from tests.stores import SECOND_MS, VirtualClock

pytestmark = pytest.mark.every_engine

LONG_MS = 600_000
"""Longer than any test: what waits so long is woken, or fails at its deadline."""
DEMAND = Demand(TYPE, "w1", 10)


async def begun(*tasks: asyncio.Task[Any]) -> None:
    """Let tasks run until they wait."""
    await asyncio.wait(tasks, timeout=0.05)


async def test_a_wait_answers_at_once_when_there_is_work(service: JobService, engine: Engine) -> None:
    job = await a_pending_job(engine)
    leased = await asyncio.wait_for(service.activate(DEMAND, LONG_MS), DEADLINE_S)
    assert [job.key for job in leased] == [job.key]


async def test_a_wait_ends_when_a_job_is_created_meanwhile(service: JobService) -> None:
    waiting = asyncio.create_task(service.activate(DEMAND, LONG_MS))
    await begun(waiting)
    [created] = await service.create([NewJob(TYPE)])
    leased = await asyncio.wait_for(waiting, DEADLINE_S)
    assert [job.key for job in leased] == [created.key]


async def test_a_wait_ends_when_a_scheduled_job_becomes_due(service: JobService, clock: VirtualClock) -> None:
    [created] = await service.create([NewJob(TYPE, delay_ms=60 * SECOND_MS)])
    waiting = asyncio.create_task(service.activate(DEMAND, LONG_MS))
    await begun(waiting)
    assert not waiting.done()
    clock.advance(seconds=60)
    leased = await asyncio.wait_for(waiting, DEADLINE_S)
    assert [job.key for job in leased] == [created.key]


async def test_a_caller_without_work_is_back_after_the_time_that_it_may_wait(service: JobService) -> None:
    for wait_ms in (0, 20):
        assert await asyncio.wait_for(service.activate(DEMAND, wait_ms), DEADLINE_S) == []


async def test_jobs_of_other_types_do_not_end_the_wait(service: JobService) -> None:
    waiting = asyncio.create_task(service.activate(DEMAND, LONG_MS))
    await begun(waiting)
    await service.create([NewJob("other")])
    await begun(waiting)
    assert not waiting.done()
    waiting.cancel()


async def test_many_waiting_callers_get_each_job_once(service: JobService) -> None:
    demand = Demand(TYPE, "w1", 1)
    waiting = [asyncio.create_task(service.activate(demand, LONG_MS)) for _ in range(5)]
    await begun(*waiting)
    created = await service.create([NewJob(TYPE)] * 5)
    activations = await asyncio.wait_for(asyncio.gather(*waiting), DEADLINE_S)
    keys = [job.key for jobs in activations for job in jobs]
    assert sorted(keys) == [one.key for one in created]


async def test_what_was_leased_for_a_caller_who_has_gone_is_handed_back_uncounted(
    service: JobService, engine: Engine
) -> None:
    job = await a_pending_job(engine)
    caller = asyncio.create_task(service.activate(DEMAND, LONG_MS))
    await asyncio.sleep(0)  # The demand is on its way, its answer is not here.
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait({caller})

    async def is_back() -> bool:
        found = await the_job(engine, job.key)
        return found.attempt == 1 and found.state is State.PENDING and not service._releases

    await until(is_back)
    assert caller.cancelled()
    assert (await the_job(engine, job.key)).attempts == 0


async def test_close_waits_for_what_is_handed_back(engine: Engine) -> None:
    service = JobService(engine, "holder")
    job = await a_pending_job(engine)
    caller = asyncio.create_task(service.activate(DEMAND, LONG_MS))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait({caller})
    await service.close()
    await engine.open()
    after = await the_job(engine, job.key)
    assert (after.state, after.attempts) == (State.PENDING, 0)


async def test_result_is_there_as_soon_as_the_job_has_finished(service: JobService, engine: Engine) -> None:
    job = await a_processing_job(engine)
    waiting = asyncio.create_task(service.result(job.key, None))
    await begun(waiting)
    await service.settle([Complete(job.key, job.attempt, '{"sent":true}')])
    assert await asyncio.wait_for(waiting, DEADLINE_S) == '{"sent":true}'


async def test_result_goes_on_waiting_through_a_retry(service: JobService, engine: Engine) -> None:
    job = await a_processing_job(engine)
    waiting = asyncio.create_task(service.result(job.key, None))
    await begun(waiting)
    await service.settle([Failed(job.key, job.attempt, "boom", backoff_ms=0)])
    [again] = await service.activate(DEMAND)
    assert not waiting.done()
    await service.settle([Complete(again.key, again.attempt, "2")])
    assert await asyncio.wait_for(waiting, DEADLINE_S) == "2"


async def test_result_of_a_failure_is_an_error_at_once(service: JobService, engine: Engine) -> None:
    job = await a_processing_job(engine)
    waiting = asyncio.create_task(service.result(job.key, None))
    await begun(waiting)
    await service.settle([Failed(job.key, job.attempt, "boom", final=True)])
    with pytest.raises(JobFailed, match="failed: boom"):
        await asyncio.wait_for(waiting, DEADLINE_S)


async def test_result_of_a_job_deleted_meanwhile_is_not_found(service: JobService, engine: Engine) -> None:
    job = await a_completed_job(engine)
    await in_process(service).delete(job.key)
    with pytest.raises(JobNotFound):
        await service.result(job.key, None)


async def test_result_times_out(service: JobService, engine: Engine) -> None:
    job = await a_pending_job(engine)
    with pytest.raises(ResultTimeout):
        await asyncio.wait_for(service.result(job.key, 0.01), DEADLINE_S)


Change = Callable[[JobService, int], Awaitable[Any]]
WRONG: list[tuple[str, Change]] = [
    ("retries", lambda service, key: in_process(service).set_retries(key, 101)),
    ("retries", lambda service, key: in_process(service).set_retries(key, -1)),
    ("retries", lambda service, key: in_process(service).set_retries(key, True)),
    ("priority", lambda service, key: in_process(service).set_priority(key, 512)),
    ("priority", lambda service, key: in_process(service).set_priority(key, -513)),
    ("delay_ms", lambda service, key: in_process(service).reschedule(key, delay_ms=-1)),
    ("delay_ms", lambda service, key: in_process(service).reschedule(key, delay_ms=2**63)),
    ("run_at_ms", lambda service, key: in_process(service).reschedule(key, run_at_ms=-1)),
    ("run_at_ms", lambda service, key: in_process(service).reschedule(key, run_at_ms=2**63)),
    ("reason", lambda service, key: in_process(service).cancel(key, "x" * 8_193)),
    ("reason", lambda service, key: in_process(service).cancel(key, "\udcff")),
    ("reason", lambda service, key: in_process(service).cancel(key, 5)),  # type: ignore[arg-type]
    ("limit", lambda service, _: service.find(JobFilter(), 0)),
    ("limit", lambda service, _: service.find(JobFilter(), 1_001)),
    ("hours", lambda service, _: service.stats(0)),
    ("hours", lambda service, _: service.stats(721)),
    ("hours", lambda service, _: service.measures(721)),
    ("key", lambda service, _: service.get(0)),
    ("key", lambda service, _: in_process(service).delete(2**63)),
    ("timeout", lambda service, key: service.result(key, -1)),
    ("jobs", lambda service, _: service.create([NewJob(TYPE)] * 10_001)),
]


@pytest.mark.parametrize(("field", "change"), WRONG, ids=[field for field, _ in WRONG])
async def test_a_wrong_value_is_refused_by_name_and_changes_nothing(
    service: JobService, engine: Engine, field: str, change: Change
) -> None:
    job = await a_pending_job(engine)
    with pytest.raises(InvalidInput, match=rf"^{field}: must "):
        await change(service, job.key)
    assert await the_job(engine, job.key) == job


async def test_changes_answer_the_state_in_which_the_job_was_found(service: JobService, engine: Engine) -> None:
    job = await a_processing_job(engine)
    assert await in_process(service).cancel(job.key) is State.PROCESSING
    assert await in_process(service).cancel(job.key) is State.CANCELLED
    assert await in_process(service).delete(job.key) is State.CANCELLED


async def test_zero_retries_of_a_pending_job_are_refused_with_advice(service: JobService, engine: Engine) -> None:
    job = await a_pending_job(engine)
    with pytest.raises(WrongState, match="cancel it instead"):
        await in_process(service).set_retries(job.key, 0)


async def test_set_retries_answers_the_previous_number(service: JobService, engine: Engine) -> None:
    job = await a_pending_job(engine)
    assert await in_process(service).set_retries(job.key, 2) == 5
    assert (await service.get(job.key)).retries == 2


async def test_requeue_answers_failed(service: JobService, engine: Engine) -> None:
    job = await a_dead_letter(engine)
    assert await in_process(service).requeue(job.key) is State.FAILED


async def test_list_fills_its_page_however_far_it_must_look(service: JobService, engine: Engine) -> None:
    await service.create([NewJob(TYPE, correlation_id="rare" if n % 40 == 0 else None) for n in range(200)])
    page = await service.find(JobFilter(correlation_id="rare"), 3)
    assert [job.key for job in page.jobs] == [161, 121, 81]
    assert page.next is not None


async def test_upkeep_takes_lapsed_leases_away(engine: Engine, clock: VirtualClock) -> None:
    service = JobService(engine, "holder")
    job = await a_processing_job(engine)
    clock.advance(seconds=31)
    await service.open()

    async def has_lapsed() -> bool:
        return (await the_job(engine, job.key)).state is State.PENDING

    await until(has_lapsed)
    await service.close()


async def test_upkeep_of_a_service_deletes_unused_types_and_keys_that_ended_long_ago(
    engine: Engine, clock: VirtualClock
) -> None:
    service = JobService(engine, "holder")
    ring = KeyRing(engine, clock=clock)
    await ring.create("expiring", ["jobs"], expires_at_ms=clock() + SECOND_MS)
    await engine.activate([Demand("asked-for-once", "w1", 1)])
    clock.advance(ms=2 * API_KEY_KEEP_MS)
    await service.open()
    service._forget_at = 0.0  # Not only some time after the start.

    async def are_gone() -> bool:
        return not await engine.types() and not await ring.list()

    await until(are_gone)
    await service.close()


async def test_a_background_loop_goes_on_after_an_error() -> None:
    ticks: list[int] = []
    third = asyncio.Event()

    async def tick() -> bool:
        ticks.append(len(ticks))
        if len(ticks) == 3:
            third.set()
            return False
        raise OSError("for a moment")

    loop = BackgroundLoop("test", tick, 0.001)
    loop.start()
    await asyncio.wait_for(third.wait(), DEADLINE_S)
    await loop.stop()
    assert loop.errors == 2


async def test_a_background_loop_that_lost_the_engine_tries_again_soon_whatever_its_turn() -> None:
    ticks = 0
    back = asyncio.Event()

    async def tick() -> bool:
        nonlocal ticks
        ticks += 1
        if ticks < 3:
            raise EngineUnavailable("for a moment")
        back.set()
        return False

    loop = BackgroundLoop("test", tick, 3_600)
    loop.start()
    await asyncio.wait_for(back.wait(), DEADLINE_S)
    await loop.stop()
    assert loop.errors == 2


async def test_a_background_loop_that_is_told_to_go_on_does_not_sleep() -> None:
    ticks = 0
    enough = asyncio.Event()

    async def tick() -> bool:
        nonlocal ticks
        ticks += 1
        if ticks == 5:
            enough.set()
        return ticks < 5

    loop = BackgroundLoop("test", tick, 3_600)
    loop.start()
    await asyncio.wait_for(enough.wait(), DEADLINE_S)
    await asyncio.wait_for(loop.stop(), DEADLINE_S)
    assert ticks == 5


async def test_the_stop_of_a_background_loop_waits_for_the_tick_under_way() -> None:
    begun, release, ended = asyncio.Event(), asyncio.Event(), False

    async def tick() -> bool:
        nonlocal ended
        begun.set()
        await release.wait()
        ended = True
        return True

    loop = BackgroundLoop("test", tick, 3_600)
    loop.start()
    await begun.wait()
    stopping = asyncio.create_task(loop.stop())
    await asyncio.wait({stopping}, timeout=0)
    release.set()
    await asyncio.wait_for(stopping, DEADLINE_S)
    assert ended


async def test_a_background_loop_that_never_started_can_be_stopped() -> None:
    async def tick() -> bool:
        return False

    await BackgroundLoop("test", tick, 1).stop()


async def test_a_page_of_large_jobs_ends_early_and_paging_on_meets_them_all(service: JobService) -> None:
    large = NewJob(TYPE, variables='{"x":"' + "x" * 900_000 + '"}')
    created = [one.key for _ in range(6) for one in await service.create([large] * 10)]
    first = await service.find(JobFilter(), 1_000)
    assert 10 <= len(first.jobs) < 60
    met, cursor = [job.key for job in first.jobs], first.next
    while cursor is not None:
        page = await service.find(JobFilter(), 1_000, cursor)
        met += [job.key for job in page.jobs]
        cursor = page.next
    assert met == created[::-1]


async def test_many_who_wait_for_results_share_a_look(service: JobService, engine: Engine) -> None:
    created = await service.create([NewJob(TYPE)] * 30)
    leased = await service.activate(DEMAND._replace(limit=30))
    waiting = [asyncio.create_task(service.result(one.key, None)) for one in created]
    await until(lambda: len(service._result_waiter._waiters) == 30)
    looks = 0
    get = engine.get

    async def counted(keys: Any) -> Any:
        nonlocal looks
        looks += 1
        return await get(keys)

    engine.get = counted  # type: ignore[method-assign]
    await service.settle([Complete(job.key, job.attempt, str(job.key)) for job in leased])
    assert await asyncio.wait_for(asyncio.gather(*waiting), DEADLINE_S) == [str(one.key) for one in created]
    assert looks < 30
    assert not service._result_waiter._waiters


async def test_those_who_wait_for_large_jobs_read_a_few_at_a_time(service: JobService) -> None:
    large = '{"text": "%s"}' % ("x" * 1_000_000)
    created = await service.create([NewJob(TYPE, large)] * 12)
    waiting = [asyncio.create_task(service.result(one.key, None)) for one in created]
    await until(lambda: service._result_waiter._read_max == READ_BYTES_MAX // 1_000_013)
    leased = await service.activate(DEMAND._replace(limit=12))
    await service.settle([Complete(job.key, job.attempt) for job in leased])
    assert await asyncio.wait_for(asyncio.gather(*waiting), DEADLINE_S) == [None] * 12


async def test_a_result_that_nobody_waits_for_any_more_is_forgotten(service: JobService, engine: Engine) -> None:
    job = await a_processing_job(engine)
    waiting = asyncio.create_task(service.result(job.key, None))
    await until(lambda: service._result_waiter._waiters)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert not service._result_waiter._waiters


# Leases -----------------------------------------------------------------------------------------------


def let_extends_fail(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is away whenever a lease is to be extended."""

    async def extend(_leases: Any, _lease_ms: int) -> list[LeaseStatus]:
        raise EngineUnavailable("away")

    monkeypatch.setattr(engine, "extend", extend)


async def two_lapsed(engine: Engine, clock: VirtualClock) -> list[list[Lease]]:
    """The lapsed leases of two workers."""
    jobs = [await a_processing_job(engine) for _ in range(2)]
    clock.advance(ms=LEASE_MS)
    await engine.sweep("sweeper")
    return [[Lease(job.key, job.attempt)] for job in jobs]


async def test_after_an_outage_the_lapsed_leases_of_every_worker_are_taken_back(
    service: JobService, engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as away:
        let_extends_fail(engine, away)
        with pytest.raises(EngineUnavailable):
            await service.extend_all([Lease(1, 1)], LEASE_MS)
    leases = await two_lapsed(engine, clock)
    assert [await service.extend_all(one, LEASE_MS) for one in leases] == [[LeaseStatus.HELD]] * 2


async def test_without_an_outage_a_lapsed_lease_stays_lost_also_while_others_are_extended(
    service: JobService, engine: Engine, clock: VirtualClock
) -> None:
    leases = await two_lapsed(engine, clock)
    statuses = await asyncio.gather(*(service.extend_all(one, LEASE_MS) for one in leases))
    assert statuses == [[LeaseStatus.LOST]] * 2
