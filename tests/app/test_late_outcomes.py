"""An attempt that outlives an outage: its lease is taken back, and its outcome counts, unless another has begun."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everwork import Everwork, Spool, State
from everwork.core.leasing import Demand
from everwork.core.outcome import Complete
from everwork.engines.contract import Engine
from everwork.engines.open import open_engine
from everwork.runtime import late as late_outcomes
from everwork.runtime.ledger import Ledger
from everwork.spool.courier import Turn
from everwork.spool.file import SpoolCounts, SpoolFile
from everwork.spool.settings import Offline
from tests.app.handlers import a_handler, a_ledger, fetcher_of, handling
from tests.app.test_lost_answers import lose_answers
from tests.app.waiting import DEADLINE_S, finished, until, working
from tests.outages import Outage
from tests.stores import SECOND_MS, VirtualClock

pytestmark = pytest.mark.every_engine


@pytest.fixture
async def late(url: str, clock: VirtualClock) -> AsyncIterator[Engine]:
    """Another engine on the same store, for whom 31 seconds more have passed: every lease has run out."""
    engine = open_engine(url, clock=lambda: clock() + 31 * SECOND_MS)
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
async def outage(app: Everwork, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Outage]:
    await app.open()
    made = Outage(app.service._engine, monkeypatch)
    yield made
    made.end()


@pytest.fixture
def offline(url: str, tmp_path: Path) -> Offline:
    made = Offline.of(Spool(str(tmp_path / "spool.db"), patience=60), url)
    assert made is not None
    return made


@pytest.fixture
async def app_with_spool(url: str, clock: VirtualClock, offline: Offline) -> AsyncIterator[Everwork]:
    async with Everwork(url, clock=clock, offline=offline.spool) as made:
        yield made


def in_spool(offline: Offline) -> SpoolCounts:
    """How much a spool holds."""
    file = SpoolFile(*offline)
    try:
        return file.counts()
    finally:
        file.close()


async def test_a_completion_counts_although_its_lease_was_not_taken_back_yet(
    app: Everwork, late: Engine, outage: Outage
) -> None:
    """Its worker is busy and requests nothing: only the heartbeat notices the outage, and does not get through."""
    begun, release = asyncio.Event(), asyncio.Event()

    @app.job("wait")
    async def wait() -> str:
        begun.set()
        await release.wait()
        return "done"

    async with working(app):
        key = await wait.enqueue()
        await begun.wait()
        outage.fail("extend", "check")
        await until(lambda: len(outage.failed) > 1)
        assert (await late.sweep("late")).lapsed == 1
        release.set()
        assert await asyncio.wait_for(app.result(key), DEADLINE_S) == "done"
    assert [(event.attempt, event.kind) for event in await app.history(key)] == [(1, "complete")]


async def test_a_handler_runs_on_after_an_outage_that_only_the_fetcher_has_noticed(
    app: Everwork, late: Engine, outage: Outage
) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    @app.job("wait", concurrency=2)
    async def wait() -> str:
        begun.set()
        await release.wait()
        return "done"

    async with working(app):
        key = await wait.enqueue()
        await begun.wait()
        outage.silence("extend", "check")
        outage.fail("settle", "activate")
        await until(lambda: len(outage.failed) > 1)
        assert (await late.sweep("late")).lapsed == 1
        await until(lambda: outage.silent)
        outage.end()
        await until(lambda: is_processing(app, key))
        release.set()
        assert await asyncio.wait_for(app.result(key), DEADLINE_S) == "done"
    assert [(event.attempt, event.kind) for event in await app.history(key)] == [(1, "complete")]


async def is_processing(app: Everwork, key: int) -> bool:
    return (await app.get(key)).state is State.PROCESSING


async def test_a_completion_counts_although_its_parent_has_not_taken_the_lease_back_yet(
    app: Everwork, late: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_outcomes, "WATCH_SECONDS", 0.01)
    begun, release = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        begun.set()
        await release.wait()
        return "done"

    ledger = a_ledger()
    await app.open()
    key = await app.enqueue("wait")
    async with handling(app, a_handler(wait, "wait"), ledger=ledger) as runtime:
        await begun.wait()
        Ledger(ledger._memory).keep(time.monotonic() - 31)  # Since then it could not reach the store.
        await until(lambda: fetcher_of(runtime)._late.doubtful)
        assert (await late.sweep("late")).lapsed == 1
        release.set()
        assert await asyncio.wait_for(app.result(key), DEADLINE_S) == "done"
    assert [(event.attempt, event.kind) for event in await app.history(key)] == [(1, "complete")]


async def test_a_completion_counts_if_the_engine_was_silent_until_its_lease_had_lapsed(
    app: Everwork, late: Engine, outage: Outage
) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    @app.job("wait")
    async def wait() -> str:
        begun.set()
        await release.wait()
        return "done"

    async with working(app):
        key = await wait.enqueue()
        await begun.wait()
        outage.silence("settle", "extend", "check")
        release.set()
        await until(lambda: "settle" in outage.silent)
        runtime = app._workers.runtime
        assert runtime is not None
        for attempt in fetcher_of(runtime)._leased.values():
            attempt.extended_at -= 31
        await until(lambda: fetcher_of(runtime)._late.doubtful)
        assert (await late.sweep("late")).lapsed == 1
        outage.end()
        assert await asyncio.wait_for(app.result(key), DEADLINE_S) == "done"
    assert [(event.attempt, event.kind) for event in await app.history(key)] == [(1, "complete")]


async def test_a_late_outcome_that_is_refused_is_set_aside_whoever_reports_it(
    app_with_spool: Everwork, late: Engine, offline: Offline, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, begun, release = app_with_spool, asyncio.Event(), asyncio.Event()
    outage = Outage(app.service._engine, monkeypatch)

    @app.job("wait")
    async def wait() -> str:
        begun.set()
        await release.wait()
        return "too late"

    async with working(app):
        key = await wait.enqueue()
        await begun.wait()
        outage.fail("settle", "extend", "check")
        release.set()
        await until(lambda: in_spool(offline).outcomes == 1)
        assert (await late.sweep("late")).lapsed == 1
        clock.advance(seconds=600)
        await until(lambda: completed_by_another(late))
        outage.end()
        await until(lambda: in_spool(offline).outcomes == 0)
    assert in_spool(offline).aside == 1
    assert await app.result(key) == "in time"


async def completed_by_another(engine: Engine) -> bool:
    jobs = (await engine.activate([Demand("wait", "w2", 1)])).jobs
    await engine.settle([Complete(job.key, job.attempt, '"in time"') for job in jobs])
    return bool(jobs)


@pytest.mark.parametrize("is_abandoned", [True, False], ids=["abandoned", "patience is over"])
async def test_an_outcome_that_gets_no_answer_is_in_the_spool(
    app_with_spool: Everwork, offline: Offline, monkeypatch: pytest.MonkeyPatch, is_abandoned: bool
) -> None:
    monkeypatch.setattr(late_outcomes, "WATCH_SECONDS", 60.0 if is_abandoned else 0.01)
    app, begun, release = app_with_spool, asyncio.Event(), asyncio.Event()
    outage = Outage(app.service._engine, monkeypatch)

    @app.job("wait")
    async def wait() -> str:
        begun.set()
        await release.wait()
        return "done"

    async with working(app):
        key = await wait.enqueue()
        await begun.wait()
        outage.silence("settle")
        release.set()
        await until(lambda: outage.silent)
        assert app._workers.runtime is not None
        if is_abandoned:
            app.loop.call_soon_threadsafe(fetcher_of(app._workers.runtime).abandon)
        else:
            monkeypatch.setattr(app.service.outbox, "patience", 0.0)
        await until(lambda: in_spool(offline).outcomes == 1)
        outage.end()
        assert (await finished(app, key)).state is State.COMPLETED
        await until(lambda: in_spool(offline)[:3] == (0, 0, 0))


async def test_a_job_whose_outcome_is_in_the_spool_is_not_released_as_unknown(
    app_with_spool: Everwork, late: Engine, offline: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was left there by workers that ran before in this process, under the same name."""
    app = app_with_spool

    @app.job("work")
    async def work() -> None: ...

    kept = await app.enqueue("other")
    [job] = (await late.activate([Demand("other", app.worker, 1)])).jobs
    turn = Turn(offline.spool.path)
    assert turn.take()
    try:
        await asyncio.to_thread(keep, offline, Complete(job.key, job.attempt, "42"))
        await lose_answers(app, monkeypatch, of="jobs")
        async with working(app):
            await asyncio.wait_for(app.result(await work.enqueue()), DEADLINE_S)
            assert (await app.get(kept)).state is State.PROCESSING
    finally:
        turn.give_back()
    assert await asyncio.wait_for(app.result(kept), DEADLINE_S) == 42


def keep(offline: Offline, outcome: Complete) -> None:
    file = SpoolFile(*offline)
    file.keep_outcomes([outcome])
    file.close()
