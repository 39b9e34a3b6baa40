"""open, close, health: what an engine says of itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from everwork.engines.values import Durability
from tests.factories import a_new_job, a_pending_job
from tests.stores import open_store

if TYPE_CHECKING:
    from pathlib import Path

    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

pytestmark = pytest.mark.every_way


async def test_the_health_of_an_engine_names_it_and_its_durability(engine: Engine, engine_name: str) -> None:
    health = await engine.health()
    assert (health.engine, health.durability) == (engine_name.partition("-")[0], engine.durability)
    assert health.version
    assert health.schema_version > 0


async def test_an_accepted_job_survives_at_least_a_crash_of_the_process(engine: Engine) -> None:
    assert engine.durability in {Durability.POWER_LOSS, Durability.PROCESS_CRASH}


async def test_a_second_close_does_nothing(engine_name: str, tmp_path: Path, clock: VirtualClock) -> None:
    other = await open_store(engine_name, tmp_path, clock)
    await other.close()
    await other.close()


async def test_several_engines_may_open_one_fresh_store_at_once(
    engine: Engine, engine_name: str, tmp_path: Path, clock: VirtualClock
) -> None:
    folder = tmp_path / "fresh"
    folder.mkdir()
    others = await asyncio.gather(*(open_store(engine_name, folder, clock) for _ in range(5)))
    keys = {(await a_pending_job(other)).key for other in others}
    assert len(keys) == 5
    await asyncio.gather(*(other.close() for other in others))


async def test_close_finishes_what_was_accepted(
    engine: Engine, engine_name: str, tmp_path: Path, clock: VirtualClock
) -> None:
    other = await open_store(engine_name, tmp_path, clock)
    creates = [asyncio.create_task(other.create([a_new_job()])) for _ in range(20)]
    await asyncio.sleep(0)
    await other.close()
    answers = await asyncio.gather(*creates, return_exceptions=True)
    keys = [answer[0].key for answer in answers if not isinstance(answer, BaseException)]
    assert None not in await engine.get(keys)
    assert sum(count.jobs for count in await engine.count()) == len(keys)


async def test_now_is_the_engines_own_clock(engine: Engine, clock: VirtualClock) -> None:
    before = await engine.now()
    clock.advance(seconds=90)
    assert (before, await engine.now()) == (clock.now_ms - 90_000, clock.now_ms)
    assert (await engine.activate([])).now_ms == clock.now_ms


async def test_without_a_given_clock_now_is_the_stores(engine_name: str, tmp_path: Path) -> None:
    other = await open_store(engine_name, tmp_path, None)
    earlier = (await other.activate([])).now_ms
    assert earlier <= await other.now() <= (await other.activate([])).now_ms
    await other.close()
