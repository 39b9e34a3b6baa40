"""Read, decide, write: what changed in between is noticed, and everything is decided anew."""

from __future__ import annotations

import asyncio

import pytest

from everwork.core.leasing import Demand, Verdict
from everwork.core.outcome import Complete, Failed, Outcome, Throw
from everwork.core.states import State
from everwork.engines.redis import settle
from everwork.engines.redis.connection import Connection
from everwork.engines.redis.engine import RedisEngine
from tests.conformance.observe import assert_counts_add_up
from tests.factories import TYPE, WORKER, a_new_job, a_pending_job, a_processing_job, asked, the_job


async def test_retries_given_between_reading_and_writing_are_used(
    engine: RedisEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await a_processing_job(engine, max_attempts=1)
    act_after_the_first_read(monkeypatch, lambda: engine.set_retries(job.key, 3))
    [judged] = (await engine.settle([Failed(job.key, 1, "boom")])).judged
    after = await the_job(engine, job.key)
    assert (judged.verdict, after.state, after.retries) == (Verdict.ACCEPTED, State.PENDING, 2)


async def test_a_job_that_began_between_reading_and_writing_is_decided_too(
    engine: RedisEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await a_pending_job(engine, max_attempts=1)
    act_after_the_first_read(monkeypatch, lambda: asked(engine))
    [judged] = (await engine.settle([Failed(job.key, 0, "boom")])).judged
    after = await the_job(engine, job.key)
    assert (judged.verdict, after.state, after.last_error) == (Verdict.ACCEPTED, State.FAILED, "boom")


async def test_a_conflict_of_one_outcome_writes_none_of_the_others_twice(
    engine: RedisEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, failed = await a_processing_job(engine), await a_processing_job(engine)
    act_after_the_first_read(monkeypatch, lambda: engine.set_retries(failed.key, 9))
    outcomes: list[Outcome] = [Complete(done.key, 1, None, (a_new_job(type="event"),)), Failed(failed.key, 1, "boom")]
    answer = await engine.settle(outcomes, [Demand("event", WORKER, 10)])
    assert [judged.verdict for judged in answer.judged] == [Verdict.ACCEPTED] * 2
    assert len(answer.activation.jobs) == 1
    await assert_counts_add_up(engine)


async def test_failures_against_changes_of_retries_lose_nothing(engine: RedisEngine) -> None:
    await engine.create([a_new_job(max_attempts=2) for _ in range(50)])
    jobs = (await asked(engine, 50)).jobs
    changes = asyncio.gather(*(engine.set_retries(job.key, n) for job in jobs for n in (1, 5, 2)))
    answers = await asyncio.gather(*(engine.settle([Failed(job.key, 1, "boom", backoff_ms=0)]) for job in jobs))
    await changes
    assert {answer.judged[0].verdict for answer in answers} == {Verdict.ACCEPTED}
    await assert_counts_add_up(engine)


async def test_a_code_and_an_error_of_many_lines_are_kept_apart(engine: RedisEngine) -> None:
    job = await a_processing_job(engine)
    await engine.settle([Throw(job.key, 1, "E\n42", "one\ntwo\n")])
    after = await the_job(engine, job.key)
    assert (after.error_code, after.last_error) == ("E\n42", "one\ntwo\n")
    assert [event.error for event in await engine.history(job.key)] == ["one\ntwo\n"]
    assert after.type == TYPE


def act_after_the_first_read(monkeypatch: pytest.MonkeyPatch, act: object) -> None:
    """Let somebody else act once, just when the core has read what it needs to decide."""
    assert callable(act)
    sound = settle._decided
    is_first = True

    async def decided(connection: Connection, outcomes: object) -> object:
        nonlocal is_first
        answer = await sound(connection, outcomes)  # type: ignore[arg-type]
        if is_first:
            is_first = False
            await act()
        return answer

    monkeypatch.setattr(settle, "_decided", decided)
