"""find in another order: due first among pending jobs, latest failure first among failed ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.core.outcome import Failed, Reject
from everwork.core.queries import JobFilter, Order, cursor_of
from everwork.core.states import State
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
    asked,
    settled,
)
from tests.stores import HOUR_MS, MINUTE_MS, SECOND_MS

if TYPE_CHECKING:
    from everwork.core.job import StoredJob
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

DUE = JobFilter(order=Order.DUE)
LATEST = JobFilter(order=Order.FAILED)


async def pages(engine: Engine, query: JobFilter, limit: int) -> list[list[StoredJob]]:
    """Every page of a list."""
    found, cursor = [], None
    while True:
        page = await engine.find(query, limit, cursor)
        found.append(page.jobs)
        cursor = page.next
        if cursor is None:
            return found


async def keys(engine: Engine, query: JobFilter, limit: int = 100) -> list[int]:
    """The keys of a whole list, in its order."""
    return [job.key for page in await pages(engine, query, limit) for job in page]


async def some_pending(engine: Engine, clock: VirtualClock) -> list[int]:
    """Pending jobs of every sort, in the order in which they are due; others stand between them."""
    late = await a_scheduled_job(engine, delay_ms=2 * HOUR_MS)
    soon = await a_scheduled_job(engine, delay_ms=HOUR_MS, type="other", priority=9)
    first = await a_pending_job(engine, priority=-3, tenant="acme", limit_key="k")
    clock.advance(seconds=1)
    second = await a_pending_job(engine, priority=7)
    third = await a_pending_job(engine, type="other", limit_key="k")
    await a_completed_job(engine, type="done")
    await a_cancelled_job(engine, type="done")
    await a_processing_job(engine, type="busy")
    retried = await a_processing_job(engine, type="tried")
    await settled(engine, Failed(retried.key, 1, "boom", backoff_ms=MINUTE_MS))
    clock.advance(seconds=1)
    return [first.key, second.key, third.key, retried.key, soon.key, late.key]


@pytest.mark.every_way
@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_pending_jobs_are_listed_as_they_become_due(engine: Engine, clock: VirtualClock, limit: int) -> None:
    expected = await some_pending(engine, clock)
    assert await keys(engine, DUE, limit) == expected


async def test_jobs_that_are_due_at_the_same_instant_are_listed_by_key(engine: Engine) -> None:
    created = await engine.create(
        [a_new_job(priority=n % 3, type=f"t{n % 2}", limit_key=f"k{n % 4}") for n in range(30)]
    )
    assert await keys(engine, DUE, 7) == [one.key for one in created]


async def test_scheduled_jobs_of_the_same_instant_are_listed_by_key(engine: Engine) -> None:
    created = await engine.create([a_new_job(delay_ms=SECOND_MS) for _ in range(30)])
    assert await keys(engine, DUE, 7) == [one.key for one in created]


async def test_the_other_filters_hold_in_every_order(engine: Engine, clock: VirtualClock) -> None:
    first, second, third, retried, soon, late = await some_pending(engine, clock)
    for query, expected in (
        (JobFilter(order=Order.DUE, type="other"), [third, soon]),
        (JobFilter(order=Order.DUE, tenants=("acme",)), [first]),
        (JobFilter(order=Order.DUE, due=True, states=frozenset([State.PENDING])), [first, second, third]),
        (JobFilter(order=Order.DUE, error_text="BOOM"), [retried]),
        (JobFilter(order=Order.DUE, states=frozenset([State.PENDING]), type=TYPE), [first, second, late]),
        (JobFilter(order=Order.DUE, states=frozenset([State.COMPLETED])), []),
        (JobFilter(order=Order.FAILED, states=frozenset([State.PENDING])), []),
        (JobFilter(order=Order.DUE, type="nothing"), []),
    ):
        assert await keys(engine, query, 2) == expected, query


async def some_dead(engine: Engine, clock: VirtualClock) -> list[int]:
    """Dead letters, the latest failure first; the job that failed last was created first."""
    early = await a_processing_job(engine, type="slow", lease_ms=HOUR_MS)
    dead = []
    for type in ("a", "b", "a"):
        dead.append((await a_dead_letter(engine, type=type)).key)
        clock.advance(seconds=1)
    rejected = await a_processing_job(engine, type="b")
    await settled(engine, Reject(rejected.key, 1, "nonsense"))
    clock.advance(seconds=1)
    await a_pending_job(engine)
    await settled(engine, Failed(early.key, 1, "late", final=True))
    return [early.key, rejected.key, *reversed(dead)]


@pytest.mark.every_way
@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_dead_letters_are_listed_by_their_latest_failure(engine: Engine, clock: VirtualClock, limit: int) -> None:
    expected = await some_dead(engine, clock)
    assert await keys(engine, LATEST, limit) == expected


async def test_dead_letters_of_one_type_are_listed_by_their_latest_failure(engine: Engine, clock: VirtualClock) -> None:
    _, rejected, last, second, first = await some_dead(engine, clock)
    assert await keys(engine, JobFilter(order=Order.FAILED, type="b"), 1) == [rejected, second]
    assert await keys(engine, JobFilter(order=Order.FAILED, type="a"), 1) == [last, first]


async def test_dead_letters_of_the_same_instant_are_listed_by_key(engine: Engine) -> None:
    jobs = [(await a_dead_letter(engine)).key for _ in range(30)]
    assert await keys(engine, LATEST, 7) == jobs[::-1]


async def test_a_dead_letter_that_failed_again_is_listed_by_its_latest_failure(
    engine: Engine, clock: VirtualClock
) -> None:
    first, second = await a_dead_letter(engine, type="a"), await a_dead_letter(engine, type="b")
    clock.advance(seconds=1)
    await engine.requeue([first.key])
    assert await keys(engine, LATEST) == [second.key]
    assert await a_failure(engine, "a") == first.key
    assert await keys(engine, LATEST) == [first.key, second.key]
    await engine.delete([second.key])
    assert await keys(engine, LATEST) == [first.key]


async def a_failure(engine: Engine, type: str) -> int:
    """Let the next job of a type fail for good."""
    [leased] = (await asked(engine, 1, type=type)).jobs
    await settled(engine, Failed(leased.key, leased.attempt, "again", final=True))
    return leased.key


@pytest.mark.parametrize("order", [Order.DUE, Order.FAILED])
async def test_what_leaves_and_what_comes_between_two_pages_does_not_disturb_the_others(
    engine: Engine, clock: VirtualClock, order: Order
) -> None:
    stage: Stage = a_scheduled_job if order is Order.DUE else a_dead_letter
    jobs = []
    for _ in range(6):
        jobs.append(await stage(engine))
        clock.advance(ms=1)
    listed = jobs if order is Order.DUE else jobs[::-1]
    page = await engine.find(JobFilter(order=order), 3)
    assert [job.key for job in page.jobs] == [job.key for job in listed[:3]]
    assert page.next == cursor_of(page.jobs[-1], order)
    gone = [listed[1].key, listed[2].key, listed[3].key]
    await (engine.cancel(gone) if order is Order.DUE else engine.requeue(gone))
    rest = await engine.find(JobFilter(order=order), 3, page.next)
    assert ([job.key for job in rest.jobs], rest.next) == ([job.key for job in listed[4:]], None)
