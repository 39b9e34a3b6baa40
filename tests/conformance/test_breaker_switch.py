"""People may open and reset a type's breaker, whatever its policy says."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from everwork.core.breaker import BreakerState
from everwork.core.outcome import Complete, Failed
from everwork.core.queries import Reason
from tests.conformance.failing import RULE, a_half_open_breaker, a_probe, an_open_breaker, failures, leased, standing
from tests.conformance.test_registry import info_of
from tests.factories import TYPE, a_new_job, a_pending_job, a_policy, asked, leased_keys, settled
from tests.stores import HOUR_MS, MINUTE_MS

if TYPE_CHECKING:
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


async def test_nothing_starts_while_the_breaker_is_open_by_hand(engine: Engine, clock: VirtualClock) -> None:
    job = await a_pending_job(engine)
    await engine.open_breaker(TYPE, HOUR_MS)
    assert await leased_keys(engine) == []
    why = await engine.explain(job.key)
    assert why is not None
    assert (why.reason, why.until_ms) == (Reason.BREAKER, clock.now_ms + HOUR_MS)


async def test_a_type_shows_how_its_breaker_stands(engine: Engine, clock: VirtualClock) -> None:
    await a_pending_job(engine)
    assert await standing(engine) == (CLOSED, 0)
    await engine.open_breaker(TYPE, MINUTE_MS)
    info = await info_of(engine)
    assert (info.breaker, info.breaker_open_until_ms) == (OPEN, clock.now_ms + MINUTE_MS)
    clock.advance(ms=MINUTE_MS)
    info = await info_of(engine)
    assert (info.breaker, info.breaker_open_until_ms) == (HALF_OPEN, None)


async def test_a_breaker_may_be_opened_before_the_type_s_first_job(engine: Engine) -> None:
    await engine.open_breaker(TYPE, MINUTE_MS)
    await a_pending_job(engine)
    assert await leased_keys(engine) == []


async def test_without_a_rule_the_probe_decides_by_the_usual_one(engine: Engine, clock: VirtualClock) -> None:
    await engine.create([a_new_job() for _ in range(3)])
    await engine.open_breaker(TYPE, HOUR_MS)
    clock.advance(ms=HOUR_MS)
    probe = await a_probe(engine)
    await settled(engine, Failed(probe.key, 1, "boom", final=True))
    assert (await info_of(engine)).breaker_open_until_ms == clock.now_ms + MINUTE_MS
    clock.advance(ms=MINUTE_MS)
    probe = await a_probe(engine)
    await settled(engine, Complete(probe.key, 1))
    assert await standing(engine) == (CLOSED, 0)
    assert len(await leased_keys(engine)) == 1


async def test_opening_an_open_breaker_counts_from_now(engine: Engine, clock: VirtualClock) -> None:
    await an_open_breaker(engine)
    clock.advance(seconds=30)
    await engine.open_breaker(TYPE, 10_000)
    assert (await info_of(engine)).breaker_open_until_ms == clock.now_ms + 10_000


async def test_a_probe_that_runs_when_the_breaker_is_opened_by_hand_closes_nothing(
    engine: Engine, clock: VirtualClock
) -> None:
    await a_half_open_breaker(engine, clock)
    probe = await a_probe(engine)
    await engine.open_breaker(TYPE, HOUR_MS)
    await settled(engine, Complete(probe.key, 1))
    assert (await info_of(engine)).breaker_open_until_ms == clock.now_ms + HOUR_MS
    assert await leased_keys(engine) == []


async def test_a_reset_breaker_lets_jobs_start_at_once(engine: Engine) -> None:
    await an_open_breaker(engine)
    job = await a_pending_job(engine)
    assert await engine.reset_breaker(TYPE)
    assert await standing(engine) == (CLOSED, 0)
    assert await leased_keys(engine) == [job.key]


async def test_a_reset_lets_everything_start_beside_a_probe(engine: Engine, clock: VirtualClock) -> None:
    keys = await a_half_open_breaker(engine, clock)
    probe = await a_probe(engine)
    assert await engine.reset_breaker(TYPE)
    assert await leased_keys(engine) == keys[1:]
    await settled(engine, Failed(probe.key, 1, "boom"))
    assert await standing(engine) == (CLOSED, 1)


async def test_resetting_a_closed_breaker_says_so_and_forgets_its_failures(engine: Engine) -> None:
    await a_policy(engine, **RULE)
    await failures(engine, 2)
    assert not await engine.reset_breaker(TYPE)
    assert await standing(engine) == (CLOSED, 0)
    assert not await engine.reset_breaker("never-seen")
    assert "never-seen" not in [info.type for info in await engine.types()]


async def test_a_reset_breaker_wakes_who_waits_for_the_type(engine: Engine) -> None:
    await a_pending_job(engine)
    await engine.open_breaker(TYPE, MINUTE_MS)
    await engine.wait([TYPE], 1)  # Who waits for the first time may be sent to look at once.
    mark = engine.mark()
    assert (await asked(engine)).jobs == []
    waiting = asyncio.create_task(engine.wait([TYPE], 10_000, mark))
    await engine.reset_breaker(TYPE)
    assert await waiting


async def test_the_breakers_of_other_types_stay_as_they_are(engine: Engine, clock: VirtualClock) -> None:
    await leased(engine, type="other")
    await engine.open_breaker(TYPE, MINUTE_MS)
    assert not await engine.reset_breaker("other")
    assert await standing(engine, "other") == (CLOSED, 0)
    assert (await info_of(engine)).breaker_open_until_ms == clock.now_ms + MINUTE_MS
