"""Handlers that take their jobs from several places: one room for all, and no place is forgotten."""

from __future__ import annotations

import asyncio
import math

import pytest

from everwork import Everwork, State
from everwork.exceptions import BadConfiguration
from everwork.runtime.capacity import EMPTY_QUEUE_TURNS, Capacity
from tests.app.handlers import a_handler, handling
from tests.app.waiting import DEADLINE_S, finished


async def nothing() -> None:
    """Do nothing."""


def a_capacity(*types: str, concurrency: int) -> Capacity:
    """A room whose places have not been asked yet."""
    return Capacity(a_handler(nothing, *types, concurrency=concurrency))


def give(capacity: Capacity, has: dict[str, int], round: int = 1) -> dict[str, int]:
    """Ask in one step, and let each place give what it has; what was asked for."""
    requests = capacity.requests(1_000, round)
    for request in requests:
        capacity.record(request, min(request.limit, has.get(request.queue.key.type, 0)), round)
    return {request.queue.key.type: request.limit for request in requests}


def test_ample_room_is_asked_for_in_one_step_and_goes_to_the_places_that_have_work() -> None:
    capacity = a_capacity("a", "b", "c", concurrency=12)
    asked = [give(capacity, {"b": 3}), give(capacity, {"b": 5})]
    assert asked == [{"a": 4, "b": 4, "c": 4}, {"a": 1, "b": 7, "c": 1}]


@pytest.mark.parametrize("concurrency", range(1, 8))
def test_what_is_asked_for_never_exceeds_the_room(concurrency: int) -> None:
    capacity = a_capacity("a", "b", "c", concurrency=concurrency)
    for turn in range(20):
        left = capacity.free
        assert sum(give(capacity, {"a": turn % 3, "b": 1}).values()) <= left
        capacity.leased = turn % (concurrency + 1)


@pytest.mark.parametrize(("seconds", "gap_max"), [(10.0, 2), (0.001, EMPTY_QUEUE_TURNS + 2)], ids=["slow", "quick"])
def test_with_less_room_than_places_each_is_asked_in_its_turn(seconds: float, gap_max: int) -> None:
    capacity = a_capacity("a", "b", "c", concurrency=1)
    asked: list[str] = []
    for _ in range(80):
        capacity.seconds, capacity.leased = seconds, 0
        capacity.leased = capacity.free - 1
        asked += give(capacity, {"a": 100, "b": 100})
    assert abs(asked.count("a") - asked.count("b")) <= 1, asked
    assert max(map(len, "".join(asked).split("c"))) <= gap_max, asked


def test_little_room_is_not_kept_for_a_dry_place_while_another_has_work() -> None:
    capacity = a_capacity("a", "dry", concurrency=1)
    capacity.add_duration(0.001)
    asked = []
    for _ in range(4 * EMPTY_QUEUE_TURNS):
        asked.append(give(capacity, {"a": 100}))
        capacity.leased = 0
    assert asked[0] == {"a": 1, "dry": 1}
    assert asked[1:].count({"a": 2}) > len(asked) // 2, asked
    assert {"a": 1, "dry": 1} in asked[1:], asked


@pytest.mark.parametrize("concurrency", [1, 2, 3, 30])
def test_every_place_is_asked_in_vain_before_anybody_waits_and_no_step_is_wasted(concurrency: int) -> None:
    capacity = a_capacity("a", "b", "c", concurrency=concurrency)
    for round in range(1, 10):
        steps: list[dict[str, int]] = []
        while capacity.may_have_more(round):
            steps.append(give(capacity, {}, round))
        assert {type for step in steps for type in step} == {"a", "b", "c"}
        assert len(steps) == math.ceil(3 / concurrency)


async def test_a_handler_runs_the_jobs_of_all_its_places_within_one_concurrency(app: Everwork) -> None:
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


async def test_a_busy_place_does_not_starve_another(app: Everwork) -> None:
    """The one place never runs dry: each of its jobs makes the next."""
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
        with pytest.raises(BadConfiguration, match="worker 'third': it, or a source of it, is there already"):
            runtime.add(a_handler(nothing, "more", name="third"))


async def test_the_log_of_a_failure_names_process_worker_key_and_attempt(
    app: Everwork, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise ValueError("boom")

    async with handling(app, a_handler(fail, "own", "one", name="the-worker")):
        job = await finished(app, await app.enqueue("one"))
    assert (job.state, job.attempts, job.last_error) == (State.FAILED, 1, "ValueError: boom")
    (record,) = (record for record in caplog.records if "a job failed" in record.message)
    assert f"process='p1' worker='the-worker' key={job.key} attempt=1" in record.message
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)
