"""How an attempt ends: by what the handler returns or raises."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from everwork import Everwork, JobContext, RetryPolicy, State
from everwork.exceptions import Fail, Reject, ResultNotStored, Retry
from tests.app.waiting import finished, run_one, until, working

AT_ONCE = RetryPolicy(max_attempts=3, base=0.0)


@dataclass
class Receipt:
    """What a handler may return."""

    number: int


def raising(error: Callable[[], BaseException]) -> Callable[[], None]:
    """A plain handler that raises."""

    def handler() -> None:
        raise error()

    return handler


def raising_async(error: Callable[[], BaseException]) -> Callable[[], Any]:
    """An async handler that raises."""

    async def handler() -> None:
        raise error()

    return handler


BOTH = pytest.mark.parametrize("make", [raising, raising_async])


async def test_an_async_handler_runs_in_the_event_loop_of_the_workers(app: Everwork) -> None:
    ran_in: list[Any] = []

    @app.job("where")
    async def where() -> None:
        ran_in.append(asyncio.get_running_loop())

    await run_one(app, "where")
    assert ran_in == [asyncio.get_running_loop()]


async def test_a_plain_handler_runs_in_a_thread_of_its_own(app: Everwork) -> None:
    @app.job("where")
    def where() -> str:
        return threading.current_thread().name

    job = await run_one(app, "where")
    assert str(await app.result(job.key)).startswith("everwork-handler-")


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ({"sent": True}, {"sent": True}),
        ([1, None], [1, None]),
        ("text", "text"),
        (0, 0),
        (False, False),
        (1.5, 1.5),
        (Receipt(7), {"number": 7}),
        (datetime(2030, 1, 2, tzinfo=UTC), "2030-01-02T00:00:00+00:00"),
        (None, None),
    ],
)
async def test_what_the_handler_returns_is_the_result(app: Everwork, value: Any, result: Any) -> None:
    @app.job("give")
    async def give() -> Any:
        return value

    job = await run_one(app, "give")
    assert job.state is State.COMPLETED, job.last_error
    assert await app.result(job.key) == result


async def test_the_note_of_one_job_is_an_ordinary_result_of_another(app: Everwork) -> None:
    @app.job("give")
    def give() -> Any:
        return object()

    @app.job("copy")
    async def copy(key: int) -> Any:
        return (await app.get(key)).result

    noted = await run_one(app, "give")
    copied = await run_one(app, "copy", key=noted.key)
    assert await app.result(copied.key) == noted.result == copied.result


class Odd(BaseModel):
    """A result that is made, but cannot be read again."""

    names: dict[str, int]

    @field_validator("names", mode="after")
    @classmethod
    def checked(cls, names: dict[str, int]) -> dict[str, int]:
        """Fails with an error of its own."""
        return {"first": names["missing"]}


@pytest.mark.parametrize(
    ("hint", "value"), [(dict[str, date], {"x" * 2**20: "no date"}), (Odd, Odd.model_construct(names={}))]
)
async def test_a_result_of_which_not_even_the_error_is_short_or_expected_does_not_repeat_the_job(
    app: Everwork, hint: Any, value: Any
) -> None:
    def give() -> Any:
        return value

    give.__annotations__["return"] = hint
    app.job("give", retry=AT_ONCE)(give)
    job = await run_one(app, "give")
    assert (job.state, job.attempts) == (State.COMPLETED, 1)
    with pytest.raises(ResultNotStored):
        await app.result(job.key)


@pytest.mark.parametrize("value", [object(), {"x": float("nan")}, 2**64, {1: 2}, b"\xff", "\udcff", "x" * 2**20])
async def test_a_job_whose_result_cannot_be_stored_is_completed_with_a_note(app: Everwork, value: Any) -> None:
    @app.job("give", retry=AT_ONCE)
    def give() -> Any:
        return value

    job = await run_one(app, "give")
    assert (job.state, job.attempts) == (State.COMPLETED, 1)
    assert str(job.result["everwork.result_not_stored"]).startswith("result: must ")
    with pytest.raises(ResultNotStored, match=f"^job '{job.key}' is completed, but its result could not be stored: "):
        await app.result(job.key)


@BOTH
async def test_fail_is_final_whatever_attempts_are_left(app: Everwork, make: Any) -> None:
    app.job("work", retry=AT_ONCE)(make(lambda: Fail("no such address")))
    job = await run_one(app, "work")
    assert (job.state, job.attempts, job.last_error, job.rejected) == (State.FAILED, 1, "no such address", False)


@BOTH
async def test_reject_is_final_and_marks_the_job_rejected(app: Everwork, make: Any) -> None:
    app.job("work", retry=AT_ONCE)(make(lambda: Reject("makes no sense")))
    job = await run_one(app, "work")
    assert (job.state, job.attempts, job.last_error, job.rejected) == (State.FAILED, 1, "makes no sense", True)


@BOTH
async def test_an_exception_is_retried_by_the_policy_until_its_attempts_are_used(app: Everwork, make: Any) -> None:
    app.job("work", retry=AT_ONCE)(make(lambda: ValueError("boom")))
    job = await run_one(app, "work")
    assert (job.state, job.attempts, job.last_error) == (State.FAILED, 3, "ValueError: boom")
    assert [event.kind for event in await app.history(job.key)] == ["fail"] * 3


@BOTH
async def test_without_a_policy_an_exception_is_final_at_once(app: Everwork, make: Any) -> None:
    app.job("work", retry=None)(make(KeyError))
    job = await run_one(app, "work")
    assert (job.state, job.attempts, job.max_attempts, job.last_error) == (State.FAILED, 1, 1, "KeyError")


async def test_without_a_policy_a_retry_signal_still_retries(app: Everwork) -> None:
    attempts: list[int] = []

    @app.job("work", retry=None)
    async def work(ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            raise Retry("not yet", delay=0)

    job = await run_one(app, "work")
    assert (job.state, attempts) == (State.COMPLETED, [1, 2])


async def test_a_retry_signal_waits_for_the_delay_it_names(app: Everwork) -> None:
    @app.job("work", retry=AT_ONCE)
    async def work() -> None:
        raise Retry("not yet", delay=90.5)

    async with working(app):
        key = await app.enqueue("work")
        await until(lambda: app.history(key))
    job = await app.get(key)
    assert (job.state, job.run_at_ms - job.created_at_ms, job.last_error) == (State.PENDING, 90_500, "not yet")


async def test_a_retry_signal_without_delay_waits_as_the_policy_says(app: Everwork) -> None:
    @app.job("work", retry=RetryPolicy(base=7.0))
    async def work() -> None:
        raise Retry

    async with working(app):
        key = await app.enqueue("work")
        await until(lambda: app.history(key))
    job = await app.get(key)
    assert (job.state, job.run_at_ms - job.created_at_ms) == (State.PENDING, 7_000)


async def test_a_retry_signal_never_passes_max_attempts(app: Everwork) -> None:
    app.job("work", retry=AT_ONCE)(raising(lambda: Retry("again", delay=0)))
    job = await run_one(app, "work")
    assert (job.state, job.attempts, job.last_error) == (State.FAILED, 3, "again")


async def test_a_job_with_a_policy_of_its_own_follows_it(app: Everwork) -> None:
    app.job("work")(raising(lambda: ValueError("boom")))
    job = await run_one(app, "work", using={"retry": RetryPolicy(max_attempts=2, base=0.0)})
    assert (job.state, job.attempts) == (State.FAILED, 2)


async def test_a_failed_attempt_leaves_the_worker_running(app: Everwork) -> None:
    @app.job("work", retry=None)
    async def work(fails: bool) -> str:
        if fails:
            raise ValueError("boom")
        return "done"

    async with working(app):
        await finished(app, await work.enqueue(fails=True))
        assert (await finished(app, await work.enqueue(fails=False))).state is State.COMPLETED


async def test_the_policy_of_a_handler_declared_after_opening_is_followed(app: Everwork) -> None:
    await app.open()
    app.job("work", retry=AT_ONCE)(raising(lambda: ValueError("boom")))
    async with working(app):
        key = await app.enqueue("work")
        await until(lambda: app.history(key))
    assert (await app.get(key)).max_attempts == 3


class Unshowable(Exception):
    """An error of a user's whose text raises."""

    def __str__(self) -> str:
        raise ValueError("no text")


ODD_ENDS: dict[str, Callable[[], BaseException]] = {
    "an error text with a lone surrogate": lambda: ValueError("\udcff"),
    "an error text with a NUL character": lambda: ValueError("a\0b"),
    "a long error text": lambda: ValueError("x" * 60_000),
    "a Fail with a lone surrogate": lambda: Fail("\udcff"),
    "a Fail whose detail is no text": lambda: Fail(ValueError("boom")),  # type: ignore[arg-type]
    "a Reject whose detail is no text": lambda: Reject({"code": 3}),  # type: ignore[arg-type]
    "a Retry whose detail is no text": lambda: Retry(5, delay=0),
    "a Retry whose delay is not a number": lambda: Retry(delay=float("nan")),
    "a Retry whose delay is infinite": lambda: Retry(delay=float("inf")),
    "a Retry whose delay is a text": lambda: Retry(delay="5"),  # type: ignore[arg-type]
    "a Retry whose delay is negative": lambda: Retry(delay=-1e9),
    "a Retry whose delay is absurd": lambda: Retry(delay=1e300),
    "an error that cannot be shown": Unshowable,
    "a cancellation that nobody asked for": asyncio.CancelledError,
    "a StopIteration": StopIteration,
}


@BOTH
@pytest.mark.parametrize("end", ODD_ENDS)
async def test_whatever_a_handler_raises_ends_its_attempt_and_not_the_worker(
    app: Everwork, caplog: pytest.LogCaptureFixture, make: Any, end: str
) -> None:
    caplog.set_level(logging.CRITICAL, "everwork")  # Test reports cannot carry a lone surrogate.
    app.job("odd", retry=RetryPolicy(max_attempts=2, base=0.0))(make(ODD_ENDS[end]))

    @app.job("good")
    async def good() -> str:
        return "done"

    async with working(app):
        odd = await finished(app, await app.enqueue("odd"))
        after = await finished(app, await app.enqueue("good"))
    assert (odd.state, after.state) == (State.FAILED, State.COMPLETED)


async def test_the_log_of_a_failed_job_does_not_show_the_handlers_variables(
    app: Everwork, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job("work", retry=None)
    async def work() -> None:
        password = "".join(reversed("2retnuh"))
        raise ValueError(f"wrong password of {len(password)} characters")

    await run_one(app, "work")
    assert "wrong password of 7 characters" in caplog.text
    assert "hunter2" not in caplog.text


async def test_a_handler_may_enqueue_and_wait_for_other_jobs(app: Everwork) -> None:
    @app.job("inner")
    def inner(number: int) -> int:
        return number + 1

    @app.job("outer")
    async def outer() -> int:
        return int(await app.result(await inner.enqueue(number=1)))

    job = await run_one(app, "outer")
    assert await app.result(job.key) == 2


async def test_a_plain_handler_may_use_the_sync_twins(app: Everwork) -> None:
    @app.job("inner")
    async def inner() -> str:
        return "inner"

    @app.job("outer")
    def outer() -> Any:
        return app.sync.result(app.sync.enqueue("inner"))

    job = await run_one(app, "outer")
    assert await app.result(job.key) == "inner"
