"""get, history, explain, result, cancel and requeue of Everwork."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import pytest

from everwork import Everwork, State
from everwork.exceptions import (
    EngineUnavailable,
    Fail,
    InvalidInput,
    JobFailed,
    JobNotFound,
    ResultTimeout,
    WrongState,
)
from tests.app.waiting import DEADLINE_S, SOON_S, run_one, working

Ask = Callable[[Everwork, Any], Awaitable[Any]]


@pytest.mark.every_engine
async def test_get_shows_the_job_as_it_stands(app: Everwork) -> None:
    key = await app.enqueue("email-send")
    await app.cancel(key, "not needed")
    job = await app.get(key)
    assert (job.state, job.last_error) == (State.CANCELLED, "not needed")


ASKS: list[Ask] = [Everwork.get, Everwork.explain, Everwork.result, Everwork.cancel, Everwork.requeue]


@pytest.mark.parametrize("ask", ASKS)
async def test_an_unknown_key_is_not_found(app: Everwork, ask: Ask) -> None:
    with pytest.raises(JobNotFound, match="Job '4711' not found"):
        await ask(app, 4711)


@pytest.mark.parametrize("ask", [*ASKS, Everwork.history])
async def test_what_is_no_key_is_refused_by_name(app: Everwork, ask: Ask) -> None:
    for key in (0, -1, 2**63, True, 1.5, "x", "", None, [1]):
        with pytest.raises(InvalidInput, match=r"^key: must be a job key"):
            await asyncio.wait_for(ask(app, key), SOON_S)


async def test_a_key_may_be_given_as_text(app: Everwork) -> None:
    key = await app.enqueue("email-send")
    assert (await app.get(str(key))).key == key  # type: ignore[arg-type]


@pytest.mark.every_engine
async def test_result_waits_for_the_job_to_finish(app: Everwork) -> None:
    @app.job("add")
    async def add(a: int, b: int) -> int:
        return a + b

    waiting = asyncio.ensure_future(app.result(await add.enqueue(a=2, b=3), timeout=DEADLINE_S))
    async with working(app):
        assert await waiting == 5


async def test_result_of_a_handler_without_return_value_is_none(app: Everwork) -> None:
    @app.job("quiet")
    async def quiet() -> None:
        pass

    job = await run_one(app, "quiet")
    assert await app.result(job.key, timeout=DEADLINE_S) is None


@pytest.mark.every_engine
async def test_result_of_a_failed_job_raises_its_error(app: Everwork) -> None:
    @app.job("fail")
    async def fail() -> None:
        raise Fail("no such address")

    job = await run_one(app, "fail")
    with pytest.raises(JobFailed, match="failed: no such address"):
        await app.result(job.key)


async def test_result_of_a_cancelled_job_raises_the_reason(app: Everwork) -> None:
    key = await app.enqueue("email-send")
    await app.cancel(key, "not needed")
    with pytest.raises(JobFailed, match="cancelled: not needed"):
        await app.result(key)


async def test_result_gives_up_after_its_timeout(app: Everwork) -> None:
    key = await app.enqueue("email-send")
    with pytest.raises(ResultTimeout) as caught:
        await app.result(key, timeout=0.01)
    why = "no worker has polled for type 'email-send' yet; start one"
    assert str(caught.value) == f"job '{key}' is still pending after 0.01 s: {why}"


async def test_a_reason_that_cannot_be_found_does_not_hide_the_timeout(
    app: Everwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def explain(*_: object) -> NoReturn:
        raise EngineUnavailable("gone")

    key = await app.enqueue("email-send")
    monkeypatch.setattr(Everwork, "explain", explain)
    with pytest.raises(ResultTimeout, match=rf"^job '{key}' is still pending after 0 s$"):
        await app.result(key, timeout=0)


@pytest.mark.parametrize("timeout", [-1, float("nan"), "5", True])
async def test_a_timeout_that_is_none_is_refused_by_name(app: Everwork, timeout: Any) -> None:
    key = await app.enqueue("email-send")
    with pytest.raises(InvalidInput, match=r"^timeout: must be a number"):
        await app.result(key, timeout=timeout)


async def test_a_caller_who_stops_waiting_for_a_result_disturbs_nobody(app: Everwork) -> None:
    @app.job("add")
    async def add(a: int) -> int:
        return a

    key = await add.enqueue(a=1)
    gone, stays = (asyncio.ensure_future(app.result(key, timeout=DEADLINE_S)) for _ in range(2))
    await asyncio.wait({gone}, timeout=0)
    gone.cancel()
    async with working(app):
        assert await stays == 1


async def test_cancel_of_a_finished_job_is_refused(app: Everwork) -> None:
    @app.job("quiet")
    async def quiet() -> None:
        pass

    job = await run_one(app, "quiet")
    with pytest.raises(WrongState, match="is completed: it cannot be cancelled"):
        await app.cancel(job.key)


@pytest.mark.every_engine
async def test_cancel_twice_is_accepted(app: Everwork) -> None:
    key = await app.enqueue("email-send")
    await app.cancel(key)
    await app.cancel(key)
    assert (await app.get(key)).state is State.CANCELLED


@pytest.mark.every_engine
async def test_requeue_brings_a_dead_letter_back(app: Everwork) -> None:
    @app.job("fail")
    async def fail() -> None:
        raise Fail("no such address")

    job = await run_one(app, "fail")
    await app.requeue(job.key)
    back = await app.get(job.key)
    assert (back.state, back.attempts, back.attempt, back.last_error) == (State.PENDING, 0, 1, None)


async def test_requeue_of_a_pending_job_is_refused(app: Everwork) -> None:
    key = await app.enqueue("email-send")
    with pytest.raises(WrongState, match="is pending: it cannot be requeued"):
        await app.requeue(key)


@pytest.mark.every_engine
async def test_history_tells_how_attempts_ended(app: Everwork) -> None:
    @app.job("fail")
    async def fail() -> None:
        raise Fail("no such address")

    job = await run_one(app, "fail")
    [event] = await app.history(job.key)
    assert (event.attempt, event.kind, event.worker, event.error) == (1, "fail", "w1", "no such address")


async def test_history_of_an_unknown_job_is_empty(app: Everwork) -> None:
    assert await app.history(4711) == []
