"""Events that a call emits: published with its completion, in one step, or not at all."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from everwork import Everwork, JobContext, State
from everwork.core.leasing import Demand, Settlement
from everwork.core.outcome import Outcome
from everwork.core.queries import JobFilter
from everwork.exceptions import Fail, InvalidInput, Retry
from everwork.runtime.events import Event, EventCollector, collector_of_call
from tests.app.handlers import a_handler, handling
from tests.app.waiting import finished, run_one


async def published(app: Everwork) -> list[str]:
    """The variables of the jobs that events have become, oldest first."""
    page = await app._host.call(lambda service: service.find(JobFilter(type="out"), 100))
    return sorted(job.variables for job in page.jobs)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_what_a_call_emits_is_published_when_it_completes(app: Everwork, kind: str) -> None:
    def emit(events: EventCollector, n: int) -> str:
        events.emit(Event(source="out", kwargs={"n": n}))
        collector_of_call.get().emit(Event(source="out", kwargs={"n": n + 1}))
        return "done"

    async def emit_in_loop(events: EventCollector, n: int) -> str:
        return emit(events, n)

    app.job("work")(emit_in_loop if kind == "async" else emit)
    job = await run_one(app, "work", n=1)
    assert (job.state, job.result) == (State.COMPLETED, "done")
    assert await published(app) == ['{"n":1}', '{"n":2}']


@pytest.mark.parametrize("end", [ValueError("boom"), Fail("no"), Retry(delay=60)], ids=repr)
async def test_a_call_that_does_not_complete_publishes_nothing(app: Everwork, end: Exception) -> None:
    emitted = asyncio.Event()

    async def work(events: EventCollector) -> None:
        events.emit(Event(source="out"))
        emitted.set()
        raise end

    async with handling(app, a_handler(work, "work")):
        key = await app.enqueue("work")
        await emitted.wait()
    assert (await app.get(key)).state is not State.COMPLETED
    assert await published(app) == []


async def test_events_beyond_the_limit_and_after_the_call_are_refused(app: Everwork) -> None:
    kept: list[EventCollector] = []

    async def work(events: EventCollector) -> None:
        kept.append(events)
        for _ in range(3):
            events.emit(Event(source="out"))

    async with handling(app, a_handler(work, "work", events_max=2)):
        job = await finished(app, await app.enqueue("work"))
    assert str(job.last_error).startswith("InvalidInput: event: must be at most 2 per call")
    with pytest.raises(InvalidInput, match="before its call ends"):
        kept[0].emit(Event(source="out"))
    assert await published(app) == []


async def test_one_step_carries_no_more_events_than_a_worker_allows(
    app: Everwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.open()
    engine, carried, all_here = app.service._engine, [], asyncio.Barrier(4)
    settle = engine.settle

    async def watched(outcomes: Sequence[Outcome], demands: Sequence[Demand] = ()) -> Settlement:
        carried.append([len(getattr(outcome, "events", ())) for outcome in outcomes])
        return await settle(outcomes, demands)

    async def work(events: EventCollector, n: int) -> None:
        await all_here.wait()
        for _ in range(n):
            events.emit(Event(source="out"))

    monkeypatch.setattr(engine, "settle", watched)
    keys = await app.enqueue_many([("work", {"n": n}) for n in (2, 2, 9, 0)])
    async with handling(app, a_handler(work, "work", concurrency=4, settle_events_max=4)):
        assert {(await finished(app, key)).state for key in keys} == {State.COMPLETED}
    assert all(sum(step) <= 4 or sum(step) == 9 == max(step) for step in carried), carried
    assert len(await published(app)) == 13


async def test_a_completion_in_the_handlers_own_transaction_publishes_what_was_emitted(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"

    async def work(ctx: JobContext, events: EventCollector, commits: bool) -> Any:
        events.emit(Event(source="out"))
        with closing(sqlite3.connect(path)) as own:
            await ctx.complete(tx=own)
            with pytest.raises(InvalidInput, match="before its call ends or completes its job"):
                events.emit(Event(source="out"))
            if commits:
                own.commit()
                return
        raise Fail("rolled back")

    async with Everwork(f"sqlite:///{path}") as app:
        async with handling(app, a_handler(work, "work")):
            await finished(app, await app.enqueue("work", commits=False))
            assert await published(app) == []
            await finished(app, await app.enqueue("work", commits=True))
        assert await published(app) == ["{}"]
