"""list against a naive filter over all jobs: whatever is asked for, every job that matches, once and in order."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

import pytest

from everwork.core.leasing import Demand
from everwork.core.outcome import Complete, Failed, Outcome, Reject, Release, Throw
from everwork.core.queries import JobFilter, Order, cursor_of
from everwork.core.states import State
from everwork.engines.rules import matches
from tests.factories import a_new_job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everwork.core.job import LeasedJob, StoredJob
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

pytestmark = pytest.mark.every_way

BATCH: Final = 130
BATCHES: Final = 10
"""Together more than stand in one bucket of Redis."""
FILTERS: Final = 90
LIMITS: Final = (7, 50, 200, 300, 1_000)
"""A look of Redis for 300 jobs and one more ends where a bucket does."""
TYPES: Final = ("email", "email-send", "e", "w1")
WORKERS: Final = ("w1", "email", "worker-2")
TENANTS: Final = ("<default>", "acme", "a", "aä")
CORRELATED: Final = (None, "c1", "email")
ERRORS: Final = ("boom 1", "Boom TWO", "timeout", "STRASSE", "straße")
TEXTS: Final = ("boom", "OO", "strasse", "t", "nowhere", "")
DEDUPED: Final = (None, None, None, "d1", "order-7")
VARIABLES: Final = ("{}", '{"to":"ann@example.org"}', '{"to":"Ann@example.org","n":7}', '{"name":"Jürgen 100%_"}')
VARIABLE_TEXTS: Final = ("ann@", "Ann@", '"n":7', "ürg", "0%_", "nowhere")


async def test_a_list_is_what_a_look_at_every_job_finds(engine: Engine, clock: VirtualClock) -> None:
    chance = Random(7)
    keys = list(dict.fromkeys([key for _ in range(BATCHES) for key in await a_batch(engine, clock, chance)]))
    found = [job for start in range(0, len(keys), 400) for job in await engine.get(keys[start : start + 400])]
    jobs = sorted((job for job in found if job is not None), key=lambda job: -job.key)
    assert {job.state for job in jobs} == set(State)
    for _ in range(FILTERS):
        wanted, limit = a_filter(chance, jobs), chance.choice(LIMITS)
        matching = [job for job in jobs if matches(job, wanted, clock.now_ms)]
        matching.sort(key=lambda job: cursor_of(job, wanted.order), reverse=wanted.order is not Order.DUE)
        expected = [job.key for job in matching]
        assert await paged(engine, wanted, limit) == expected, (wanted, limit)


async def a_batch(engine: Engine, clock: VirtualClock, chance: Random) -> list[int]:
    """Jobs in every stage of life."""
    created = await engine.create(
        [
            a_new_job(
                type=chance.choice(TYPES),
                tenant=chance.choice(TENANTS),
                limit_key=chance.choice([None, "k1"]),
                correlation_id=chance.choice(CORRELATED),
                dedupe_key=chance.choice(DEDUPED) if chance.random() < 0.2 else None,
                variables=chance.choice(VARIABLES),
                priority=chance.choice([0, 5]),
                delay_ms=chance.choice([0, 0, 500, 60_000]),
            )
            for _ in range(BATCH)
        ]
    )
    clock.advance(ms=chance.randint(0, 400))
    demands = [Demand(type, chance.choice(WORKERS), chance.randint(1, 40), 30_000) for type in TYPES]
    await engine.settle([_ended(job, chance) for job in (await engine.activate(demands)).jobs if chance.random() < 0.9])
    keys = [one.key for one in created]
    await engine.cancel(chance.sample(keys, 5))
    return keys


def _ended(job: LeasedJob, chance: Random) -> Outcome:
    error = chance.choice(ERRORS)
    outcomes: Sequence[Outcome] = (
        Complete(job.key, job.attempt),
        Failed(job.key, job.attempt, error, retries=chance.choice([0, 3])),
        Reject(job.key, job.attempt, error),
        Throw(job.key, job.attempt, "CODE", error),
        Release(job.key, job.attempt),
    )
    return chance.choice(outcomes)


def a_filter(chance: Random, jobs: Sequence[StoredJob]) -> JobFilter:
    """Some conditions; of times, those at which jobs were created."""
    instants = [chance.choice(jobs).created_at_ms + chance.randint(-1, 1) for _ in range(2)]
    return JobFilter(
        type=chance.choice(TYPES) if chance.random() < 0.4 else None,
        group="" if chance.random() < 0.2 else None,
        states=frozenset(chance.sample(list(State), chance.randint(0, 3))),
        tenants=tuple(chance.sample(TENANTS, chance.choice([0, 0, 1, 2]))),
        worker=chance.choice(WORKERS) if chance.random() < 0.3 else None,
        correlation_id=chance.choice(CORRELATED),
        created_after_ms=instants[0] if chance.random() < 0.2 else None,
        created_before_ms=instants[1] if chance.random() < 0.2 else None,
        error_text=chance.choice(TEXTS) if chance.random() < 0.4 else None,
        dedupe_key=chance.choice(DEDUPED) if chance.random() < 0.3 else None,
        variables_text=chance.choice(VARIABLE_TEXTS) if chance.random() < 0.3 else None,
        due=chance.random() < 0.15,
        order=chance.choice([Order.NEWEST, *Order]),
    )


async def paged(engine: Engine, wanted: JobFilter, limit: int) -> list[int]:
    """Every key, page by page."""
    page = await engine.find(wanted, limit)
    keys = [job.key for job in page.jobs]
    while page.next is not None:
        before = page.next
        page = await engine.find(wanted, limit, before)
        assert len(page.jobs) <= limit
        assert page.next is None or (page.next > before) == (wanted.order is Order.DUE)
        keys += [job.key for job in page.jobs]
    return keys
