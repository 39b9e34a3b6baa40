"""An engine that does what it was asked and whose answer is lost on the way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from everwork import Everwork
from everwork.exceptions import EngineUnavailable
from tests.app.waiting import DEADLINE_S, working

if TYPE_CHECKING:
    import pytest

    from everwork.core.leasing import Settlement

pytestmark = pytest.mark.every_engine


async def lose_answers(app: Everwork, monkeypatch: pytest.MonkeyPatch, *, of: str) -> list[Settlement]:
    """Let the first answer that brings jobs, or ends attempts, be lost; what was lost."""
    await app.open()
    engine, lost = app.service._engine, list[Any]()
    settle = engine.settle

    async def lossy(outcomes: Any, demands: Any = ()) -> Settlement:
        answer = await settle(outcomes, demands)
        if not lost and (answer.judged if of == "outcomes" else answer.activation.jobs):
            lost.append(answer)
            raise EngineUnavailable("the connection was lost")
        return answer

    monkeypatch.setattr(engine, "settle", lossy)
    return lost


async def test_jobs_whose_lease_nobody_heard_of_go_back_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Everwork(url)

    @app.job("work", concurrency=5)
    async def work() -> str:
        return "done"

    lost = await lose_answers(app, monkeypatch, of="jobs")
    keys = await app.enqueue_many([("work", {})] * 5)
    async with app, working(app):
        for key in keys:
            assert await asyncio.wait_for(app.result(key), DEADLINE_S) == "done"
        orphan = lost[0].activation.jobs[0].key
        events = [(event.attempt, event.kind) for event in await app.history(orphan)]
    assert events == [(1, "release"), (2, "complete")]


async def test_all_jobs_whose_lease_nobody_heard_of_go_back_however_many(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everwork.service.service.LIST_LIMIT_MAX", 2)
    app = Everwork(url)

    @app.job("work", concurrency=5)
    async def work() -> None: ...

    await lose_answers(app, monkeypatch, of="jobs")
    keys = await app.enqueue_many([("work", {})] * 5)
    async with app, working(app):
        for key in keys:
            await asyncio.wait_for(app.result(key), DEADLINE_S)


async def test_an_outcome_whose_answer_was_lost_is_reported_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Everwork(url)
    calls: list[int] = []

    @app.job("work")
    async def work() -> None:
        calls.append(1)

    lost = await lose_answers(app, monkeypatch, of="outcomes")
    key = await app.enqueue("work")
    async with app, working(app):
        await asyncio.wait_for(app.result(key), DEADLINE_S)
    assert (len(lost), len(calls)) == (1, 1)
    async with app:
        assert [event.kind for event in await app.history(key)] == ["complete"]
