"""Triggers: where they stand, and time points that pass once, each with its job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.codec.json import encode_policy
from everwork.core.leasing import Created
from everwork.core.retry import RetryPolicy
from everwork.engines.values import Fire, Fired, Registered, TriggerMark, TriggerMarks
from tests.conformance.observe import every_job
from tests.factories import TYPE, a_new_job, leased_keys, the_job
from tests.stores import MINUTE_MS, SECOND_MS, START_MS

if TYPE_CHECKING:
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

pytestmark = pytest.mark.every_way("redis-cluster")

TRIGGER = "3f786850e387550f/nightly"
BEGUN = TriggerMark(START_MS, START_MS)


def point(number: int) -> int:
    """A time point: so many minutes after the beginning."""
    return START_MS + number * MINUTE_MS


def a_fire(number: int, trigger: str = TRIGGER, **fields: object) -> Fire:
    """A point of a trigger, and its job."""
    return Fire(trigger, point(number), a_new_job(**fields))


def keys_of(fired: list[Fired]) -> list[int | None]:
    """The jobs that were created, by point."""
    return [one.created.key if one.created else None for one in fired]


# Marks --------------------------------------------------------------------------------------------


async def test_a_trigger_begins_when_it_is_first_asked_for_and_stays_there(engine: Engine, clock: VirtualClock) -> None:
    assert await engine.trigger_marks([TRIGGER]) == TriggerMarks(START_MS, [BEGUN])
    later = clock.advance(ms=MINUTE_MS)
    assert await engine.trigger_marks([TRIGGER]) == TriggerMarks(later, [BEGUN])


async def test_marks_stand_in_the_order_asked_for_however_often(engine: Engine, clock: VirtualClock) -> None:
    await engine.trigger_marks(["b"])
    later = clock.advance(ms=SECOND_MS)
    new = TriggerMark(later, later)
    assert await engine.trigger_marks(["c", "b", "a", "c"]) == TriggerMarks(later, [new, BEGUN, new, new])
    assert await engine.trigger_marks(["a", "b"]) == TriggerMarks(later, [new, BEGUN])


async def test_asking_for_no_marks_tells_the_engines_now(engine: Engine) -> None:
    assert await engine.trigger_marks([]) == TriggerMarks(START_MS, [])


async def test_marks_stand_in_the_registry(engine: Engine) -> None:
    await engine.trigger_marks([TRIGGER])
    await engine.fire([Fire(TRIGGER, point(1), None)])
    assert await engine.registered("trigger-mark") == [
        Registered("trigger-mark", TRIGGER, f"{START_MS} {point(1)}", None)
    ]


async def test_a_mark_that_was_registered_is_taken_as_it_is(engine: Engine) -> None:
    await engine.register("trigger-mark", TRIGGER, f"{START_MS} {point(3)}")
    assert (await engine.trigger_marks([TRIGGER])).marks == [TriggerMark(START_MS, point(3))]
    assert keys_of(await engine.fire([a_fire(3)])) == [None]


async def test_a_trigger_that_was_taken_away_begins_anew(engine: Engine, clock: VirtualClock) -> None:
    await engine.trigger_marks([TRIGGER])
    await engine.unregister("trigger-mark", TRIGGER)
    later = clock.advance(ms=MINUTE_MS)
    assert (await engine.trigger_marks([TRIGGER])).marks == [TriggerMark(later, later)]


@pytest.mark.parametrize("body", ["", "5", "{}", "x 1 2", "1 2 3", "1  2", "-1 5", f"1 {10**16}", "1 2\n"])
async def test_what_is_no_mark_is_replaced_as_if_the_trigger_had_not_begun(
    engine: Engine, clock: VirtualClock, body: str
) -> None:
    await engine.trigger_marks(["other"])
    await engine.register("trigger-mark", TRIGGER, body)
    await engine.register("trigger-mark", "fired", body)
    later = clock.advance(ms=SECOND_MS)
    assert (await engine.trigger_marks([TRIGGER, "other"])).marks == [TriggerMark(later, later), BEGUN]
    [fired] = await engine.fire([a_fire(1, "fired")])
    assert (fired.created is not None, fired.mark) == (True, TriggerMark(point(1), point(1)))
    assert [entry.body for entry in await engine.registered("trigger-mark") if entry.name != "other"] == [
        f"{later} {later}", f"{point(1)} {point(1)}",
    ]  # fmt: skip


# Firing -------------------------------------------------------------------------------------------


async def test_a_point_passes_once_and_creates_its_job(engine: Engine) -> None:
    await engine.trigger_marks([TRIGGER])
    passed = TriggerMark(START_MS, point(1))
    [first] = await engine.fire([a_fire(1, variables='{"n":1}')])
    assert first == Fired(Created(first.created.key if first.created else 0), passed)
    assert await engine.fire([a_fire(1)]) == [Fired(None, passed)]
    assert (await engine.trigger_marks([TRIGGER])).marks == [passed]
    [job] = await every_job(engine)
    assert (job.type, job.variables) == (TYPE, '{"n":1}')
    assert await leased_keys(engine) == keys_of([first])


@pytest.mark.parametrize("number", [-1, 0])
async def test_a_point_at_or_before_the_mark_has_passed(engine: Engine, number: int) -> None:
    await engine.trigger_marks([TRIGGER])
    assert await engine.fire([a_fire(number)]) == [Fired(None, BEGUN)]
    assert await every_job(engine) == []


async def test_points_of_one_call_are_judged_one_after_the_other(engine: Engine) -> None:
    await engine.trigger_marks([TRIGGER])
    fired = await engine.fire([a_fire(number) for number in (1, 3, 2, 3, 4)])
    assert [one.mark.last_ms for one in fired] == [point(number) for number in (1, 3, 3, 3, 4)]
    assert [key is not None for key in keys_of(fired)] == [True, True, False, False, True]
    assert await leased_keys(engine) == [key for key in keys_of(fired) if key]


async def test_a_trigger_without_mark_begins_with_its_point(engine: Engine) -> None:
    fired = await engine.fire([a_fire(5), a_fire(4), a_fire(6)])
    assert [one.mark for one in fired] == [
        TriggerMark(point(5), point(5)), TriggerMark(point(5), point(5)), TriggerMark(point(5), point(6)),
    ]  # fmt: skip
    assert [key is not None for key in keys_of(fired)] == [True, False, True]


async def test_a_point_may_pass_without_a_job(engine: Engine) -> None:
    await engine.trigger_marks([TRIGGER])
    fired = await engine.fire([a_fire(1), Fire(TRIGGER, point(2), None), a_fire(2), a_fire(3)])
    assert [key is not None for key in keys_of(fired)] == [True, False, False, True]
    assert fired[1].mark == TriggerMark(START_MS, point(2))
    assert await engine.fire([Fire(TRIGGER, point(1), None)]) == [Fired(None, TriggerMark(START_MS, point(3)))]


async def test_triggers_pass_their_points_each_by_itself(engine: Engine) -> None:
    await engine.trigger_marks(["a", "b"])
    await engine.fire([a_fire(2, "a")])
    fired = await engine.fire([a_fire(1, "b", type="b"), a_fire(2, "a"), a_fire(2, "b", type="b"), a_fire(3, "a")])
    assert [key is not None for key in keys_of(fired)] == [True, False, True, True]
    assert await leased_keys(engine, type="b") == [keys_of(fired)[0], keys_of(fired)[2]]
    assert [mark.last_ms for mark in (await engine.trigger_marks(["a", "b"])).marks] == [point(3), point(2)]


async def test_a_job_that_the_store_knows_already_lets_its_point_pass(engine: Engine) -> None:
    [known] = await engine.create([a_new_job(dedupe_key="k")])
    [fired] = await engine.fire([a_fire(1, dedupe_key="k")])
    assert fired == Fired(Created(known.key, True), TriggerMark(point(1), point(1)))
    assert len(await every_job(engine)) == 1


async def test_a_fired_job_is_created_as_any_other(engine: Engine) -> None:
    await engine.set_policy(TYPE, encode_policy(RetryPolicy(max_attempts=9)))
    await engine.add_group(TYPE, "audit")
    [fired] = await engine.fire([a_fire(1, tenant="acme", delay_ms=SECOND_MS, dedupe_key="k", priority=7)])
    [plain] = await engine.create([a_new_job(tenant="acme", delay_ms=SECOND_MS, priority=7)])
    assert fired.created is not None
    job, other = await the_job(engine, fired.created.key), await the_job(engine, plain.key)
    assert (job.max_attempts, job.run_at_ms, job.priority, job.tenant, job.dedupe_key) == (
        other.max_attempts, other.run_at_ms, other.priority, other.tenant, "k",
    )  # fmt: skip
    assert (job.max_attempts, job.created_at_ms, job.run_at_ms) == (9, START_MS, START_MS + SECOND_MS)
    assert sorted(one.group for one in await every_job(engine)) == ["", "", "audit", "audit"]


async def test_firing_nothing_is_nothing(engine: Engine) -> None:
    assert await engine.fire([]) == []


async def test_a_hundred_points_pass_in_one_call(engine: Engine) -> None:
    fired = await engine.fire([a_fire(number, dedupe_key=str(number)) for number in range(1, 101)])
    assert await leased_keys(engine, 200) == keys_of(fired)
