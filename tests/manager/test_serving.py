"""Jobs reach workers by every door, and end as their calls say."""

from __future__ import annotations

import json
import signal

import pytest
import redis

from everwork import Event, Everwork, Job, State
from everwork.app.settings import id_of
from everwork.core.leasing import Demand
from everwork.core.outcome import Complete
from tests.app.waiting import until
from tests.manager.conftest import Start
from tests.manager.program import sides_of
from tests.manager.running import LATE_S, Outside, Said, inbox_word
from tests.manager.workers import EVENTS_MAX

pytestmark = pytest.mark.every_engine


async def test_every_door_reaches_each_class_and_leaves_other_types_to_others(
    start: Start, outside: Outside, said: Said, url: str
) -> None:
    await start("Echo,Another")
    async with sides_of(url)[1] as broker:
        pushed = await broker.push(Event(source="echo", kwargs={"text": "pushed"}))
    async with Everwork(url) as app:
        enqueued = await app.enqueue("echo", text="enqueued")
        assert await app.result(enqueued, timeout=LATE_S) == {"text": "enqueued"}
    foreign = await outside.push("foreign", text="left")
    [first, _] = await outside.all_are(State.COMPLETED, [pushed, enqueued])
    assert (first.result, first.group, first.attempts) == ({"text": "pushed"}, "", 1)
    await said.times(2, "another")
    copies = [job for job in await outside.jobs("echo") if job.group]
    assert {job.group for job in copies} == {id_of("another")}
    assert {job.copy_of for job in copies} == {pushed, enqueued}
    assert len(said.lines("echo")) == len(said.lines("another")) == 2
    await _another_worker_takes(outside, foreign)


async def _another_worker_takes(outside: Outside, key: int) -> None:
    assert (await outside.job(key)).state is State.PENDING
    [job] = await outside.service.activate(Demand("foreign", "elsewhere", 1, 30_000))
    await outside.service.settle([Complete(job.key, job.attempt)])
    assert (await outside.job(key)).state is State.COMPLETED


@pytest.mark.parametrize("engine_name", ["redis"])
async def test_an_entry_of_a_stream_reaches_the_worker_of_its_name(start: Start, said: Said, url: str) -> None:
    await start("Echo")
    with redis.Redis.from_url(url.partition("?")[0]) as client:
        stream = f"inbox-{inbox_word(said.path)}"
        client.xadd(stream, {"payload": json.dumps({"kwargs": {"text": "added"}})})
        await said.times(1, "echo")
        client.delete(stream)
    assert said.lines("echo")[0][3] == "added"


async def test_a_call_s_end_is_its_job_s_outcome_and_only_a_completion_publishes_events(
    start: Start, outside: Outside, said: Said
) -> None:
    await start("Outcomes,Patient", "Echo")
    ways = ["done", "fail", "reject", "retry", "raise"]
    keys = dict(zip(ways, await outside.push_many("outcomes", [{"how": how} for how in ways]), strict=True))
    keys["patient"] = await outside.push("patient")
    keys["nothing"] = await outside.push("outcomes")
    keys["wrong"] = await outside.push("outcomes", how="done", count="many")
    keys["many"] = await outside.push("outcomes", how="many", count=EVENTS_MAX + 1)
    keys["most"] = await outside.push("outcomes", how="most", count=EVENTS_MAX)
    jobs = {how: await _finished(outside, key) for how, key in keys.items()}
    assert {how for how, job in jobs.items() if job.state is State.COMPLETED} == {"done", "retry", "most"}
    assert {how for how, job in jobs.items() if job.rejected} == {"reject"}
    assert {how: job.attempts for how, job in jobs.items() if job.attempts != 1} == {"retry": 3, "patient": 3}
    assert jobs["done"].result == {"count": 1}
    assert jobs["fail"].last_error == "broken for good"
    assert jobs["raise"].last_error == "ValueError: something else"
    assert jobs["patient"].last_error == "ValueError: again"
    assert str(jobs["nothing"].last_error).startswith("argument how: ")
    assert str(jobs["wrong"].last_error).startswith("argument count: ")
    assert str(jobs["many"].last_error).endswith(f"at most {EVENTS_MAX} per call (max_events_in_memory)")
    published = ["done-0", "retry-0", "most-0", "most-1", "most-2"]
    assert sorted(job.variables["text"] for job in await outside.jobs("echo")) == sorted(published)
    await said.times(len(published), "echo")


async def _finished(outside: Outside, key: int) -> Job:
    async def is_finished() -> bool:
        return (await outside.job(key)).state in (State.COMPLETED, State.FAILED)

    await until(is_finished, LATE_S)
    return await outside.job(key)


@pytest.mark.parametrize("engine_name", ["sqlite"])
async def test_processes_may_come_from_a_fork_server(start: Start, outside: Outside, said: Said) -> None:
    manager = await start("Echo", "Stuck", start_method="forkserver")
    died = await outside.push("stuck", how="exit")
    await outside.all_are(State.COMPLETED, [await outside.push("echo")])
    assert (await outside.ends(died)).error == "its process ended with exit code 3"
    await said.times(2, "startup", "stuck")
    manager.send(signal.SIGTERM)
    assert await manager.exit_code() == 0
    await until(lambda: not manager.members(), LATE_S)
