"""Limits through a long mix of everything that can happen: each demand gets exactly what there is room for."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

from everwork.core.outcome import Complete, Failed, Reject, Release, Retry, Throw
from everwork.core.states import State
from tests.conformance.failing import where_it_is_decided
from tests.conformance.observe import every_job
from tests.conformance.test_lanes_turns import taken
from tests.conformance.test_sweep import swept
from tests.factories import LEASE_MS, TYPE, a_new_job, a_policy

if TYPE_CHECKING:
    from everwork.core.job import StoredJob
    from everwork.core.outcome import Outcome
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

pytestmark = where_it_is_decided

ROUNDS = 20
ALL, PER_KEY = 6, 2
LANES = [("a", "x"), ("a", "y"), ("a", None), ("b", "x"), ("b", None)]


def lane(job: StoredJob) -> tuple[str, str | None]:
    return job.tenant, job.limit_key


async def room(engine: Engine, now_ms: int) -> int:
    """How many jobs may start, by what anyone can see."""
    jobs = await every_job(engine)
    running = Counter(lane(job) for job in jobs if job.state is State.PROCESSING)
    due = Counter(lane(job) for job in jobs if job.state is State.PENDING and job.run_at_ms <= now_ms)
    free = [min(due[one], PER_KEY - running[one]) if one[1] else due[one] for one in LANES]
    return min(sum(free), ALL - running.total())


def some_end(chance: random.Random, job: StoredJob) -> Outcome:
    key, attempt = job.key, job.attempt
    ends: list[Outcome] = [
        Complete(key, attempt),
        Failed(key, attempt, "boom", backoff_ms=chance.choice([0, 1_000])),
        Retry(key, attempt, delay_ms=0),
        Release(key, attempt),
        Reject(key, attempt),
        Throw(key, attempt, "E42"),
    ]
    return chance.choice(ends)


async def something_ends(engine: Engine, clock: VirtualClock, chance: random.Random) -> None:
    """Some of the running jobs end, in one way or another."""
    running = [job for job in await every_job(engine) if job.state is State.PROCESSING]
    some = chance.sample(running, chance.randint(0, len(running)))
    if chance.random() < 0.15:
        clock.advance(ms=LEASE_MS + 1)
        await swept(engine)
    elif chance.random() < 0.2:
        await engine.cancel([job.key for job in some])
    else:
        await engine.settle([some_end(chance, job) for job in some])


async def test_through_any_mix_each_demand_gets_exactly_what_there_is_room_for(
    engine: Engine, clock: VirtualClock
) -> None:
    await a_policy(engine, type=TYPE, max_running=ALL, max_running_per_key=PER_KEY)
    chance = random.Random(6)
    for _ in range(ROUNDS):
        lanes = chance.choices(LANES, k=chance.randint(0, 4))
        await engine.create([a_new_job(tenant=tenant, limit_key=key) for tenant, key in lanes])
        wanted, allowed = chance.randint(1, 8), await room(engine, clock.now_ms)
        assert len(await taken(engine, wanted)) == min(wanted, allowed)
        await something_ends(engine, clock, chance)
