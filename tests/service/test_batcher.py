"""Group commit: who comes while a batch is under way shares the next one, and gets exactly its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from everwork.aio.batcher import Batcher
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
        self.coalescer: Batcher[int, int] = Batcher(self._flush, items_max)

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

    def add(self, *items: int) -> asyncio.Task[list[int]]:
        return asyncio.create_task(self.coalescer.add(items))


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
