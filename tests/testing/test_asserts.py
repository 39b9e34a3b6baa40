"""Assertions about jobs, which say what is there when they fail."""

from __future__ import annotations

from datetime import date

import pytest

from everwork import Everwork
from everwork.core.states import State
from everwork.testing import rehearse
from tests.testing.applications import World


async def test_enqueued_jobs_are_found_by_some_of_their_arguments(app: Everwork) -> None:
    async with rehearse(app) as stage:
        await app.enqueue("post", {"to": "a@b.c", "count": 3})
        await app.enqueue("post", to="d@e.f")
        assert [job.key for job in stage.assert_enqueued("post", to="a@b.c")] == [1]
        stage.assert_enqueued("post", count=2)
        stage.assert_enqueued("post", variables={"count": 3})
        stage.assert_not_enqueued("post", to="nobody")
        stage.assert_not_enqueued("letter-send")


async def test_arguments_are_found_as_they_were_given_whatever_json_makes_of_them(app: Everwork) -> None:
    async with rehearse(app) as stage:
        given: dict[str, object] = {"pair": (1, 2), "day": date(2026, 1, 5), "state": State.FAILED}
        await app.enqueue("post", **given)
        stage.assert_enqueued("post", pair=(1, 2), day=date(2026, 1, 5), state=State.FAILED)
        with pytest.raises(AssertionError, match=r"expected 0 jobs of type 'post' with {'pair': "):
            stage.assert_not_enqueued("post", pair=(1, 2))


@pytest.mark.parametrize(
    ("type", "asked", "told"),
    [
        ("post", {"to": "x"}, r"a job of type 'post' with {'to': 'x'}; there are:\n  1 pending: {'to': 'a@b.c'}"),
        ("post", {"count": 2}, "expected 2 jobs of type 'post'; found 1; there are:"),
        ("letter-send", {}, "found none; jobs of these types were created: post"),
    ],
)
async def test_a_missing_job_is_told_with_what_is_there(
    app: Everwork, type: str, asked: dict[str, object], told: str
) -> None:
    async with rehearse(app) as stage:
        await app.enqueue("post", to="a@b.c")
        with pytest.raises(AssertionError, match=told):
            stage.assert_enqueued(type, **asked)  # type: ignore[arg-type]


async def test_a_wrong_expectation_of_a_job_is_told_with_its_history(app: Everwork, world: World) -> None:
    world.failures = 1
    async with rehearse(app) as stage:
        key = await app.enqueue("letter-send", order=7)
        await stage.drain()
        told = r"is pending \(.*\)\n  \+0 s: attempt 1: fail: LookupError: the world is broken; retry after 5 s"
        for wrong in (
            lambda: stage.assert_completed(key),
            lambda: stage.assert_failed(key),
            lambda: stage.assert_retried(key, 2),
            lambda: stage.assert_retried(key, after=[6]),
        ):
            with pytest.raises(AssertionError, match=told):
                wrong()


async def test_a_dead_letter_is_asserted_with_a_part_of_its_error(app: Everwork, world: World) -> None:
    world.failures = 5
    async with rehearse(app) as stage:
        key = await app.enqueue("letter-send", order=7)
        await stage.drain(until_empty=True)
        assert stage.assert_failed(key, "world is broken") in stage.dead_letters()
        with pytest.raises(AssertionError, match="to contain 'on fire'"):
            stage.assert_failed(key, "on fire")
        with pytest.raises(AssertionError, match="there is no job 99"):
            stage.assert_completed(99)


async def test_a_failed_attempt_is_logged_with_its_retry_as_workers_log_it(
    app: Everwork, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.failures = 5
    async with rehearse(app) as stage:
        await app.enqueue("letter-send", order=7)
        await stage.drain(until_empty=True)
    logged = [(record.levelname, record.getMessage().partition(":")[0]) for record in caplog.records]
    assert logged == [
        ("WARNING", "attempt 1 of 5 failed, retrying in 5 s"),
        ("WARNING", "attempt 2 of 5 failed, retrying in 10 s"),
        ("WARNING", "attempt 3 of 5 failed, retrying in 20 s"),
        ("WARNING", "attempt 4 of 5 failed, retrying in 40 s"),
        ("ERROR", "gave up after 5 attempts"),
    ]
