"""What goes wrong between a handler and the store, on purpose."""

from __future__ import annotations

from typing import Any

import pytest

from everwork import Call, Everwork, Middleware
from everwork.core.leasing import Verdict
from everwork.exceptions import EngineUnavailable, InvalidInput
from everwork.runtime.middleware import Proceed
from everwork.testing import Stage, rehearse
from tests.testing.applications import World

LETTER = ("letter", 7)


async def test_a_crash_before_the_outcome_is_told_runs_the_job_again_after_its_lease(
    app: Everwork, world: World
) -> None:
    async with rehearse(app) as stage:
        key = await _a_letter(app, stage, "crash_before_settle")
        runs = await stage.drain(until_empty=True)
        assert [(run.attempt, run.verdicts) for run in runs] == [(1, ()), (2, (Verdict.ACCEPTED,))]
        assert [entry.kind for entry in stage.history(key)] == ["lapse", "complete"]
    assert world.done == [LETTER, LETTER]


async def test_an_outcome_whose_answer_was_lost_is_told_twice_and_counts_once(app: Everwork, world: World) -> None:
    async with rehearse(app) as stage:
        key = await _a_letter(app, stage, "crash_after_settle")
        [run] = await stage.drain(until_empty=True)
        assert run.verdicts == (Verdict.ACCEPTED, Verdict.REPEATED)
        assert len(stage.history(key)) == 1
    assert world.done == [LETTER]


async def test_a_duplicate_delivery_calls_the_handler_twice_and_counts_once(app: Everwork, world: World) -> None:
    async with rehearse(app) as stage:
        await app.enqueue("order-place", order=7)
        stage.duplicate_delivery("order-place")
        run = (await stage.drain())[0]
        assert run.verdicts == (Verdict.ACCEPTED, Verdict.REPEATED)
        stage.assert_enqueued("letter-send", count=1)
    assert world.done == [("order", 7), ("order", 7), LETTER]


async def test_a_second_delivery_that_fails_does_not_undo_the_first(app: Everwork, world: World) -> None:
    async with rehearse(app, middleware=[_FailsLater(world)]) as stage:
        key = await _a_letter(app, stage, "duplicate_delivery")
        [run] = await stage.drain(until_empty=True)
        assert run.verdicts == (Verdict.ACCEPTED, Verdict.WRONG_STATE)
        stage.assert_completed(key)


async def test_an_outcome_that_comes_after_its_lease_is_refused_and_the_job_runs_again(
    app: Everwork, world: World
) -> None:
    async with rehearse(app) as stage:
        key = await _a_letter(app, stage, "lose_lease")
        runs = await stage.drain(until_empty=True)
        assert [run.verdicts for run in runs] == [(Verdict.LEASE_LOST,), (Verdict.ACCEPTED,)]
        assert [entry.kind for entry in stage.history(key)] == ["lapse", "complete"]


async def test_an_engine_that_is_away_refuses_to_create(app: Everwork) -> None:
    async with rehearse(app) as stage:
        stage.engine_away(calls=2)
        with pytest.raises(EngineUnavailable):
            await app.enqueue("letter-send", order=7)
        # With a dedupe key nobody can create it twice, so it is tried again.
        key = await app.using(dedupe_key="letter:7").enqueue("letter-send", order=7)
        assert [job.key for job in stage.assert_enqueued("letter-send")] == [key]


async def test_faults_happen_as_often_as_they_were_asked_for_and_in_order(app: Everwork) -> None:
    async with rehearse(app) as stage:
        stage.crash_after_settle("letter-send", times=2)
        stage.duplicate_delivery()
        await app.enqueue_many([("letter-send", {"order": order}) for order in range(4)])
        faults = [run.fault for run in await stage.drain()]
    assert faults == ["crash_after_settle", "crash_after_settle", "duplicate_delivery", None]


async def test_a_fault_that_never_happens_fails_the_test(app: Everwork) -> None:
    rehearsal = rehearse(app)
    stage = await rehearsal.__aenter__()
    stage.lose_lease("order-place")
    await app.enqueue("letter-send", order=7)
    await stage.drain()
    with pytest.raises(AssertionError, match=r"never happened: lose_lease\('order-place'\), 1 more"):
        await rehearsal.__aexit__(None, None, None)


async def test_a_fault_of_a_type_that_nobody_handles_is_refused(app: Everwork) -> None:
    async with rehearse(app) as stage:
        with pytest.raises(InvalidInput, match="type: must be one of letter-send, order-place, not 'letter'"):
            stage.crash_before_settle("letter")


async def _a_letter(app: Everwork, stage: Stage, fault: str) -> int:
    getattr(stage, fault)("letter-send")
    return await app.enqueue("letter-send", order=7)


class _FailsLater(Middleware):
    """Fails as soon as anything has been done."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def __call__(self, call: Call, proceed: Proceed) -> Any:
        if self._world.done:
            raise LookupError
        return await proceed(call)
