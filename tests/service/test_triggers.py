"""Triggers over a virtual clock: each time point once, whoever tries, dies, sleeps or is switched off."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from everwork.core.schedule import Calendar, Every, Plan
from everwork.exceptions import EngineUnavailable
from everwork.service.triggers.loop import CHECK_MS, Scheduled, TriggerLoop
from tests.app.waiting import until
from tests.conformance.observe import every_job
from tests.stores import HOUR_MS, MINUTE_MS, SECOND_MS, START_MS, VirtualClock, open_store

if TYPE_CHECKING:
    from pathlib import Path

    from everwork.engines.contract import Engine

pytestmark = pytest.mark.every_engine

EVERY_10_S = Plan(Every(10 * SECOND_MS))
EVERY_MINUTE = Plan(Every(MINUTE_MS))


class Switch:
    """Which triggers are off, and how often somebody looked."""

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        self.looks = 0

    async def __call__(self) -> frozenset[str]:
        self.looks += 1
        return self.names


@pytest.fixture
def switch() -> Switch:
    return Switch()


def a_trigger(plan: Plan = EVERY_MINUTE, trigger_id: str = "tick", **fields: object) -> Scheduled:
    return Scheduled(worker_id="w", trigger_id=trigger_id, type="report", plan=plan, **fields)  # type: ignore[arg-type]


async def run_for(clock: VirtualClock, ms: int, *loops: TriggerLoop) -> None:
    """Let loops tick as they would, all at once, while so much time goes by."""
    end_ms = clock.now_ms + ms
    while True:
        seconds = min(await asyncio.gather(*(loop.tick() for loop in loops)))
        if clock.now_ms + seconds * 1000 > end_ms:
            break
        clock.advance(seconds=seconds)
    clock.now_ms = end_ms


async def fired(engine: Engine, trigger_id: str = "tick") -> list[int]:
    """The points that have created jobs, in the order of their creation, after the beginning."""
    keys = [(job.dedupe_key or "").split(":") for job in reversed(await every_job(engine))]
    return [int(point) - START_MS for _, _, trigger, point in keys if trigger == trigger_id]


async def test_the_first_fire_is_one_interval_after_the_beginning_and_each_is_on_time(
    engine: Engine, clock: VirtualClock, switch: Switch
) -> None:
    loop = TriggerLoop(engine, [a_trigger(variables='{"full":true}', max_attempts=2)], switch)
    await run_for(clock, 3 * MINUTE_MS - 1, loop)
    assert await fired(engine) == [MINUTE_MS, 2 * MINUTE_MS]
    job = (await every_job(engine))[0]
    assert (job.type, job.variables, job.max_attempts) == ("report", '{"full":true}', 2)
    assert job.created_at_ms == START_MS + 2 * MINUTE_MS


async def test_three_managers_fire_each_point_once_also_if_one_dies_in_the_middle_of_a_step(
    engine: Engine, engine_name: str, tmp_path: Path, clock: VirtualClock, switch: Switch
) -> None:
    engines = [engine, await open_store(engine_name, tmp_path, clock), await open_store(engine_name, tmp_path, clock)]
    in_step = asyncio.Event()

    async def never_answers() -> frozenset[str]:
        if clock.now_ms >= START_MS + 5 * MINUTE_MS:
            in_step.set()
            await asyncio.Event().wait()
        return frozenset()

    triggers = [a_trigger(EVERY_10_S, cache_ms=None), a_trigger(trigger_id="minute")]
    first, second = (TriggerLoop(one, triggers, switch) for one in engines[:2])
    dying = TriggerLoop(engines[2], triggers, never_answers)
    await run_for(clock, 5 * MINUTE_MS - 1, first, second, dying)
    clock.advance(ms=1)
    step = asyncio.create_task(dying.tick())
    await in_step.wait()
    step.cancel()
    await engines[2].close()
    await run_for(clock, 5 * MINUTE_MS, first, second)
    assert await fired(engine) == [at * 10 * SECOND_MS for at in range(1, 61)]
    assert await fired(engine, "minute") == [at * MINUTE_MS for at in range(1, 11)]
    assert first.fired + second.fired + dying.fired == 70
    await engines[1].close()


async def test_missed_points_are_caught_up_with_in_order_and_by_whoever_comes_next(
    engine: Engine, clock: VirtualClock, switch: Switch
) -> None:
    await run_for(clock, 2 * MINUTE_MS, TriggerLoop(engine, [a_trigger()], switch))
    clock.advance(ms=HOUR_MS)
    await run_for(clock, MINUTE_MS, TriggerLoop(engine, [a_trigger()], switch))
    assert await fired(engine) == [at * MINUTE_MS for at in range(1, 64)]


async def test_a_long_backlog_does_not_keep_another_trigger_waiting(
    engine: Engine, clock: VirtualClock, switch: Switch
) -> None:
    triggers = [a_trigger(Plan(Every(SECOND_MS))), a_trigger(trigger_id="minute")]
    await TriggerLoop(engine, triggers, switch).tick()
    clock.advance(ms=MINUTE_MS * 6)
    loop = TriggerLoop(engine, triggers, switch)
    assert await loop.tick() == 0
    assert len(await fired(engine)) == 50
    assert len(await fired(engine, "minute")) == 6
    await run_for(clock, 1, loop)
    assert await fired(engine) == [at * SECOND_MS for at in range(1, 361)]


async def test_without_catch_up_the_next_point_is_the_first_after_an_absence(
    engine: Engine, clock: VirtualClock, switch: Switch
) -> None:
    trigger = a_trigger(Plan(Every(MINUTE_MS), is_catchup=False))
    await run_for(clock, 2 * MINUTE_MS, TriggerLoop(engine, [trigger], switch))
    clock.advance(ms=HOUR_MS + MINUTE_MS // 2)
    await run_for(clock, MINUTE_MS, TriggerLoop(engine, [trigger], switch))
    assert await fired(engine) == [MINUTE_MS, 2 * MINUTE_MS, 63 * MINUTE_MS]


async def test_without_catch_up_a_point_that_could_not_be_fired_in_time_is_left(
    engine: Engine, clock: VirtualClock
) -> None:
    is_away = True

    async def off() -> frozenset[str]:
        if is_away:
            raise EngineUnavailable("gone for a while")
        return frozenset()

    loop = TriggerLoop(engine, [a_trigger(Plan(Every(MINUTE_MS), is_catchup=False))], off)
    await loop.tick()
    clock.advance(ms=MINUTE_MS)
    with pytest.raises(EngineUnavailable):
        await loop.tick()
    is_away = False
    clock.advance(ms=MINUTE_MS // 2)
    await run_for(clock, MINUTE_MS, loop)
    assert await fired(engine) == [2 * MINUTE_MS]


async def test_a_trigger_ends_with_its_lifetime(engine: Engine, clock: VirtualClock, switch: Switch) -> None:
    plan = Plan(Every(MINUTE_MS), lifetime_ms=2 * MINUTE_MS)
    await run_for(clock, HOUR_MS // 12, TriggerLoop(engine, [a_trigger(plan)], switch))
    assert await fired(engine) == [MINUTE_MS, 2 * MINUTE_MS]


async def test_what_was_missed_while_switched_off_is_not_caught_up_with(
    engine: Engine, clock: VirtualClock, switch: Switch
) -> None:
    seldom = TriggerLoop(engine, [a_trigger(trigger_id="seldom", check_every_ms=3 * MINUTE_MS)], switch)
    loop = TriggerLoop(engine, [a_trigger(), a_trigger(trigger_id="other")], switch)
    await run_for(clock, MINUTE_MS, loop, seldom)
    switch.names = frozenset({"w/tick", "w/seldom"})
    await run_for(clock, 5 * MINUTE_MS + MINUTE_MS // 2, loop, seldom)
    switch.names = frozenset()
    await run_for(clock, 2 * MINUTE_MS, loop, seldom)
    assert await fired(engine) == [at * MINUTE_MS for at in (1, 7, 8)]
    assert await fired(engine, "seldom") == [at * MINUTE_MS for at in (1, 8)]
    assert await fired(engine, "other") == [at * MINUTE_MS for at in range(1, 9)]


async def test_a_switch_is_seen_after_the_cache_while_on_and_after_the_interval_while_off(
    engine: Engine, clock: VirtualClock, switch: Switch
) -> None:
    trigger = a_trigger(Plan(Every(SECOND_MS)), cache_ms=5 * SECOND_MS, check_every_ms=30 * SECOND_MS)
    loop = TriggerLoop(engine, [trigger], switch)
    await run_for(clock, 2 * SECOND_MS, loop)
    switch.names = frozenset({"w/tick"})
    await run_for(clock, 10 * SECOND_MS, loop)
    assert (await fired(engine))[-1] == 5 * SECOND_MS
    switch.names = frozenset()
    await run_for(clock, 23 * SECOND_MS, loop)
    assert (await fired(engine))[-1] == 5 * SECOND_MS
    await run_for(clock, 2 * SECOND_MS, loop)
    assert (await fired(engine))[-1] == 37 * SECOND_MS


async def test_a_clock_that_is_set_back_fires_nothing_twice(
    engine: Engine, clock: VirtualClock, switch: Switch
) -> None:
    loop = TriggerLoop(engine, [a_trigger()], switch)
    await run_for(clock, 5 * MINUTE_MS, loop)
    clock.advance(ms=-3 * MINUTE_MS)
    await run_for(clock, 4 * MINUTE_MS, loop)
    assert await fired(engine) == [at * MINUTE_MS for at in range(1, 7)]


async def test_a_point_that_comes_earlier_because_the_clock_was_set_back_is_not_missed(
    engine: Engine, clock: VirtualClock, switch: Switch
) -> None:
    loop = TriggerLoop(engine, [a_trigger(Plan(Every(HOUR_MS), is_catchup=False))], switch)
    await loop.tick()
    clock.advance(ms=3 * HOUR_MS - MINUTE_MS)
    await loop.tick()
    clock.advance(ms=-2 * HOUR_MS)
    await run_for(clock, 2 * MINUTE_MS, loop)
    assert await fired(engine) == [HOUR_MS]


async def test_a_trigger_that_fired_while_the_clock_was_years_ahead_fires_again_once_it_is_right(
    engine: Engine, clock: VirtualClock, switch: Switch
) -> None:
    loop = TriggerLoop(engine, [a_trigger(Plan(Every(MINUTE_MS), is_catchup=False))], switch)
    await run_for(clock, 2 * MINUTE_MS, loop)
    years_ms = 10 * 365 * 24 * HOUR_MS
    clock.advance(ms=years_ms)
    await loop.tick()
    clock.advance(ms=-years_ms)
    await run_for(clock, 3 * MINUTE_MS, loop)
    assert (await fired(engine))[3:5] == [3 * MINUTE_MS, 4 * MINUTE_MS]


async def test_a_changed_interval_holds_from_the_last_point_on(
    engine: Engine, clock: VirtualClock, switch: Switch
) -> None:
    await run_for(clock, 3 * MINUTE_MS, TriggerLoop(engine, [a_trigger()], switch))
    await run_for(clock, 9 * MINUTE_MS, TriggerLoop(engine, [a_trigger(Plan(Every(5 * MINUTE_MS)))], switch))
    assert await fired(engine) == [at * MINUTE_MS for at in (1, 2, 3, 5, 10)]


async def test_a_broken_trigger_waits_and_comes_back_while_the_others_go_on(
    engine: Engine, clock: VirtualClock, switch: Switch, caplog: pytest.LogCaptureFixture
) -> None:
    healed_ms = START_MS + MINUTE_MS

    def breaks_at_first(after_ms: int) -> int | None:
        if clock.now_ms < healed_ms:
            raise ZeroDivisionError("no such day")
        return (after_ms // MINUTE_MS + 1) * MINUTE_MS

    triggers = [a_trigger(Plan(Calendar(breaks_at_first)), "broken"), a_trigger(EVERY_10_S)]
    await run_for(clock, 3 * MINUTE_MS, TriggerLoop(engine, triggers, switch))
    assert await fired(engine) == [at * 10 * SECOND_MS for at in range(1, 19)]
    assert await fired(engine, "broken") == [at * MINUTE_MS for at in range(1, 4)]
    told = [record.message for record in caplog.records if "broken" in record.message]
    assert "no such day" in told[0]
    assert len(told) <= 4, "few words, however long it is broken"


async def test_a_broken_trigger_does_not_wait_longer_because_the_clock_is_set_back(
    engine: Engine, clock: VirtualClock, switch: Switch
) -> None:
    breaks = True

    def next_after(after_ms: int) -> int | None:
        if breaks:
            raise ZeroDivisionError
        return (after_ms // MINUTE_MS + 1) * MINUTE_MS

    clock.advance(ms=HOUR_MS)
    await engine.register("trigger-mark", "w/tick", f"{START_MS} {START_MS}")
    loop = TriggerLoop(engine, [a_trigger(Plan(Calendar(next_after)))], switch)
    await loop.tick()
    breaks = False
    clock.advance(ms=2 * MINUTE_MS - HOUR_MS)
    await loop.tick()
    assert await fired(engine) == [MINUTE_MS, 2 * MINUTE_MS]


async def test_a_backlog_that_is_too_long_is_told(
    engine: Engine, clock: VirtualClock, switch: Switch, caplog: pytest.LogCaptureFixture
) -> None:
    trigger = a_trigger(Plan(Every(100)))
    await TriggerLoop(engine, [trigger], switch).tick()
    clock.advance(ms=HOUR_MS)
    await TriggerLoop(engine, [trigger], switch).tick()
    assert "skipped=26000" in caplog.text
    assert (await fired(engine))[0] == HOUR_MS - 9_999 * 100


async def test_nothing_due_costs_one_look_in_several_seconds_and_no_look_at_switches(
    engine: Engine, clock: VirtualClock, switch: Switch
) -> None:
    loop = TriggerLoop(engine, [a_trigger(Plan(Every(HOUR_MS)))], switch)
    assert await loop.tick() == CHECK_MS / 1000
    await run_for(clock, 10 * MINUTE_MS, loop)
    assert switch.looks == 0


async def test_an_engine_that_is_away_is_told_once_and_what_was_missed_fires_when_it_is_back(
    engine: Engine, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    is_away = True

    async def off() -> frozenset[str]:
        if is_away:
            raise EngineUnavailable("gone for a while")
        return frozenset()

    loop = TriggerLoop(engine, [a_trigger()], off)
    await loop.tick()
    clock.advance(ms=2 * MINUTE_MS)
    loop.start()
    await until(lambda: loop.errors >= 3)
    is_away = False
    await until(lambda: loop.fired == 2)
    await loop.stop()
    assert caplog.text.count("the engine is unavailable") == loop.errors.bit_length(), "ever more seldom"
    assert caplog.text.count("the engine is available again") == 1
    assert await fired(engine) == [MINUTE_MS, 2 * MINUTE_MS]
