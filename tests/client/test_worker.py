"""Handlers on a stream: what they return and raise, what stops them, and how they stop."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

import pytest

from everwork import Job
from everwork.client import ActiveJob, Client
from everwork.client.remote_stream import RemoteStream
from everwork.client.stream_source import runtime_handlers, work_on
from everwork.core.limits import EVENTS_MAX
from everwork.core.outcome import Outcome
from everwork.core.states import FINISHED_STATES, State
from everwork.engines.open import open_engine
from everwork.exceptions import (
    AccessError,
    BadConfiguration,
    Fail,
    InvalidInput,
    Reject,
    ResultNotStored,
    ResultTimeout,
    Retry,
)
from everwork.proto import work_pb2 as pb
from tests.app.waiting import until
from tests.client.server import KEY, ServerProcess

if TYPE_CHECKING:
    from everwork.client.local import LocalTransport

Handler = Callable[[ActiveJob], Awaitable[Any]]


async def test_a_handlers_value_is_the_result(client: Client) -> None:
    async def double(job: ActiveJob) -> dict[str, int]:
        await asyncio.sleep(0)
        return {"doubled": 2 * job.variables["n"]}

    created = await client.create("double", {"n": 21})
    async with working(client, {"double": double}):
        assert await client.result(created.key) == {"doubled": 42}


async def test_a_lone_job_takes_a_bounded_number_of_steps(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = timeouts = 0

    async def nothing(job: ActiveJob) -> None: ...

    async with Client(url) as client:
        engine = cast("LocalTransport", client.transport).service._engine

        def count(name: str) -> None:
            call = getattr(engine, name)

            async def counted(*args: Any, **named: Any) -> Any:
                nonlocal steps, timeouts
                steps += name != "wait"
                answer = await call(*args, **named)
                timeouts += answer is False
                return answer

            monkeypatch.setattr(engine, name, counted)

        for name in ("activate", "settle", "wait"):
            count(name)
        async with working(client, {"lone": nothing}):
            for _ in range(20):
                await client.result((await client.create("lone")).key)
        # The first poll finds nothing. Then each job has its wake-up, its settlement and the next poll.
        assert steps - timeouts <= 3 * 20 + 1


@pytest.mark.parametrize(
    ("raised", "state", "error", "rejected"),
    [
        (Fail("no such address"), State.FAILED, "no such address", False),
        (Fail(), State.FAILED, "failed by the handler", False),
        (Reject("nonsense"), State.FAILED, "nonsense", True),
        (Retry("later", delay=3600), State.PENDING, "later", False),
        (Retry("odd", delay=-1), State.FAILED, "Retry: delay: must be a number", False),
        (ValueError("boom"), State.PENDING, "ValueError: boom", False),
        (SystemExit(3), State.PENDING, "SystemExit: 3", False),
        (asyncio.CancelledError(), State.PENDING, "CancelledError", False),
    ],
)
async def test_what_a_handler_raises_decides(
    client: Client, raised: BaseException, state: State, error: str, rejected: bool
) -> None:
    async def odd(job: ActiveJob) -> None:
        raise raised

    created = await client.create("odd")
    async with working(client, {"odd": odd}):
        await until(lambda: has_error(client, created.key))
    job = await client.get(created.key)
    assert (job.state, job.rejected, job.attempts) == (state, rejected, 1)
    assert (job.last_error or "").startswith(error)


async def test_an_exception_is_classified_as_in_a_local_worker(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    async def odd(job: ActiveJob) -> None:
        raise BrokenPipeError("odd")  # A ConnectionError: retryable, 2 s after the first attempt.

    created = await client.create("odd")
    async with working(client, {"odd": odd}):
        await until(lambda: has_error(client, created.key))
    [entry] = await client.history(created.key)
    assert (entry.retry_at_ms or 0) - entry.at_ms == 2_000
    [line] = [record for record in caplog.records if f"key={created.key} " in record.message]
    assert (line.levelname, line.message.partition(": ")[0]) == (
        "WARNING",
        "attempt 1 of 5 failed, the engine decides whether to retry",
    )
    title, place, *_, last = str(entry.traceback).split("\n")
    assert (title, last) == ("Traceback (most recent call last):", "BrokenPipeError: odd")
    assert place.endswith(", in odd")


async def test_only_what_a_worker_did_not_want_counts_for_the_breaker(server: ServerProcess, url: str) -> None:
    raised = {"error": ValueError("boom"), "fail": Fail("no"), "reject": Reject("no"), "retry": Retry("later")}

    async def odd(job: ActiveJob) -> None:
        raise raised[job.type]

    engine = open_engine(url)
    await engine.open()
    async with Client(server.grpc_url, key=KEY) as remote:
        for type in raised:
            await engine.set_policy(type, '{"breaker_failures":5}')
        created = await remote.create_many([(type, {}) for type in raised])
        async with working(remote, dict.fromkeys(raised, odd)):
            for one in created:
                await until(functools.partial(has_error, remote, one.key))
    counted = {info.type: info.breaker_failures for info in await engine.types()}
    await engine.close()
    assert counted == {"error": 1, "fail": 0, "reject": 0, "retry": 0}


async def test_a_job_whose_result_is_no_json_is_completed_with_a_note(client: Client) -> None:
    async def odd(job: ActiveJob) -> object:
        return object()

    created = await client.create("odd")
    async with working(client, {"odd": odd}):
        assert "everwork.result_not_stored" in (await finished(client, created.key)).result
        with pytest.raises(ResultNotStored, match="its result could not be stored: result: must consist of JSON"):
            await client.result(created.key)


async def test_plain_functions_run_in_threads(client: Client) -> None:
    meeting = threading.Barrier(3, timeout=30)

    def meet(job: ActiveJob) -> str:
        meeting.wait()  # Only if three of them run at once.
        return threading.current_thread().name

    created = await client.create_many([("meet", {})] * 3)
    async with working(client, {"meet": meet}, concurrency=3):
        names = {await client.result(one.key) for one in created}
    assert len(names) == 3
    assert threading.current_thread().name not in names


ENDLESS = """
import asyncio, sys, threading
from everwork.client import Client

begun = threading.Event()

def hold(job):
    begun.set()
    threading.Event().wait()

async def main():
    async with Client(sys.argv[1]) as client:
        await client.create("hold")
        working = asyncio.create_task(client.work({"hold": hold}))
        await asyncio.to_thread(begun.wait)
        working.cancel()
        await asyncio.wait([working])

asyncio.run(main())
print("ended", begun.is_set())
"""


def test_a_plain_function_that_never_returns_does_not_keep_the_program_alive(url: str) -> None:
    command = [sys.executable, "-c", ENDLESS, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "ended True\n"


async def test_no_more_handlers_of_a_type_run_at_once_than_allowed(client: Client) -> None:
    running = most = 0
    all_places_are_taken = asyncio.Event()

    async def count(job: ActiveJob) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 4:
            all_places_are_taken.set()
        await all_places_are_taken.wait()
        running -= 1

    created = await client.create_many([("count", {})] * 60)
    async with working(client, {"count": count}, concurrency=4):
        for one in created:
            await client.result(one.key)
    assert most == 4


async def test_each_type_has_its_own_handler(client: Client) -> None:
    async def tell(job: ActiveJob) -> str:
        return f"{job.type} {job.attempt}"

    one, other = await client.create("one"), await client.create("other")
    async with working(client, {"one": tell, "other": tell}):
        assert [await client.result(one.key), await client.result(other.key)] == ["one 1", "other 1"]


async def test_a_cancelled_job_stops_its_handler_and_the_next_one_runs(client: Client) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()
    seen: list[ActiveJob] = []

    async def hold(job: ActiveJob) -> str:
        if job.variables.get("odd"):
            raise asyncio.CancelledError  # Its own, which is no stop of its runner.
        if not job.variables.get("hold"):
            return "ran"
        seen.append(job)
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    created = await client.create("hold", {"hold": True})
    async with working(client, {"hold": hold}, concurrency=1):
        await begun.wait()
        await client.cancel(created.key)
        await asyncio.wait_for(stopped.wait(), 45)
        odd = await client.create("hold", {"odd": True}, max_attempts=1)
        assert (await finished(client, odd.key)).last_error == "CancelledError"
        following = await client.create("hold")
        assert await client.result(following.key) == "ran"
    assert seen[0].is_lost
    assert (await client.get(created.key)).state is State.CANCELLED


async def test_a_job_that_takes_longer_than_it_may_fails(client: Client) -> None:
    async def hang(job: ActiveJob) -> None:
        await asyncio.Event().wait()

    created = await client.create("hang", timeout=0.05, max_attempts=1)
    again = await client.create("hang", timeout=0.05)
    async with working(client, {"hang": hang}):
        assert (await finished(client, created.key)).last_error == "timed out after 0.05 s"
        await until(lambda: client.history(again.key))
    [entry] = await client.history(again.key)
    assert (entry.retry_at_ms or 0) - entry.at_ms == 2_000  # As a TimeoutError.


async def test_a_thread_that_takes_longer_than_it_may_is_not_waited_for(client: Client) -> None:
    gate = threading.Event()
    seen: list[ActiveJob] = []

    def hang(job: ActiveJob) -> None:
        seen.append(job)
        gate.wait(30)

    created = await client.create("hang", timeout=0.05, max_attempts=1)
    async with working(client, {"hang": hang}):
        assert (await finished(client, created.key)).last_error == "timed out after 0.05 s; it is still running"
        assert seen[0].is_lost
        gate.set()


async def test_a_thread_past_its_timeout_keeps_its_runner_until_it_returns(client: Client) -> None:
    gate, begun = threading.Event(), list[int]()

    def hang(job: ActiveJob) -> None:
        begun.append(job.key)
        gate.wait(30)

    first = await client.create("hang", timeout=0.05, max_attempts=1)
    async with working(client, {"hang": hang}, concurrency=1):
        await finished(client, first.key)
        second = await client.create("hang")
        with pytest.raises(ResultTimeout):
            await client.result(second.key, 0.2)
        assert begun == [first.key]
        gate.set()
        assert await client.result(second.key) is None


async def test_a_handler_that_swallows_its_cancellation_is_not_waited_for(client: Client) -> None:
    gate = asyncio.Event()

    async def stubborn(job: ActiveJob) -> str:
        while not gate.is_set():
            with suppress(asyncio.CancelledError):
                await gate.wait()
        return "too late"

    created = await client.create("stubborn", timeout=0.05, max_attempts=1)
    async with working(client, {"stubborn": stubborn}):
        assert (await finished(client, created.key)).last_error == "timed out after 0.05 s; it is still running"
        gate.set()


async def test_a_handler_that_takes_longer_than_its_lease_keeps_it(client: Client) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()

    async def long(job: ActiveJob) -> int:
        begun.set()
        await gate.wait()
        return job.attempt

    created = await client.create("long")
    async with working(client, {"long": long}, lease=0.6):
        await begun.wait()
        first = (await client.get(created.key)).lease_until_ms or 0

        async def is_extended_twice() -> bool:
            return ((await client.get(created.key)).lease_until_ms or 0) > first + 600

        await until(is_extended_twice)
        gate.set()
        assert await client.result(created.key) == 1


async def test_a_stop_finishes_what_runs_and_hands_back_what_has_not_begun(client: Client) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()

    async def wait(job: ActiveJob) -> str:
        begun.set()
        await gate.wait()
        return "finished"

    created = await client.create_many([("wait", {"n": n}) for n in range(5)])
    stop = asyncio.Event()
    task = asyncio.create_task(client.work({"wait": wait}, concurrency=1, stop=stop))
    await begun.wait()
    stop.set()
    await asyncio.sleep(0)
    gate.set()
    await asyncio.wait_for(task, 20)
    states = [(await client.get(one.key)).state.label for one in created]
    assert states == ["completed", "pending", "pending", "pending", "pending"]
    assert [(await client.get(one.key)).attempts for one in created] == [1, 0, 0, 0, 0]


async def test_jobs_that_arrive_after_a_stop_go_back_unbegun(client: Client) -> None:
    begun: list[int] = []
    gate = asyncio.Event()

    async def wait(job: ActiveJob) -> None:
        begun.append(job.key)
        await gate.wait()

    first = await client.create("wait")
    stop, stream = asyncio.Event(), client.stream()
    task = asyncio.create_task(work_on(stream, runtime_handlers({"wait": wait}, 2), stop))
    await until(lambda: begun)
    stop.set()
    await until(lambda: stream._is_draining)
    late = await client.create("wait")
    # It was on its way when the worker was told to stop.
    stream._received(await client.activate("wait", worker=stream.worker))
    await until(lambda: is_pending(client, late.key))
    gate.set()
    await asyncio.wait_for(task, 20)
    assert begun == [first.key]
    assert [(await client.get(one.key)).state.label for one in (first, late)] == ["completed", "pending"]


async def test_cancelling_the_worker_hands_back_what_runs(client: Client) -> None:
    begun = asyncio.Event()

    async def hold(job: ActiveJob) -> None:
        begun.set()
        await asyncio.Event().wait()

    created = await client.create("hold")
    task = asyncio.create_task(client.work({"hold": hold}))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    job = await client.get(created.key)
    assert (job.state, job.attempts) == (State.PENDING, 0)


async def test_a_stream_that_breaks_stops_its_handlers_before_their_jobs_go_back(client: Client) -> None:
    begun, states = asyncio.Event(), []

    async def hold(job: ActiveJob) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            states.append((await client.get(job.key)).state)

    created, stream = await client.create("hold"), client.stream()
    task = asyncio.create_task(work_on(stream, runtime_handlers({"hold": hold}, 2), asyncio.Event()))
    await begun.wait()
    stream._error = AccessError("broken")
    stream._wake()
    with pytest.raises(AccessError, match="broken"):
        await asyncio.wait_for(task, 20)
    assert states == [State.PROCESSING]
    assert ((await client.get(created.key)).state, (await client.get(created.key)).attempts) == (State.PENDING, 0)


async def test_a_stream_that_breaks_waits_neither_for_threads_nor_for_what_waits_behind_them(client: Client) -> None:
    gate, begun, returned = threading.Event(), list[int](), list[int]()

    def hold(job: ActiveJob) -> None:
        begun.append(job.key)
        gate.wait(30)
        returned.append(job.key)

    first, stream = await client.create("hold"), client.stream()
    task = asyncio.create_task(work_on(stream, runtime_handlers({"hold": hold}, 1), asyncio.Event()))
    await until(lambda: begun)
    waiting = await client.create("hold")
    stream._received(await client.activate("hold", worker=stream.worker))
    await until(lambda: not stream._inbox)
    stream._error = AccessError("broken")
    stream._wake()
    with pytest.raises(AccessError, match="broken"):
        await task
    assert (begun, returned) == ([first.key], [])
    gate.set()
    jobs = [await client.get(one.key) for one in (first, waiting)]
    assert [(job.state, job.attempts) for job in jobs] == [(State.PENDING, 0)] * 2


async def test_a_stream_that_breaks_requests_no_jobs_before_any_goes_back(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, were_draining = asyncio.Event(), list[bool]()

    async def hold(job: ActiveJob) -> None:
        begun.set()
        await asyncio.Event().wait()

    created, stream = await client.create("hold"), client.stream()
    put = stream.put

    def note(outcome: Outcome) -> None:
        were_draining.append(stream._is_draining)
        put(outcome)

    monkeypatch.setattr(stream, "put", note)
    task = asyncio.create_task(work_on(stream, runtime_handlers({"hold": hold}, 2), asyncio.Event()))
    await begun.wait()
    stream._error = AccessError("broken")
    stream._wake()
    with pytest.raises(AccessError, match="broken"):
        await task
    assert were_draining == [True]
    assert (await client.get(created.key)).state is State.PENDING


async def test_a_handler_may_use_the_same_client(client: Client) -> None:
    async def chain(job: ActiveJob) -> int:
        created = await client.create("next", {"of": job.key})
        return created.key

    created = await client.create("chain")
    async with working(client, {"chain": chain}):
        following = await client.result(created.key)
    assert (await client.get(following)).type == "next"


async def test_timeouts_inside_handlers_hit_only_themselves(client: Client) -> None:
    async def impatient(job: ActiveJob) -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            return "in time"
        return "never"

    created = await client.create_many([("impatient", {})] * 5)
    async with working(client, {"impatient": impatient}, concurrency=2):
        assert [await client.result(one.key) for one in created] == ["in time"] * 5


async def test_mistakes_are_told_before_anything_runs(client: Client) -> None:
    with pytest.raises(BadConfiguration, match="nothing to run"):
        await client.work({})
    with pytest.raises(BadConfiguration, match="handler of 'a': must be a function"):
        await client.work({"a": 7})  # type: ignore[dict-item]
    with pytest.raises(InvalidInput, match="concurrency"):
        await client.work({"a": print}, concurrency=0)
    with pytest.raises(InvalidInput, match="worker"):
        await client.work({"a": print}, worker="\n")


# The lower level ------------------------------------------------------------------------------------


async def test_a_stream_carries_jobs_and_every_outcome(client: Client) -> None:
    created = await client.create_many([("s", {"n": n}) for n in range(6)])
    async with client.stream(worker="w1") as stream:
        stream.grant("s", 6)
        jobs: list[ActiveJob] = []
        async for batch in stream:
            jobs += batch
            if len(jobs) == 6:
                break
        stream.complete(jobs[0], {"ok": True}, events=[("t", {})])
        stream.fail(jobs[1], "boom", retries=2, backoff=60, variables={"more": 1})
        stream.retry(jobs[2], "later", delay=60)
        stream.reject(jobs[3], "nonsense")
        stream.release(jobs[4])
        stream.throw(jobs[5], "CODE", "thrown")
    seen = [await client.get(one.key) for one in created]
    assert [job.state.label for job in seen] == ["completed", "pending", "pending", "failed", "pending", "failed"]
    assert (seen[0].result, seen[1].variables, seen[1].retries) == ({"ok": True}, {"n": 1, "more": 1}, 2)
    assert (seen[3].rejected, seen[4].attempts, seen[5].error_code) == (True, 0, "CODE")
    assert len((await client.page(type="t")).jobs) == 1
    assert list(stream.refusals) == []


def test_a_message_ends_with_the_outcome_that_brings_too_many_events() -> None:
    stream = RemoteStream.__new__(RemoteStream)
    events = [pb.NewJob(type="t")] * (EVENTS_MAX // 2)
    stream._outcomes = deque([pb.Outcome(complete=pb.Complete(events=events))] * 5)
    stream._unjudged = deque([pb.Outcome()])
    assert [len(list(stream._next_outcomes())) for _ in range(3)] == [2, 2, 1]


async def test_no_more_jobs_come_than_credits_were_granted(client: Client) -> None:
    await client.create_many([("s", {})] * 5)
    async with client.stream() as stream:
        stream.grant("s", 2)
        assert len(await anext(stream)) + (0 if stream.held == 2 else len(await anext(stream))) == 2
        stream.grant("s", 1)
        await anext(stream)
        assert stream.held == 3
    assert len((await client.page(state="pending")).jobs) == 5


async def test_an_outcome_that_is_refused_is_told(client: Client) -> None:
    created = await client.create("s")
    async with client.stream() as stream:
        stream.grant("s", 1)
        [job] = await anext(stream)
        await client.cancel(created.key)
        stream.complete(job, 1)
    assert [(refused.key, refused.attempt) for refused in stream.refusals] == [(created.key, 1)]


async def test_a_drained_stream_ends(client: Client) -> None:
    await client.create("s")
    async with client.stream() as stream:
        stream.grant("s", 5)
        [job] = await anext(stream)
        stream.drain()
        stream.complete(job)
        assert [batch async for batch in stream] == []


# What the tests need --------------------------------------------------------------------------------


@asynccontextmanager
async def working(client: Client, handlers: Mapping[str, Any], **options: Any) -> AsyncIterator[None]:
    """Handlers at work, stopped in order."""
    stop = asyncio.Event()
    task = asyncio.create_task(client.work(handlers, stop=stop, **options))
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait_for(task, 20)


async def has_error(client: Client, key: int) -> bool:
    return (await client.get(key)).last_error is not None


async def is_pending(client: Client, key: int) -> bool:
    return (await client.get(key)).state is State.PENDING


async def finished(client: Client, key: int) -> Job:
    """The job as it rests."""

    async def rests() -> bool:
        return (await client.get(key)).state in FINISHED_STATES

    await until(rests)
    return await client.get(key)
