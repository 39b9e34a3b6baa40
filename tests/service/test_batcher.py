"""Group commit: who comes while a batch is under way shares the next one, and gets exactly its own answer."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from everwork.aio.batcher import Batcher
from everwork.aio.loops import TimeLimit, within
from everwork.core.job import NewJob
from everwork.engines.contract import Engine
from everwork.exceptions import EngineUnavailable
from everwork.service.service import JobService
from tests.app.waiting import DEADLINE_S, until

pytestmark = pytest.mark.every_engine


class Store:
    """Answers each item with its double, one batch at a time, when it is let go."""

    def __init__(self, items_max: int = 1_000) -> None:
        self.batches: list[list[int]] = []
        self.gates: list[asyncio.Future[None]] = []
        self.batcher: Batcher[int, int] = Batcher(self._flush, items_max)

    async def _flush(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gates.append(gate)
        await gate
        return [2 * item for item in items]

    async def let_go(self, batch: int, error: Exception | None = None) -> None:
        """Let a batch end, well or with an error, once it is under way."""
        await until(lambda: len(self.gates) > batch)
        if error is None:
            self.gates[batch].set_result(None)
        else:
            self.gates[batch].set_exception(error)

    @property
    def waiting(self) -> int:
        """How many callers wait for the next batch."""
        return len(self.batcher._waiting)

    def add(self, *items: int) -> asyncio.Task[list[int]]:
        return asyncio.create_task(self.batcher.add(items))


async def ended(*callers: asyncio.Task[list[int]]) -> list[list[int] | BaseException]:
    """What each caller got."""
    return await asyncio.wait_for(asyncio.gather(*callers, return_exceptions=True), DEADLINE_S)


async def test_callers_of_the_same_time_share_a_batch_and_each_gets_its_own_results() -> None:
    store = Store()
    first = store.add(1)
    await until(lambda: store.gates)
    others = [store.add(2, 3), store.add(), store.add(4)]
    await asyncio.sleep(0)
    await store.let_go(0)
    await store.let_go(1)
    assert await ended(first, *others) == [[2], [4, 6], [], [8]]
    assert store.batches == [[1], [2, 3, 4]]


async def test_a_caller_alone_does_not_wait_for_others() -> None:
    store = Store()
    for batch in range(2):
        caller = store.add(batch)
        await store.let_go(batch)
        assert await ended(caller) == [[2 * batch]]
    assert store.batches == [[0], [1]]


async def test_an_engine_that_is_away_is_told_to_every_caller_of_the_batch_and_to_nobody_else() -> None:
    store = Store()
    first = store.add(1)
    await until(lambda: store.gates)
    second, third = store.add(2), store.add(3)
    await asyncio.sleep(0)
    await store.let_go(0)
    await until(lambda: len(store.gates) == 2)
    fourth = store.add(4)
    await asyncio.sleep(0)
    error = EngineUnavailable("disk full")
    await store.let_go(1, error)
    await store.let_go(2)
    assert await ended(first, second, third, fourth) == [[2], error, error, [8]]


async def test_a_caller_who_spoils_the_batch_is_refused_alone() -> None:
    store = Store()
    first = store.add(1)
    await until(lambda: store.gates)
    second, third = store.add(2), store.add(3)
    await asyncio.sleep(0)
    await store.let_go(0)
    await store.let_go(1, ValueError("one of you"))
    error = ValueError("it was you")
    await store.let_go(2, error)
    await store.let_go(3)
    assert await ended(first, second, third) == [[2], error, [6]]


async def test_an_error_of_the_first_caller_is_its_own_and_the_others_go_on() -> None:
    store = Store()
    first = store.add(1)
    await until(lambda: store.gates)
    second = store.add(2)
    await asyncio.sleep(0)
    error = OSError("disk full")
    await store.let_go(0, error)
    await store.let_go(1)
    assert await ended(first, second) == [error, [4]]


@pytest.mark.parametrize("gone", [0, 1, 2])
async def test_a_caller_that_is_cancelled_does_not_disturb_the_others(gone: int) -> None:
    store = Store()
    callers = [store.add(1)]
    await until(lambda: store.gates)
    callers += [store.add(2), store.add(3)]
    await asyncio.sleep(0)
    callers[gone].cancel()
    await asyncio.sleep(0)
    if gone != 0:
        await store.let_go(0)
    await store.let_go(1)
    answers = await ended(*callers)
    assert isinstance(answers.pop(gone), asyncio.CancelledError)
    assert answers == [[2 * item] for item in (1, 2, 3) if item != gone + 1]


async def test_after_everything_was_cancelled_the_next_caller_is_served() -> None:
    store = Store()
    callers = [store.add(1)]
    await until(lambda: store.gates)
    callers += [store.add(2)]
    await asyncio.sleep(0)
    for caller in callers:
        caller.cancel()
    await ended(*callers)
    last = store.add(3)
    await until(lambda: len(store.gates) > 1)
    await store.let_go(1)
    if not last.done() and [3] not in store.batches[:2]:
        await store.let_go(2)
    assert await ended(last) == [[6]]


async def test_a_batch_holds_no_more_than_is_allowed_but_never_splits_a_caller() -> None:
    store = Store(items_max=3)
    first = store.add(0)
    await until(lambda: store.gates)
    others = [store.add(1, 2), store.add(3), store.add(4), store.add(5, 6, 7, 8), store.add(9)]
    await asyncio.sleep(0)
    for batch in range(5):
        await store.let_go(batch)
    assert await ended(first, *others) == [[0], [2, 4], [6], [8], [10, 12, 14, 16], [18]]
    assert store.batches == [[0], [1, 2, 3], [4], [5, 6, 7, 8], [9]]


async def test_concurrent_creates_get_keys_of_their_own(service: JobService, engine: Engine) -> None:
    calls = [service.create([NewJob("count", f'{{"n":{n}}}')] * 2) for n in range(100)]
    answers = await asyncio.gather(*calls)
    keys = [created.key for answer in answers for created in answer]
    jobs = await engine.get(keys)
    assert sorted(keys) == list(range(1, 201))
    assert [job.variables for job in jobs if job] == [f'{{"n":{n // 2}}}' for n in range(200)]


# From other threads -----------------------------------------------------------------------------


def test_threads_and_loops_share_the_batches_of_one_loop(other_loop: asyncio.AbstractEventLoop) -> None:
    async def in_the_owners_loop() -> None:
        store = Store()
        store.batcher.open()
        first = store.add(1)
        await until(lambda: store.gates)
        elsewhere = asyncio.run_coroutine_threadsafe(put_in_this_loop(store, 2, 3), other_loop)
        blocked: Future[list[int]] = Future()
        store.batcher.put([4], blocked)
        await until(lambda: store.waiting == 2)
        await store.let_go(0)
        await store.let_go(1)
        assert await ended(first) == [[2]]
        assert await asyncio.wrap_future(elsewhere) == [4, 6]
        assert blocked.result(DEADLINE_S) == [8]
        assert sorted(store.batches[1]) == [2, 3, 4]

    asyncio.run(in_the_owners_loop())


async def test_a_burst_from_another_thread_wakes_the_loop_once() -> None:
    store = Store()
    store.batcher.open()
    promises: list[Future[list[int]]] = [Future() for _ in range(100)]
    for number, promise in enumerate(promises):
        store.batcher.put([number], promise)
    await store.let_go(0)
    results = await asyncio.wait_for(asyncio.gather(*map(asyncio.wrap_future, promises)), DEADLINE_S)
    assert results == [[2 * number] for number in range(100)]
    assert store.batches == [list(range(100))]


async def test_closing_refuses_what_waits_and_finishes_what_is_being_flushed() -> None:
    store = Store()
    store.batcher.open()
    flushed: Future[list[int]] = Future()
    store.batcher.put([1], flushed)
    await until(lambda: store.gates)
    waiting, inside = Future[list[int]](), store.add(3)
    store.batcher.put([2], waiting)
    await until(lambda: store.waiting == 2)
    late: Future[list[int]] = Future()
    store.batcher.put([4], late)
    store.batcher.close()
    await store.let_go(0)
    assert (await asyncio.wrap_future(flushed)) == [2]
    for refused in (waiting, late):
        assert isinstance(await ended_future(refused), EngineUnavailable)
    assert isinstance((await ended(inside))[0], EngineUnavailable)
    after: Future[list[int]] = Future()
    store.batcher.put([5], after)
    assert isinstance(await ended_future(after), EngineUnavailable)
    assert store.batches == [[1]]


async def test_items_that_come_while_it_is_being_closed_are_refused_too() -> None:
    """The thread has seen the loop, and the batcher is closed before it goes on."""
    store = Store()
    store.batcher.open()
    promises: list[Future[list[int]]] = [Future(), Future()]

    class Slow(deque[Any]):
        def append(self, item: Any) -> None:
            store.batcher.close()
            super().append(item)

    store.batcher._intake = Slow()
    for promise in promises:
        store.batcher._loop = asyncio.get_running_loop()
        store.batcher.put([1], promise)
    for promise in promises:
        assert isinstance(await ended_future(promise), EngineUnavailable)
    assert not store.batches


async def test_a_flush_that_is_cancelled_is_reported_to_the_threads_that_wait_for_it() -> None:
    store = Store()
    store.batcher.open()
    promise: Future[list[int]] = Future()
    store.batcher.put([1], promise)
    await until(lambda: store.gates)
    store.gates[0].cancel()
    assert isinstance(await ended_future(promise), EngineUnavailable)


async def test_a_caller_whose_loop_is_gone_takes_nothing_from_the_others() -> None:
    store = Store()
    store.batcher.open()
    gone = asyncio.new_event_loop()
    here: Future[list[int]] = Future()
    store.batcher.put([1], gone.create_future())
    store.batcher.put([2], here)
    gone.close()
    await store.let_go(0)
    assert await asyncio.wrap_future(here) == [4]


@pytest.fixture
def other_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def put_in_this_loop(store: Store, *items: int) -> list[int]:
    promise: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
    store.batcher.put(items, promise)
    return await promise


async def ended_future(promise: Future[list[int]]) -> list[int] | BaseException:
    """What a waiting thread would get."""
    waiting = asyncio.wait_for(asyncio.wrap_future(promise), DEADLINE_S)
    return (await asyncio.gather(waiting, return_exceptions=True))[0]


async def test_a_call_that_answers_its_timeout_with_an_error_leaves_no_cancellation_behind() -> None:
    async def translated() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise EngineUnavailable("away") from None

    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(EngineUnavailable):
        await within(0.001, translated())
    assert task.cancelling() == 0
    with pytest.raises(TimeoutError):
        await within(0.001, asyncio.Event().wait())
    assert task.cancelling() == 0


async def test_an_interrupt_as_a_thread_calls_the_loop_leaves_no_later_caller_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A signal handler may raise an error anywhere in `put`, as the time limits of task queues do."""
    store = Store()
    store.batcher.open()

    def interrupted(*_: object) -> None:
        raise ArithmeticError

    with monkeypatch.context() as patched:
        patched.setattr(asyncio.get_running_loop(), "call_soon_threadsafe", interrupted)
        with pytest.raises(ArithmeticError):
            store.batcher.put([1], Future())
    promise: Future[list[int]] = Future()
    store.batcher.put([2], promise)
    await until(lambda: store.gates)
    await store.let_go(0)
    assert await asyncio.wait_for(asyncio.wrap_future(promise), DEADLINE_S) == [4]


async def test_a_shared_time_limit_ends_a_call_that_takes_too_long_and_no_other() -> None:
    task = asyncio.current_task()
    assert task is not None
    limit = TimeLimit(0.001, 0.001)
    limit.start()
    for _ in range(3):
        with pytest.raises(TimeoutError), limit:
            await asyncio.Event().wait()
        assert task.cancelling() == 0
        with limit:
            assert await asyncio.sleep(0, "done") == "done"
    limit.stop()


async def test_a_shared_time_limit_leaves_the_cancellations_of_others_alone() -> None:
    limit = TimeLimit(3600, 0.001)
    limit.start()

    async def wait() -> None:
        with limit:
            await asyncio.Event().wait()

    call = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    limit.stop()
