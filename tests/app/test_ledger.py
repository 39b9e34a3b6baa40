"""The table that a process shares with its parent: what is here stands in it, and what the parent writes is obeyed."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from everwork import Everwork, JobContext, State
from everwork.aio.wakeup import Watch
from everwork.core.leasing import Settlement
from everwork.core.outcome import Outcome
from everwork.runtime import executor, fetcher
from everwork.runtime import runtime as runtime_module
from everwork.runtime.attempt import Stop
from everwork.runtime.ledger import Entry, Ledger, SlotState
from everwork.runtime.shutdown import StopSignal
from tests.app.handlers import a_handler, a_ledger, a_runtime, fetcher_of, handling
from tests.app.waiting import DEADLINE_S, finished, until, until_sync


def of_parent(ledger: Ledger) -> Ledger:
    """The same table, as the parent sees it."""
    return Ledger(ledger._memory)


def entries(ledger: Ledger) -> list[Entry]:
    """What stands in the table."""
    return list(of_parent(ledger).entries())


def states(ledger: Ledger) -> list[SlotState]:
    """How far what stands in the table is."""
    return sorted(entry.state for entry in entries(ledger))


async def test_an_attempt_stands_in_the_table_until_its_outcome_is_settled(app: Everwork) -> None:
    ledger, release, seen = a_ledger(), asyncio.Event(), []

    async def work() -> None:
        seen.extend(entries(ledger))
        await release.wait()

    async with handling(app, a_handler(work, "work", index=3, timeout=7.0), ledger=ledger):
        key = await app.enqueue("work")
        await until(lambda: seen)
        release.set()
        await until(lambda: not entries(ledger))
        assert (await app.get(key)).state is State.COMPLETED, "it left before it was settled"
    entry = seen[0]
    assert (entry.key, entry.attempt, entry.worker, entry.timeout, entry.state) == (key, 1, 3, 7.0, SlotState.BEGUN)
    vitals = of_parent(ledger).vitals()
    assert (vitals.ended, vitals.held) == (1, 0)
    assert vitals.engine_at > 0


async def test_a_call_that_has_ended_is_not_overdue_while_its_outcome_waits_to_be_settled(
    app: Everwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.open()
    ledger, may_settle, settle = a_ledger(), threading.Event(), app.service._engine.settle

    async def slowly(outcomes: Sequence[Outcome], *more: Any) -> Settlement:
        if outcomes:
            await asyncio.to_thread(may_settle.wait, DEADLINE_S)
        return await settle(outcomes, *more)

    async def work() -> None: ...

    monkeypatch.setattr(app.service._engine, "settle", slowly)
    async with handling(app, a_handler(work, "work"), ledger=ledger):
        key = await app.enqueue("work")
        await until(lambda: states(ledger) == [SlotState.ENDED])
        assert not entries(ledger)[0].is_overdue(math.inf)
        may_settle.set()
        assert (await finished(app, key)).state is State.COMPLETED
        await until(lambda: not entries(ledger))
    assert of_parent(ledger).vitals().ended == 1


async def test_what_was_leased_for_a_handler_that_is_off_meanwhile_goes_back_at_once(
    app: Everwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.open()
    ledger, ran, settle = a_ledger(), [], app.service._engine.settle

    async def work() -> None:
        ran.append(1)

    async with handling(app, a_handler(work, "work"), ledger=ledger) as runtime:

        async def switched_off_meanwhile(*given: Any) -> Settlement:
            settlement = await settle(*given)
            if settlement.activation.jobs:
                of_parent(ledger).switch(0, is_on=False)
                fetcher_of(runtime).check_flags()
            return settlement

        monkeypatch.setattr(app.service._engine, "settle", switched_off_meanwhile)
        key = await app.enqueue("work")
        await until(lambda: ledger.is_off(0) and not entries(ledger))
        await until(lambda: fetcher_of(runtime)._capacities["work"].leased == 0)
    assert not ran
    assert [event.kind for event in await app.history(key)] == ["release"]


async def test_a_call_that_is_past_its_time_when_its_process_stops_has_timed_out(app: Everwork) -> None:
    async def block() -> None:
        ends = time.monotonic() + 0.05
        until_sync(lambda: time.monotonic() > ends)
        runtime.stop_running()  # As a signal does it, which finds the event loop blocked.
        raise KeyboardInterrupt

    async with handling(app, a_handler(block, "work", timeout=0.04)) as runtime:
        job = await finished(app, await app.enqueue("work"))
    error = "timed out after 0.04 s and blocked its process until it was interrupted"
    assert (job.state, job.last_error) == (State.FAILED, error)
    [entry] = await app.history(job.key)
    assert str(entry.traceback).endswith(", in block\n    raise KeyboardInterrupt")


async def test_an_interrupt_that_comes_too_late_for_the_handler_does_not_stop_its_runner(
    app: Everwork, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupted(_: BaseException) -> str:
        monkeypatch.undo()
        raise KeyboardInterrupt

    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)

    monkeypatch.setattr(executor, "stack_of_error", interrupted)
    async with handling(app, a_handler(work, "work", timeout=0.04)):
        slow = await finished(app, await app.enqueue("work", seconds=3_600))
        quick = await finished(app, await app.enqueue("work", seconds=0))
    assert (slow.state, slow.last_error) == (State.FAILED, "timed out after 0.04 s")
    assert quick.state is State.COMPLETED
    assert "runner failed" not in caplog.text


async def test_cancelled_calls_have_the_time_that_their_process_gives_them(
    app: Everwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module, "CANCEL_SECONDS", 0.0)
    begun, cleaned = asyncio.Event(), []

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(100):
                await asyncio.sleep(0)
            cleaned.append(1)

    await app.open()
    stopped = StopSignal()
    runtime = a_runtime(app, stopped, a_handler(work, "work"))
    running = asyncio.create_task(runtime.run(None, DEADLINE_S))
    key = await app.enqueue("work")
    await begun.wait()
    stopped.request()
    stopped.request()
    await asyncio.wait_for(running, 2 * DEADLINE_S)
    assert cleaned
    assert ((await app.get(key)).state, (await app.get(key)).attempts) == (State.PENDING, 0)


async def test_no_more_is_leased_than_fits_into_the_table(app: Everwork, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, running, release = a_ledger(2), 0, asyncio.Event()

    async def work() -> None:
        nonlocal running
        running += 1
        await release.wait()

    await app.open()
    waits, watch, loop = asyncio.Event(), app.service._engine.watch, asyncio.get_running_loop()

    def watched(*given: Any) -> Watch:
        loop.call_soon_threadsafe(waits.set)
        return watch(*given)

    monkeypatch.setattr(app.service._engine, "watch", watched)
    handlers = [a_handler(work, type, concurrency=3) for type in ("one", "two")]
    keys = await app.enqueue_many([(type, {}) for type in ("one", "two") for _ in range(3)])
    async with handling(app, *handlers, ledger=ledger):
        await until(lambda: running == 2)
        release.set()
        assert {(await finished(app, key)).state for key in keys} == {State.COMPLETED}
        waits.clear()
        await finished(app, await app.enqueue("two"))
        await asyncio.wait_for(waits.wait(), DEADLINE_S)  # Though there is capacity, it does not poll without a pause.


@pytest.mark.parametrize("why", [Stop.CANCELLED, Stop.LOST])
async def test_a_flagged_attempt_is_stopped_and_leaves(app: Everwork, why: Stop) -> None:
    ledger, begun, ended = a_ledger(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with handling(app, a_handler(work, "work"), ledger=ledger) as runtime:
        await app.enqueue("work")
        await begun.wait()
        of_parent(ledger).flag(entries(ledger)[0], why)
        app.loop.call_soon_threadsafe(fetcher_of(runtime).check_flags)
        await asyncio.wait_for(ended.wait(), DEADLINE_S)
        await until(lambda: not entries(ledger))


def test_a_flag_that_comes_too_late_does_not_hit_the_next_attempt_in_the_slot() -> None:
    ledger = a_ledger(1)
    slot = ledger.enter(1, 1, leased_at=0.0, timeout=1.0, worker=0)
    late = entries(ledger)[0]
    ledger.leave(slot)
    assert ledger.enter(2, 1, leased_at=0.0, timeout=1.0, worker=0) == slot
    for mistaken in (late, late._replace(use=late.use + 1)):
        of_parent(ledger).flag(mistaken, Stop.CANCELLED)
        assert ledger.flag_of(slot) is None
    again = entries(ledger)[0]
    ledger.leave(slot)
    ledger.enter(2, 1, leased_at=0.0, timeout=1.0, worker=0)
    of_parent(ledger).flag(again, Stop.CANCELLED)
    assert ledger.flag_of(slot) is None
    of_parent(ledger).flag(entries(ledger)[0], Stop.LOST)
    assert ledger.flag_of(slot) is Stop.LOST


async def test_a_handler_that_ignores_its_time_out_stands_there_as_hung_until_it_ends(app: Everwork) -> None:
    ledger, release = a_ledger(), asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()

    async with handling(app, a_handler(stubborn, "work", timeout=0.05), ledger=ledger):
        job = await finished(app, await app.enqueue("work"))
        await until(lambda: states(ledger) == [SlotState.HUNG])
        release.set()
        await until(lambda: not entries(ledger))
    assert job.last_error == "timed out after 0.05 s; it ignored cancellation"


async def test_a_cancelled_thread_is_hung_only_when_its_time_is_over(
    app: Everwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "GRACE_SECONDS", 0.0)
    ledger, begun, release, seen = a_ledger(), threading.Event(), threading.Event(), []

    def work(ctx: JobContext) -> None:
        begun.set()
        until_sync(lambda: ctx.cancelled)
        seen.extend(states(ledger))
        release.wait(DEADLINE_S)

    async with handling(app, a_handler(work, "work", timeout=0.5), ledger=ledger) as runtime:
        await app.enqueue("work")
        await until(begun.is_set)
        of_parent(ledger).flag(entries(ledger)[0], Stop.CANCELLED)
        app.loop.call_soon_threadsafe(fetcher_of(runtime).check_flags)
        await until(lambda: states(ledger) == [SlotState.HUNG])
        release.set()
        await until(lambda: not entries(ledger))
    assert seen == [SlotState.BEGUN]


async def test_a_handler_that_is_switched_off_takes_nothing_and_gives_back_what_has_not_begun(app: Everwork) -> None:
    ledger, begun, release = a_ledger(), asyncio.Event(), asyncio.Event()
    release.set()

    async def work() -> None:
        begun.set()
        await release.wait()

    async def other() -> None: ...

    handlers = [a_handler(work, "work", index=0), a_handler(other, "other", index=1)]
    async with handling(app, *handlers, ledger=ledger) as runtime:
        await finished(app, await app.enqueue("work"))  # It is quick, so that the next ones are fetched ahead.
        release.clear()
        begun.clear()
        runs, waits = await app.enqueue_many([("work", {})] * 2)
        await begun.wait()
        await until(lambda: states(ledger) == [SlotState.WAITING, SlotState.BEGUN])
        of_parent(ledger).switch(0, is_on=False)
        app.loop.call_soon_threadsafe(fetcher_of(runtime).check_flags)
        await until(lambda: states(ledger) == [SlotState.BEGUN])
        release.set()
        assert (await finished(app, runs)).state is State.COMPLETED
        await finished(app, await app.enqueue("other"))
        assert ((await app.get(waits)).state, (await app.get(waits)).attempts) == (State.PENDING, 0)
        of_parent(ledger).switch(0, is_on=True)
        app.loop.call_soon_threadsafe(fetcher_of(runtime).check_flags)
        assert (await finished(app, waits)).state is State.COMPLETED


async def test_what_a_blocked_loop_does_not_begin_goes_back_and_leaves_the_table(
    app: Everwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "UNSTARTED_SECONDS", 0.1)
    ledger, seen, never = a_ledger(), [], threading.Event()

    async def block(blocks: bool) -> None:
        if blocks:
            before = states(ledger)
            ends = asyncio.get_running_loop().time() + DEADLINE_S
            while states(ledger) != [SlotState.BEGUN] and asyncio.get_running_loop().time() < ends:
                never.wait(0.005)
            seen.append((before, states(ledger)))

    async with handling(app, a_handler(block, "work", concurrency=2), ledger=ledger):
        keys = await app.enqueue_many([("work", {"blocks": True}), ("work", {"blocks": False})])
        assert [(await finished(app, key)).state for key in keys] == [State.COMPLETED] * 2
    assert seen == [([SlotState.WAITING, SlotState.BEGUN], [SlotState.BEGUN])]
    assert [event.kind for event in await app.history(keys[1])] == ["release", "complete"]
