"""A stage runs what is due, by a clock that only the test moves."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from everwork import Everwork, JobContext, Rate, RetryPolicy, TypePolicy
from everwork.codec.new_job import new_job
from everwork.engines.sqlite.engine import SqliteEngine
from everwork.exceptions import BadConfiguration, Fail, InvalidInput, Reject, ResultTimeout, Retry
from everwork.testing import FailEveryNth, StillBusy, rehearse
from tests.testing.applications import Herald, World


async def test_a_drain_runs_what_is_due_and_what_that_leads_to(app: Everwork, world: World) -> None:
    async with rehearse(app) as stage:
        await app.enqueue("order-place", order=7)
        await app.using(delay=60).enqueue("order-place", order=8)
        runs = await stage.drain()
    assert [(run.key, run.type, run.outcome) for run in runs] == [
        (1, "order-place", "complete"),
        (3, "letter-send", "complete"),
    ]
    assert world.done == [("order", 7), ("letter", 7)]


async def test_a_result_that_is_waited_for_before_a_drain_names_drain(app: Everwork) -> None:
    async with rehearse(app) as stage:
        for _ in range(2):  # Also soon after a drain, when its type was asked for.
            key = await app.enqueue("letter-send", order=7)
            advice = r"no workers are running in a rehearsal: run its jobs with drain\(\)$"
            with pytest.raises(ResultTimeout, match=rf"^job '{key}' is still pending after 0 s: {advice}"):
                await app.result(key, timeout=0)
            await stage.drain()
        key = await app.enqueue("unknown")
        assert stage.explain(key).text == "no function or worker class on this stage handles type 'unknown'"


async def test_a_drain_until_empty_jumps_over_delays_and_backoffs(app: Everwork, world: World) -> None:
    world.failures = 4
    async with rehearse(app) as stage:
        key = await app.using(delay=3600).enqueue("letter-send", order=7)
        runs = await stage.drain(until_empty=True)
        assert [run.attempt for run in runs] == [1, 2, 3, 4, 5]
        assert stage.clock.now() == datetime(2026, 1, 5, 1, 1, 15, tzinfo=UTC)
        stage.assert_retried(key, 4, after=[5, 10, 20, 40])
        stage.assert_completed(key)


async def test_a_drain_over_a_span_runs_each_job_at_its_time(app: Everwork) -> None:
    instants: list[timedelta] = []
    async with rehearse(app) as stage:
        start = stage.clock.now()

        @app.job("late", retry=RetryPolicy(max_attempts=3, base=120, factor=1))
        async def late() -> None:
            instants.append(stage.clock.now() - start)
            raise LookupError

        await app.using(delay=60).enqueue("late")
        await stage.drain(hours=2)
        assert stage.clock.now() - start == timedelta(hours=2)
    assert instants == [timedelta(minutes=1), timedelta(minutes=3), timedelta(minutes=5)]


async def test_a_drain_until_empty_waits_for_the_windows_of_a_rate(app: Everwork) -> None:
    @app.job("slow", policy=TypePolicy(rate=Rate(jobs=2, seconds=60)))
    async def slow() -> None: ...

    async with rehearse(app) as stage:
        await app.enqueue_many([("slow", {})] * 5)
        assert len(await stage.drain()) == 2
        assert len(await stage.drain(until_empty=True)) == 3
        assert stage.clock.now_ms - stage.clock.start_ms == 120_000


async def test_a_drain_until_empty_leaves_what_cannot_run(app: Everwork) -> None:
    async with rehearse(app) as stage:
        await app.enqueue("letter-send", order=7)
        await app.using(delay=60).enqueue("handled-elsewhere")
        stage.pause("letter-send")
        assert await stage.drain(until_empty=True) == []
        stage.pause("letter-send", paused=False)
        assert len(await stage.drain(until_empty=True)) == 1


async def test_time_may_pass_without_workers(app: Everwork, world: World) -> None:
    async with rehearse(app) as stage:
        expired = await app.using(expires_at=stage.clock.now() + timedelta(hours=1)).enqueue("letter-send", order=1)
        kept = await app.enqueue("letter-send", order=2)
        await stage.advance(hours=24)
        assert stage.job(expired).finished_at_ms == stage.clock.start_ms + 3_600_000
        assert [run.key for run in await stage.drain()] == [kept]


async def test_the_cost_of_a_jump_does_not_grow_with_the_number_of_jobs(
    app: Everwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteEngine, "find", None)  # Whoever looks at every job needs it.
    async with rehearse(app, Herald) as stage:
        await app.enqueue_many([app.using(delay=order * 60).call("letter-send", order=order) for order in range(3)])
        await stage.advance(hours=2)
        assert len(await stage.drain(until_empty=True)) == 5


async def test_worker_classes_are_started_fired_by_the_clock_and_shut_down() -> None:
    Herald.told.clear()
    async with rehearse(Herald) as stage:
        await stage.advance(hours=3)
        assert [run.type for run in await stage.drain()] == [Herald._get_settings().default_source] * 3
    assert Herald.told == ["startup", "the hour", "the hour", "the hour", "shutdown"]


def test_a_test_without_event_loop_has_the_same_stage(app: Everwork, world: World) -> None:
    with rehearse(app) as stage:
        key = app.sync.enqueue("order-place", order=7)
        run = stage.run_one()
        assert run is not None
        assert run.key == key
        assert app.sync.result(key, timeout=0) == {"order": 7}
        stage.advance(minutes=1)
        assert [run.type for run in stage.drain()] == ["letter-send"]
        assert stage.run_one() is None


async def test_a_blocking_stage_refuses_to_block_an_event_loop(app: Everwork) -> None:
    with rehearse(app) as stage, pytest.raises(BadConfiguration, match="async with"):
        stage.drain()


async def test_a_drain_that_never_ends_is_stopped_and_says_who_it_is() -> None:
    app = Everwork("sqlite:///nowhere.db")

    @app.job("echo")
    async def echo() -> None:
        await app.enqueue("echo")

    async with rehearse(app) as stage:
        await app.enqueue("echo")
        with pytest.raises(StillBusy, match=r"more than 20 jobs were run(.|\n)*job 21 of type 'echo'"):
            await stage.drain(max_jobs=20)


async def test_what_a_handler_raises_can_be_raised_in_the_test(app: Everwork, world: World) -> None:
    world.failures = 1
    async with rehearse(app) as stage:
        key = await app.enqueue("letter-send", order=7)
        with pytest.raises(LookupError, match="broken"):
            await stage.drain(raise_errors=True)
        stage.assert_retried(key, 1)


@pytest.mark.parametrize(
    ("raised", "kind", "told"),
    [
        (None, Fail, "argument order"),
        (Fail("no"), Fail, "no"),
        (Reject("nonsense"), Reject, "nonsense"),
        (TimeoutError(), TimeoutError, "timed out after 0.1 s"),
    ],
)
async def test_whatever_fails_a_job_is_raised_in_the_test(
    app: Everwork, raised: Exception | None, kind: type[Exception], told: str
) -> None:
    @app.job("picky", timeout=0.1)
    async def picky(order: int) -> None:
        if isinstance(raised, Fail | Reject):
            raise raised
        await asyncio.Event().wait()

    async with rehearse(app) as stage:
        # As another program creates it, which does not know the handler.
        await app._host.create([new_job("picky", {"order": "many" if raised is None else 7})])
        with pytest.raises(kind, match=told) as caught:
            await stage.drain(raise_errors=True)
        assert caught.value is raised or not isinstance(raised, Fail | Reject)


async def test_a_job_that_asks_for_a_retry_raises_nothing_in_the_test(app: Everwork) -> None:
    @app.job("later")
    async def later() -> None:
        raise Retry("not yet")

    async with rehearse(app) as stage:
        await app.enqueue("later")
        [run] = await stage.drain(raise_errors=True)
    assert (run.outcome, str(run.exception)) == ("retry", "not yet")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_that_outlives_its_time_holds_up_nobody(app: Everwork, is_async: bool) -> None:
    released = threading.Event()

    async def swallow() -> None:
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    app.job("stuck", timeout=0.01, retry=RetryPolicy(max_attempts=2))(swallow if is_async else released.wait)
    with rehearse(app) as stage:
        key = app.sync.enqueue("stuck")
        assert [run.attempt for run in stage.drain(until_empty=True)] == [1, 2]
        stage.assert_failed(key, "timed out after 0.01 s")
    released.set()


async def test_the_tests_middleware_stands_around_every_call(app: Everwork, world: World) -> None:
    async with rehearse(app, middleware=[FailEveryNth(2)]) as stage:
        await app.enqueue("order-place", order=7)
        outcomes = [run.outcome for run in await stage.drain(until_empty=True)]
    assert outcomes == ["complete", "fail", "complete"]
    assert world.done == [("order", 7), ("letter", 7)]


async def test_closing_the_application_in_a_rehearsal_loses_nothing(app: Everwork) -> None:
    async with rehearse(app) as stage:
        async with app:
            key = await app.enqueue("letter-send", order=7)
        await stage.drain()
        stage.assert_completed(key)


async def test_afterwards_the_application_is_on_its_own_store_again(tmp_path: Path) -> None:
    async with Everwork(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        before = await app.enqueue("mine", order=1)
        async with rehearse(app) as stage:
            await app.enqueue("mine", order=2)
            stage.assert_enqueued("mine", count=1, order=2)
        assert (await app.get(before)).variables == {"order": 1}
    with pytest.raises(BadConfiguration, match="has ended"):
        stage.jobs()


async def test_a_file_lets_handlers_complete_in_transactions_of_their_own(tmp_path: Path) -> None:
    import sqlite3  # noqa: PLC0415 - nobody else here needs it

    app, file = Everwork("sqlite:///nowhere.db"), tmp_path / "rehearsal.db"

    @app.job("book")
    def book(ctx: JobContext) -> None:
        with sqlite3.connect(file) as tx:
            tx.execute("CREATE TABLE booked (key)")
            ctx.sync.complete({"booked": True}, tx=tx)

    async with rehearse(app, file=file) as stage:
        key = await app.enqueue("book")
        await stage.drain(raise_errors=True)
        assert stage.assert_completed(key).result == {"booked": True}


async def test_what_cannot_be_rehearsed_is_refused_by_name(app: Everwork) -> None:
    with pytest.raises(BadConfiguration, match="one application"):
        rehearse(app, app)
    with pytest.raises(BadConfiguration, match=r"worker classes, or both, not .*int"):
        rehearse(int)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="start: must have a time zone"):
        rehearse(app, start=datetime(2026, 1, 1))  # noqa: DTZ001 - that is the mistake
    async with rehearse(app) as stage:
        with pytest.raises(InvalidInput, match="hours"):
            await stage.advance(hours=-1)
        with pytest.raises(InvalidInput, match="until_empty"):
            await stage.drain(until_empty=True, hours=1)
        with pytest.raises(InvalidInput, match="state: must be one of pending"):
            stage.jobs(state="done")


async def test_a_rehearsal_is_held_once_and_an_application_is_on_one_stage(app: Everwork) -> None:
    rehearsal = rehearse(app)
    async with rehearsal as stage:
        with pytest.raises(BadConfiguration, match="already in a rehearsal"):
            rehearse(app).__enter__()
        await app.enqueue("letter-send", order=7)
        stage.assert_enqueued("letter-send", count=1)
    with pytest.raises(BadConfiguration, match="can be used only once"):
        rehearsal.__enter__()
