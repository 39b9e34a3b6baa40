"""Full and empty lanes: claims skip them until they have capacity or work again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from everwork.core.outcome import Complete, Failed
from tests.conformance.failing import another, where_it_is_decided
from tests.conformance.test_lanes_turns import taken
from tests.conformance.test_limits import ENDS
from tests.conformance.test_sweep import swept
from tests.factories import LEASE_MS, TYPE, a_new_job, a_policy, leased_keys, settled

if TYPE_CHECKING:
    from everwork.core.outcome import Outcome
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

pytestmark = [where_it_is_decided, pytest.mark.every_way("redis-cluster")]

LANES: Final = ("a", "b", "c")
POLLS: Final = 3
"""An engine may need some polls until it knows which lanes to skip."""
Act = Callable[["Engine", "VirtualClock", int], Awaitable[object]]
"""What happens to the store, and to the job of lane `a`."""


async def full_lanes(engine: Engine, jobs: int = 2) -> int:
    """Fill lanes whose limit is one running job; returns the running job of the first lane."""
    await a_policy(engine, max_running_per_key=1)
    created = await engine.create([a_new_job(limit_key=lane) for lane in LANES for _ in range(jobs)])
    assert len(await taken(engine, 9)) == len(LANES)
    await nothing_to_claim(engine)
    return created[0].key


async def nothing_to_claim(engine: Engine) -> None:
    for _ in range(POLLS):
        assert await leased_keys(engine, 9) == []


@pytest.mark.parametrize(
    "outcome", [*ENDS, Failed(0, 1, "boom", backoff_ms=0)], ids=lambda outcome: type(outcome).__name__
)
async def test_the_end_of_an_attempt_brings_its_lane_back(engine: Engine, outcome: Outcome) -> None:
    running = await full_lanes(engine)
    await settled(engine, outcome._replace(key=running))
    assert len(await leased_keys(engine, 9)) == 1
    await nothing_to_claim(engine)


async def cancelled(engine: Engine, _: VirtualClock, running: int) -> None:
    await engine.cancel([running])


async def lapsed(engine: Engine, clock: VirtualClock, running: int) -> None:
    clock.advance(ms=LEASE_MS + 1)
    await engine.settle([])
    await swept(engine)


async def ended_while_there_was_no_limit(engine: Engine, _: VirtualClock, running: int) -> None:
    await engine.set_policy(TYPE, None)
    await settled(engine, Complete(running, 1))
    await a_policy(engine, max_running_per_key=1)


async def ended_on_another_engine(engine: Engine, _: VirtualClock, running: int) -> None:
    async with another(engine) as other:
        await settled(other, Complete(running, 1))


ROOM: Final[dict[str, tuple[Act, int]]] = {
    "a cancel": (cancelled, 1),
    "a lapse": (lapsed, len(LANES)),
    "an end while there was no limit": (ended_while_there_was_no_limit, 1),
    "an end on another engine": (ended_on_another_engine, 1),
}


@pytest.mark.parametrize("way", ROOM)
async def test_what_gives_room_brings_the_lane_back(engine: Engine, clock: VirtualClock, way: str) -> None:
    running = await full_lanes(engine)
    act, jobs = ROOM[way]
    await act(engine, clock, running)
    assert len(await leased_keys(engine, 9)) == jobs


async def test_a_higher_limit_brings_every_lane_back(engine: Engine) -> None:
    await full_lanes(engine, 3)
    await a_policy(engine, max_running_per_key=2)
    assert len(await taken(engine, 9)) == len(LANES)
    await nothing_to_claim(engine)


async def test_a_lower_limit_holds_for_lanes_that_had_room(engine: Engine) -> None:
    await a_policy(engine, max_running_per_key=2)
    await engine.create([a_new_job(limit_key=lane) for lane in LANES for _ in range(3)])
    assert len(await leased_keys(engine, 3)) == 3
    await a_policy(engine, max_running_per_key=1)
    await nothing_to_claim(engine)


async def created(engine: Engine, _: VirtualClock, done: int) -> None:
    await engine.create([a_new_job(limit_key="a")])


async def due(engine: Engine, clock: VirtualClock, done: int) -> None:
    await engine.create([a_new_job(limit_key="a", delay_ms=1_000)])
    await nothing_to_claim(engine)
    clock.advance(seconds=1)


async def rescheduled(engine: Engine, _: VirtualClock, done: int) -> None:
    [one] = await engine.create([a_new_job(limit_key="a", delay_ms=5_000)])
    await nothing_to_claim(engine)
    await engine.reschedule([one.key])


async def requeued(engine: Engine, _: VirtualClock, dead: int) -> None:
    await engine.requeue([dead])


async def requeued_while_it_waits(engine: Engine, _: VirtualClock, done: int) -> None:
    [one] = await engine.create([a_new_job(limit_key="a")])
    await leased_keys(engine)
    await settled(engine, Failed(one.key, 1, "boom", backoff_ms=5_000))
    await nothing_to_claim(engine)
    await engine.requeue([one.key], waiting=True)


async def loaded(engine: Engine, _: VirtualClock, dead: int) -> None:
    await engine.create([a_new_job(limit_key="a", delay_ms=60_000)])
    [record] = [one for one in await engine.dump(dead, 10) if one.job.run_at_ms > one.job.created_at_ms]
    job = replace(record.job, key=record.job.key + 1_000, run_at_ms=record.job.created_at_ms)
    await nothing_to_claim(engine)
    await engine.load([record._replace(job=job)])


WORK: Final[dict[str, Act]] = {
    "a create": created,
    "a job that is due": due,
    "a job that is rescheduled": rescheduled,
    "a dead letter that is requeued": requeued,
    "a waiting job that is requeued": requeued_while_it_waits,
    "a job from another store": loaded,
}


@pytest.mark.parametrize("way", WORK)
async def test_what_gives_work_brings_an_empty_lane_back(engine: Engine, clock: VirtualClock, way: str) -> None:
    dead = await full_lanes(engine, 1)
    await settled(engine, Failed(dead, 1, "boom", final=True))
    await nothing_to_claim(engine)
    await WORK[way](engine, clock, dead)
    assert len(await leased_keys(engine, 9)) == 1


async def test_a_full_lane_is_served_beside_lanes_without_a_limit_key(engine: Engine) -> None:
    running = await full_lanes(engine)
    await engine.create([a_new_job() for _ in range(4)])
    assert len(await taken(engine, 9)) == 4
    await nothing_to_claim(engine)
    await settled(engine, Complete(running, 1))
    assert len(await leased_keys(engine, 9)) == 1
