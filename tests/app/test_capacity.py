"""Handlers that take their jobs from several queues: one capacity for all, and no queue starves."""

from __future__ import annotations

import asyncio
import math

import pytest

from everwork import Everwork, State
from everwork.aio.wakeup import Wakeup
from everwork.exceptions import BadConfiguration
from everwork.runtime.capacity import EMPTY_QUEUE_TURNS, Capacity
from everwork.runtime.settler import WaitingOutcomes
from tests.app.handlers import a_handler, handling
from tests.app.waiting import DEADLINE_S, finished


async def nothing() -> None:
    """Do nothing."""


def a_capacity(*types: str, concurrency: int) -> Capacity:
    """A capacity whose queues have not been polled yet."""
    return Capacity(a_handler(nothing, *types, concurrency=concurrency))


def give(capacity: Capacity, has: dict[str, int], round: int = 1) -> dict[str, int]:
    """Request in one step, and let each queue return what it has; what was requested."""
    requests = capacity.requests(1_000, round)
    for request in requests:
        capacity.record(request, min(request.limit, has.get(request.queue.key.type, 0)), round)
    return {request.queue.key.type: request.limit for request in requests}


def test_ample_capacity_is_requested_in_one_step_and_goes_to_the_queues_that_have_work() -> None:
    capacity = a_capacity("a", "b", "c", concurrency=12)
    requested = [give(capacity, {"b": 3}), give(capacity, {"b": 5})]
    assert requested == [{"a": 4, "b": 4, "c": 4}, {"a": 1, "b": 7, "c": 1}]


@pytest.mark.parametrize("concurrency", range(1, 8))
def test_what_is_requested_never_exceeds_the_capacity(concurrency: int) -> None:
    capacity = a_capacity("a", "b", "c", concurrency=concurrency)
    for turn in range(20):
        left = capacity.free
        assert sum(give(capacity, {"a": turn % 3, "b": 1}).values()) <= left
        capacity.leased = turn % (concurrency + 1)


@pytest.mark.parametrize(("seconds", "gap_max"), [(10.0, 2), (0.001, EMPTY_QUEUE_TURNS + 2)], ids=["slow", "quick"])
def test_with_less_capacity_than_queues_each_is_polled_in_its_turn(seconds: float, gap_max: int) -> None:
    capacity = a_capacity("a", "b", "c", concurrency=1)
    requested: list[str] = []
    for _ in range(80):
        capacity.seconds, capacity.leased = seconds, 0
        capacity.leased = capacity.free - 1
        requested += give(capacity, {"a": 100, "b": 100})
    assert abs(requested.count("a") - requested.count("b")) <= 1, requested
    assert max(map(len, "".join(requested).split("c"))) <= gap_max, requested


def test_little_capacity_is_not_reserved_for_an_empty_queue_while_another_has_work() -> None:
    capacity = a_capacity("a", "empty", concurrency=1)
    capacity.add_duration(0.001)
    requested = []
    for _ in range(4 * EMPTY_QUEUE_TURNS):
        requested.append(give(capacity, {"a": 100}))
        capacity.leased = 0
    assert requested[0] == {"a": 1, "empty": 1}
    assert requested[1:].count({"a": 2}) > len(requested) // 2, requested
    assert {"a": 1, "empty": 1} in requested[1:], requested


@pytest.mark.parametrize("concurrency", [1, 2, 3, 30])
def test_every_queue_is_polled_in_vain_before_the_fetcher_waits_and_no_step_is_wasted(concurrency: int) -> None:
    capacity = a_capacity("a", "b", "c", concurrency=concurrency)
    for round in range(1, 10):
        steps: list[dict[str, int]] = []
        while capacity.may_have_more(round):
            steps.append(give(capacity, {}, round))
        assert {type for step in steps for type in step} == {"a", "b", "c"}
        assert len(steps) == math.ceil(3 / concurrency)


async def test_a_handler_runs_the_jobs_of_all_its_queues_within_one_concurrency(app: Everwork) -> None:
    running = most = 0

    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    keys = await app.enqueue_many([(type, {}) for type in ("own", "one", "two") for _ in range(5)])
    async with handling(app, a_handler(work, "own", "one", "two")):
        jobs = [await finished(app, key) for key in keys]
    assert ({job.state for job in jobs}, most) == ({State.COMPLETED}, 1)


async def test_a_busy_queue_does_not_starve_another(app: Everwork) -> None:
    """One queue is never empty: each of its jobs creates the next."""
    served = asyncio.Event()

    async def work(again: bool) -> None:
        if again and not served.is_set():
            await app.enqueue("busy", again=True)
        if not again:
            served.set()

    async with handling(app, a_handler(work, "busy", "rare")):
        await app.enqueue_many([("busy", {"again": True})] * 3)
        await app.enqueue("rare", again=False)
        await asyncio.wait_for(served.wait(), DEADLINE_S)


async def test_a_handler_can_join_while_others_run(app: Everwork) -> None:
    late = await app.enqueue("late")
    async with handling(app, a_handler(nothing, "early")) as runtime:
        await finished(app, await app.enqueue("early"))
        runtime.add(a_handler(nothing, "late", "more"))
        assert (await finished(app, late)).state is State.COMPLETED
        with pytest.raises(
            BadConfiguration, match="worker 'third': this worker or one of its sources has already been added"
        ):
            runtime.add(a_handler(nothing, "more", name="third"))


async def test_the_log_of_a_failure_names_process_worker_key_and_attempt(
    app: Everwork, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise ValueError("boom")

    async with handling(app, a_handler(fail, "own", "one", name="the-worker")):
        job = await finished(app, await app.enqueue("one"))
    assert (job.state, job.attempts, job.last_error) == (State.FAILED, 1, "ValueError: boom")
    (record,) = (record for record in caplog.records if "gave up after 1 attempt" in record.message)
    assert f"process='p1' worker='the-worker' key={job.key} attempt=1" in record.message
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


async def test_a_wake_up_while_outcomes_are_gathered_ends_the_wait_that_follows() -> None:
    wakeup = Wakeup()
    outcomes = WaitingOutcomes({}, wakeup)
    capacity = a_capacity("a", concurrency=1)
    capacity.seconds = 0.0
    requests = capacity.requests(1_000, 1)
    outcomes.expect(requests, [request.limit for request in requests], 0)
    asyncio.get_running_loop().call_soon(wakeup.notify)  # As if a handler were added.
    await outcomes.gather(lambda: False)
    assert wakeup.is_notified
