"""create with a stamp: a producer may repeat its last call, whatever has happened to the answer and to the jobs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from everwork.core.leasing import Created, Stamp
from everwork.core.limits import PRODUCER_KEEP_MS, STAMP_NUMBER_MAX
from everwork.core.outcome import Complete
from everwork.exceptions import InvalidInput
from tests.conformance.observe import every_job
from tests.factories import a_new_job, a_pending_job, activated, settled

if TYPE_CHECKING:
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock


async def test_the_same_stamp_again_creates_nothing_and_returns_the_same_keys(engine: Engine) -> None:
    jobs = [a_new_job(), a_new_job(delay_ms=5_000), a_new_job(type="other")]
    first = await engine.create(jobs, Stamp("shop", 1))
    assert await engine.create(jobs, Stamp("shop", 1)) == first
    assert len(await every_job(engine)) == 3


async def test_the_next_number_creates_again(engine: Engine) -> None:
    [first] = await engine.create([a_new_job()], Stamp("shop", 1))
    [second] = await engine.create([a_new_job()], Stamp("shop", 7))
    assert second.key > first.key
    assert await engine.create([a_new_job()], Stamp("shop", 7)) == [second]


async def test_a_number_below_the_last_one_is_refused_and_creates_nothing(engine: Engine) -> None:
    await engine.create([a_new_job()], Stamp("shop", 2))
    with pytest.raises(InvalidInput, match="stamp: number 1 of producer 'shop' is outdated"):
        await engine.create([a_new_job()], Stamp("shop", 1))
    assert len(await every_job(engine)) == 1


async def test_numbers_are_compared_exactly_up_to_the_largest(engine: Engine) -> None:
    [one] = await engine.create([a_new_job()], Stamp("shop", STAMP_NUMBER_MAX - 1))
    [two] = await engine.create([a_new_job()], Stamp("shop", STAMP_NUMBER_MAX))
    assert two.key > one.key
    assert await engine.create([a_new_job()], Stamp("shop", STAMP_NUMBER_MAX)) == [two]
    with pytest.raises(InvalidInput):
        await engine.create([a_new_job()], Stamp("shop", STAMP_NUMBER_MAX - 1))


async def test_producers_do_not_share_their_numbers(engine: Engine) -> None:
    [mine] = await engine.create([a_new_job()], Stamp("shop", 1))
    [theirs] = await engine.create([a_new_job()], Stamp("till", 1))
    assert mine.key != theirs.key


async def test_a_repeat_returns_which_jobs_were_deduplicated(engine: Engine) -> None:
    earlier = await a_pending_job(engine, dedupe_key="order-1")
    jobs = [a_new_job(dedupe_key="order-1"), a_new_job(dedupe_key="order-2")]
    first = await engine.create(jobs, Stamp("shop", 1))
    assert first[0] == Created(earlier.key, True)
    assert await engine.create(jobs, Stamp("shop", 1)) == first


async def test_a_repeat_is_known_after_the_job_has_finished_and_was_deleted(engine: Engine) -> None:
    [created] = await engine.create([a_new_job(dedupe_key="order-1")], Stamp("shop", 1))
    [job] = await engine.get([created.key])
    assert job is not None
    job = await activated(engine, job)
    await settled(engine, Complete(job.key, job.attempt))
    await engine.delete([job.key])
    assert await engine.create([a_new_job(dedupe_key="order-1")], Stamp("shop", 1)) == [created]
    assert await every_job(engine) == []


async def test_a_batch_that_is_refused_does_not_use_its_number(engine: Engine) -> None:
    with pytest.raises(UnicodeEncodeError):
        await engine.create([a_new_job(), a_new_job(variables='{"half a character": "\ud83e"}')], Stamp("shop", 1))
    [created] = await engine.create([a_new_job()], Stamp("shop", 1))
    assert [job.key for job in await every_job(engine)] == [created.key]


async def test_of_the_same_call_sent_many_times_at_once_one_creates(engine: Engine) -> None:
    jobs = [a_new_job(), a_new_job()]
    answers = await asyncio.gather(*(engine.create(jobs, Stamp("shop", 1)) for _ in range(10)))
    assert all(answer == answers[0] for answer in answers)
    assert len(await every_job(engine)) == 2


async def test_a_sweep_forgets_a_producer_that_was_not_seen_for_long(engine: Engine, clock: VirtualClock) -> None:
    await engine.sweep("sweeper")
    await engine.create([a_new_job()], Stamp("shop", 5))
    clock.advance(ms=PRODUCER_KEEP_MS - 1)
    await engine.create([a_new_job()], Stamp("till", 1))
    await engine.sweep("sweeper")
    with pytest.raises(InvalidInput):
        await engine.create([a_new_job()], Stamp("shop", 1))
    clock.advance(ms=3_600_000)
    await engine.sweep("sweeper")
    assert not (await engine.create([a_new_job()], Stamp("shop", 1)))[0].deduplicated
    assert len(await every_job(engine)) == 3


async def test_a_sweep_forgets_the_oldest_of_too_many_producers(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{type(engine).__module__.rpartition('.')[0]}.sweep.PRODUCERS_MAX", 3)
    for n in range(5):
        await engine.create([a_new_job()], Stamp(f"producer-{n}", 5))
        clock.advance(ms=1)
    clock.advance(ms=3_600_000)
    await engine.sweep("sweeper")
    for n in range(2):
        assert len(await engine.create([a_new_job()], Stamp(f"producer-{n}", 1))) == 1
    for n in range(2, 5):
        with pytest.raises(InvalidInput):
            await engine.create([a_new_job()], Stamp(f"producer-{n}", 1))
