"""A type's breaker: nothing starts while it is open, everybody can see it, and it can be reset."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from everwork.engines.values import Reason
from tests.conformance.breakers import open_breaker
from tests.conformance.test_registry import info_of
from tests.factories import TYPE, a_pending_job, asked, leased_keys
from tests.stores import MINUTE_MS

if TYPE_CHECKING:
    from pathlib import Path

    from everwork.engines.base import Engine
    from tests.stores import VirtualClock


async def test_nothing_starts_while_the_breaker_is_open(
    engine: Engine, engine_name: str, tmp_path: Path, clock: VirtualClock
) -> None:
    job = await a_pending_job(engine)
    open_breaker(engine_name, tmp_path, TYPE, clock.now_ms + MINUTE_MS)
    assert await leased_keys(engine) == []
    explained = await engine.explain(job.key)
    assert explained is not None
    assert (explained.reason, explained.until_ms) == (Reason.BREAKER, clock.now_ms + MINUTE_MS)


async def test_a_type_shows_until_when_its_breaker_is_open(
    engine: Engine, engine_name: str, tmp_path: Path, clock: VirtualClock
) -> None:
    await a_pending_job(engine)
    assert (await info_of(engine)).breaker_open_until_ms is None
    open_breaker(engine_name, tmp_path, TYPE, clock.now_ms + MINUTE_MS)
    assert (await info_of(engine)).breaker_open_until_ms == clock.now_ms + MINUTE_MS
    clock.advance(ms=MINUTE_MS)
    assert (await info_of(engine)).breaker_open_until_ms is None


async def test_a_reset_breaker_lets_jobs_start_at_once(
    engine: Engine, engine_name: str, tmp_path: Path, clock: VirtualClock
) -> None:
    job = await a_pending_job(engine)
    open_breaker(engine_name, tmp_path, TYPE, clock.now_ms + MINUTE_MS)
    assert await engine.reset_breaker(TYPE)
    assert (await info_of(engine)).breaker_open_until_ms is None
    assert await leased_keys(engine) == [job.key]


async def test_resetting_a_breaker_that_is_not_open_says_so(
    engine: Engine, engine_name: str, tmp_path: Path, clock: VirtualClock
) -> None:
    await a_pending_job(engine)
    assert not await engine.reset_breaker(TYPE)
    assert not await engine.reset_breaker("never-seen")
    open_breaker(engine_name, tmp_path, TYPE, clock.now_ms + MINUTE_MS)
    clock.advance(ms=MINUTE_MS)
    assert not await engine.reset_breaker(TYPE)
    assert "never-seen" not in [info.type for info in await engine.types()]


async def test_a_reset_breaker_wakes_who_waits_for_the_type(
    engine: Engine, engine_name: str, tmp_path: Path, clock: VirtualClock
) -> None:
    await a_pending_job(engine)
    open_breaker(engine_name, tmp_path, TYPE, clock.now_ms + MINUTE_MS)
    await engine.wait([TYPE], 1)  # Who waits for the first time may be sent to look at once.
    mark = engine.mark()
    assert (await asked(engine)).jobs == []
    waiting = asyncio.create_task(engine.wait([TYPE], 10_000, mark))
    await engine.reset_breaker(TYPE)
    assert await waiting


async def test_the_breakers_of_other_types_stay_as_they_are(
    engine: Engine, engine_name: str, tmp_path: Path, clock: VirtualClock
) -> None:
    await a_pending_job(engine)
    await a_pending_job(engine, type="other")
    open_breaker(engine_name, tmp_path, TYPE, clock.now_ms + MINUTE_MS)
    assert not await engine.reset_breaker("other")
    assert (await info_of(engine)).breaker_open_until_ms == clock.now_ms + MINUTE_MS
