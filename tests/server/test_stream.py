"""The streaming door: what a worker is promised, and what becomes of its jobs when it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from everwork.aio import retrying
from everwork.core.leasing import Demand, Lease, LeaseStatus
from everwork.core.states import State
from everwork.exceptions import EngineUnavailable
from everwork.proto import work_pb2 as pb
from everwork.server.grpc.feed import FEED_FIRST
from everwork.server.grpc.intake import PARSED_FACTOR, HeldBytes
from everwork.server.grpc.message_writer import UNWRITTEN_BYTES_MAX, UNWRITTEN_JOBS_MAX, MessageWriter
from everwork.server.grpc.outcomes import UNJUDGED_BYTES_MAX
from everwork.server.grpc.work_stream import GRANTS_STEP
from everwork.server.grpc.work_streams import TOLERANCE_MS
from everwork.service.access.keys import ENVIRONMENT
from everwork.service.access.principal import Permission, Principal
from everwork.service.access.turns import RUNNING_FIRST
from everwork.service.jobs import in_process
from tests.app.waiting import DEADLINE_S, SOON_S, until
from tests.outages import Outage, a_later_engine
from tests.server.whole import EOF, KEY, TYPE, Whole, Worker, ended, lease_of, running
from tests.stores import url_of

MESSAGE_BYTES_MAX = 3 * 1024 * 1024


async def test_jobs_come_as_far_as_credit_goes_and_no_further(whole: Whole) -> None:
    keys = await whole.create(5)
    async with whole.worker() as worker:
        await worker.grant(3)
        assert [job.key for job in await worker.got(3)] == keys[:3]
        await worker.complete(*worker.jobs)
        await worker.until(lambda: worker.settled == 3)
        assert len(worker.jobs) == 3
        await worker.grant(5)
        assert [job.key for job in await worker.got(5)] == keys
    states = [(await whole.job(key)).state for key in keys[:3]]
    assert states == [State.COMPLETED] * 3


@pytest.mark.every_engine
async def test_a_waiting_worker_gets_a_job_as_soon_as_there_is_one(whole: Whole) -> None:
    async with whole.worker() as worker:
        await worker.grant(1)
        [key] = await whole.create(variables='{"width":800}', headers='{"trace":"1"}', priority=3, tenant="acme")
        [job] = await worker.got(1)
        assert (job.key, job.attempt, job.attempts, job.max_attempts) == (key, 1, 1, 5)
        assert (job.variables, job.headers, job.priority, job.tenant) == (b'{"width":800}', b'{"trace":"1"}', 3, "acme")
        assert job.lease_until_ms > job.created_at_ms


@pytest.mark.every_engine
async def test_every_outcome_ends_an_attempt_in_its_own_way(whole: Whole) -> None:
    kinds: list[dict[str, Any]] = [
        {"complete": pb.Complete(result=b'{"done":true}', events=[pb.NewJob(type="next", variables=b'{"n":1}')])},
        {"fail": pb.Fail(error="boom", retries=3, backoff_ms=60_000, variables=b'{"seen":1}')},
        {"fail": pb.Fail(error="boom", final=True)},
        {"retry": pb.Retry(error="later", delay_ms=30_000)},
        {"reject": pb.Reject(error="nonsense")},
        {"release": pb.Release()},
        {"throw": pb.Throw(code="NO_FUNDS", error="empty", variables=b'{"why":"x"}')},
    ]
    keys = await whole.create(len(kinds), variables='{"n":0}')
    async with whole.worker() as worker:
        await worker.grant(len(kinds))
        jobs = await worker.got(len(kinds))
        await worker.say(outcomes=[ended(job, **kind) for job, kind in zip(jobs, kinds, strict=True)])
        await worker.until(lambda: worker.settled == len(kinds))
        assert not worker.refusals
    done, failed, final, retried, rejected, released, thrown = [await whole.job(key) for key in keys]
    assert (done.state, done.result) == (State.COMPLETED, '{"done":true}')
    assert (failed.state, failed.retries, failed.variables) == (State.PENDING, 3, '{"n":0,"seen":1}')
    assert (final.state, final.last_error) == (State.FAILED, "boom")
    assert (retried.state, retried.run_at_ms > retried.created_at_ms) == (State.PENDING, True)
    assert (rejected.state, rejected.rejected) == (State.FAILED, True)
    assert (released.state, released.attempts) == (State.PENDING, 0)
    assert (thrown.state, thrown.error_code, thrown.variables) == (State.FAILED, "NO_FUNDS", '{"n":0,"why":"x"}')
    [event] = await whole.service.activate(Demand("next", "w", 5))
    assert event.variables == '{"n":1}'


async def test_a_refused_outcome_is_named_by_its_number_and_the_others_count(whole: Whole) -> None:
    keys = await whole.create(2)
    async with whole.worker() as worker:
        await worker.grant(2)
        first, second = await worker.got(2)
        await in_process(whole.service).cancel(first.key)
        old = pb.Outcome(key=second.key, attempt=9, complete=pb.Complete())
        unknown = pb.Outcome(key=999_999, attempt=1, complete=pb.Complete())
        unfenced = pb.Outcome(key=second.key, complete=pb.Complete())
        bad = ended(second, complete=pb.Complete(result=b"{"))
        empty = ended(second)
        late = ended(first, complete=pb.Complete())
        await worker.say(outcomes=[old, unknown, unfenced, bad, empty, late, ended(second, complete=pb.Complete())])
        await worker.until(lambda: worker.settled == 7)
        reasons = {one.number: pb.Reason.Name(one.reason) for one in worker.refusals}
    assert reasons == {1: "LEASE_LOST", 2: "NOT_FOUND", 3: "INVALID", 4: "INVALID", 5: "INVALID", 6: "WRONG_STATE"}
    assert (await whole.job(keys[1])).state is State.COMPLETED


async def test_a_heartbeat_prolongs_the_lease_and_tells_what_is_lost(whole: Whole) -> None:
    [key] = await whole.create()
    async with whole.worker(lease_ms=20_000) as worker:
        await worker.grant(1)
        [job] = await worker.got(1)
        await whole.service._engine.extend([(await _lease(whole, key))], 5_000)
        await worker.say(heartbeats=[lease_of(job), pb.Lease(key=key, attempt=7)])
        await worker.until(lambda: worker.losses)
        assert [(loss.lease.attempt, loss.cancelled) for loss in worker.losses] == [(7, False)]
        assert ((await whole.job(key)).lease_until_ms or 0) >= job.lease_until_ms


async def test_a_worker_is_told_that_its_job_was_cancelled(whole: Whole) -> None:
    [key] = await whole.create()
    async with whole.worker() as worker:
        await worker.grant(1)
        await worker.got(1)
        await in_process(whole.service).cancel(key)
        await worker.until(lambda: worker.losses)
        assert [(loss.lease.key, loss.cancelled) for loss in worker.losses] == [(key, True)]


async def test_the_attempts_of_a_worker_that_is_gone_fail_at_once_and_are_tried_again(whole: Whole) -> None:
    [key] = await whole.create()
    async with whole.worker("doomed", lease_ms=600_000) as worker:
        await worker.grant(1)
        await worker.got(1)
    await until(lambda: _has_state(whole, key, State.PENDING))
    job = await whole.job(key)
    error = "worker 'doomed' disconnected: its stream ended and it did not reconnect in time"
    assert (job.attempts, job.last_error) == (1, error)


async def test_the_attempts_of_a_worker_that_is_gone_fail_although_the_machine_is_busy(
    sqlite_whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    [key] = await sqlite_whole.create()
    async with sqlite_whole.worker() as worker:
        await worker.grant(1)
        await worker.got(1)
        read_clock, stalls = sqlite_whole.service.now, [3 * TOLERANCE_MS / 1000]

        async def now() -> int:
            now_ms, loop = await read_clock(), asyncio.get_running_loop()
            resumes_at = loop.time() + (stalls.pop() if stalls else 0)
            while loop.time() < resumes_at:  # Nothing else runs, as if the process got no processor.
                pass
            return now_ms

        monkeypatch.setattr(sqlite_whole.service, "now", now)
        worker.call.cancel()
        await until(lambda: not stalls)
        await _given_up(sqlite_whole)
    assert (await sqlite_whole.job(key)).state is not State.PROCESSING


async def test_the_attempts_of_a_worker_that_is_gone_fail_although_one_of_them_was_being_cancelled(
    sqlite_whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled, other = await sqlite_whole.create(2)
    streams, check = sqlite_whole.server._streams, sqlite_whole.service.check
    is_checking, is_answered = asyncio.Event(), asyncio.Event()

    async def slow_check(leases: Sequence[Lease]) -> list[LeaseStatus]:
        is_checking.set()
        await is_answered.wait()
        return await check(leases)

    async with sqlite_whole.worker(lease_ms=600_000) as worker:
        await worker.grant(2)
        await worker.got(2)
        monkeypatch.setattr(sqlite_whole.service, "check", slow_check)
        await asyncio.wait_for(is_checking.wait(), DEADLINE_S)
        await in_process(sqlite_whole.service).cancel(cancelled)
        worker.call.cancel()
        await until(lambda: not streams._streams)
        is_answered.set()
        await until(lambda: _has_state(sqlite_whole, other, State.PENDING))


async def test_the_attempts_of_a_worker_in_offline_mode_do_not_fail_when_its_stream_breaks(whole: Whole) -> None:
    keys = await whole.create(2)
    for name, is_offline in (("patient", True), ("doomed", False)):
        async with whole.worker(name, lease_ms=600_000, offline=is_offline) as worker:
            await worker.grant(1)
            await worker.got(1)
    await until(lambda: _has_state(whole, keys[1], State.PENDING))
    assert (await whole.job(keys[0])).state is State.PROCESSING


@pytest.mark.every_engine
async def test_a_worker_in_offline_mode_resumes_attempts_whose_leases_have_lapsed(whole: Whole) -> None:
    [key] = await whole.create()
    async with whole.worker(offline=True, lease_ms=100) as worker:
        await worker.grant(1)
        [job] = await worker.got(1)
    await until(lambda: _has_state(whole, key, State.PENDING))
    async with whole.worker(offline=True, resumed=[lease_of(job)]) as again:
        assert again.welcome is not None
        assert not again.welcome.lost
        await again.say(outcomes=[pb.Outcome(key=key, attempt=job.attempt, complete=pb.Complete())])
        await again.until(lambda: again.settled)
    assert (await whole.job(key)).state is State.COMPLETED


@pytest.mark.every_engine
async def test_a_worker_keeps_its_attempts_through_an_outage_of_the_engine_in_which_their_leases_lapse(
    whole: Whole, engine_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [key] = await whole.create()
    outage = Outage(whole.service._engine, monkeypatch)
    async with whole.worker() as worker, a_later_engine(url_of(engine_name, tmp_path)) as later:
        await worker.grant(1)
        [job] = await worker.got(1)
        outage.fail("check")
        await until(lambda: outage.failed)
        assert (await later.sweep("later")).lapsed == 1
        outage.end()
        await until(lambda: _has_state(whole, key, State.PROCESSING))
        await worker.say(outcomes=[ended(job, complete=pb.Complete())])
        await worker.until(lambda: worker.settled)
        assert not worker.losses
        assert not worker.refusals


@pytest.mark.every_engine
async def test_an_outcome_after_an_outage_counts_although_its_lease_was_not_taken_back_yet(
    whole: Whole, engine_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [key] = await whole.create()
    outage = Outage(whole.service._engine, monkeypatch)
    async with whole.worker() as worker, a_later_engine(url_of(engine_name, tmp_path)) as later:
        await worker.grant(1)
        [job] = await worker.got(1)
        outage.fail("check")
        await until(lambda: outage.failed)
        assert (await later.sweep("later")).lapsed == 1
        await worker.say(outcomes=[ended(job, complete=pb.Complete())])
        await worker.until(lambda: worker.settled)
        assert not worker.refusals
    assert (await whole.job(key)).state is State.COMPLETED


@pytest.mark.every_engine
async def test_a_worker_that_comes_back_at_once_keeps_its_attempts(whole: Whole) -> None:
    [key] = await whole.create()
    async with whole.worker() as worker:
        await worker.grant(1)
        [job] = await worker.got(1)
    async with whole.worker(resumed=[lease_of(job), pb.Lease(key=key, attempt=5)]) as again:
        assert again.welcome is not None
        assert [loss.lease.attempt for loss in again.welcome.lost] == [5]
        await until(lambda: not whole.server._streams._orphans)
        await _given_up(whole)
        await again.complete(job)
        await again.until(lambda: again.settled == 1)
        assert not again.refusals
    assert (await whole.job(key)).state is State.COMPLETED


@pytest.mark.every_engine
async def test_a_worker_that_comes_back_to_another_server_keeps_its_attempts(engine_name: str, tmp_path: Path) -> None:
    url = url_of(engine_name, tmp_path)
    async with running(url) as first, running(url) as second:
        [key] = await first.create()
        async with first.worker() as worker:
            await worker.grant(1)
            [job] = await worker.got(1)
            [stream] = first.server._streams._streams
            stream.held = dict.fromkeys(stream.held, asyncio.get_running_loop().time() - 5)  # Its last heartbeat.
            async with second.worker(resumed=[lease_of(job)]) as again:
                worker.call.cancel()
                await until(lambda: not first.server._streams._streams)
                await _given_up(first)
                await again.complete(job)
                await again.until(lambda: again.settled == 1)
                assert not again.refusals
        assert (await first.job(key)).state is State.COMPLETED


async def test_attempts_that_cannot_be_failed_in_an_outage_are_forgotten(
    sqlite_whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrying, "OUTAGE_SECONDS_MAX", 0.0)
    outage = Outage(sqlite_whole.service._engine, monkeypatch)
    await sqlite_whole.create()
    async with sqlite_whole.worker() as worker:
        await worker.grant(1)
        await worker.got(1)
        outage.fail("now")
    await until(lambda: outage.failed)
    await _given_up(sqlite_whole)
    assert not sqlite_whole.server._streams._orphans


async def test_the_end_of_an_old_stream_takes_nothing_from_the_new_one(whole: Whole) -> None:
    await whole.create()
    async with whole.worker() as old:
        await old.grant(1)
        [job] = await old.got(1)
        async with whole.worker(resumed=[lease_of(job)]) as new:
            old.call.cancel()
            await until(lambda: len(whole.server._streams._streams) == 1)
            await _given_up(whole)
            await new.complete(job)
            await new.until(lambda: new.settled == 1)
            assert not new.refusals


async def test_outcomes_that_came_before_the_worker_closed_its_side_are_all_judged(whole: Whole) -> None:
    await whole.create(300)
    async with whole.worker() as worker:
        await worker.grant(300)
        jobs = await worker.got(300)
        for at in range(0, 300, 10):
            await worker.complete(*jobs[at : at + 10])
        await worker.call.done_writing()
        await worker.until(lambda: worker.settled == 300)
        assert await worker.call.read() is EOF
        assert (await worker.status())[0] is grpc.StatusCode.OK
    counts = await whole.service._engine.count()
    assert [(count.state, count.jobs) for count in counts] == [(State.COMPLETED, 300)]


async def test_draining_voids_the_credit_and_a_new_grant_begins_anew(whole: Whole) -> None:
    async with whole.worker() as worker:
        await worker.grant(10)
        await until(lambda: whole.service.waiting(TYPE) == 1)
        await worker.say(draining=True)
        await until(lambda: not whole.service.waiting(TYPE))
        [key] = await whole.create()
        # A question that was under way may have met the job; then it is on its way back.
        await until(lambda: _has_state(whole, key, State.PENDING))
        assert not worker.jobs
        await worker.grant(1)
        assert [job.key for job in await worker.got(1)] == [key]


async def test_a_worker_that_does_not_read_gets_few_large_jobs(sqlite_whole: Whole) -> None:
    jobs = await sqlite_whole.create(2 * FEED_FIRST, variables='{"x":"' + "x" * 1_000_000 + '"}')
    async with sqlite_whole.worker() as worker:
        [stream] = sqlite_whole.server._streams._streams
        stream._writer._send = _never
        await worker.grant(len(jobs))
        await until(lambda: stream._writer._jobs_bytes > UNWRITTEN_BYTES_MAX)
        others = await sqlite_whole.service.activate(Demand(TYPE, "w2", len(jobs), 30_000))
        assert len(others) == len(jobs) - FEED_FIRST
        worker.call.cancel()


async def test_what_was_not_written_goes_back_although_the_worker_leaves_while_its_stream_ends(
    sqlite_whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everwork.server.grpc.work_stream.WRITE_SECONDS_MAX", SOON_S)
    [key] = await sqlite_whole.create()
    async with sqlite_whole.worker() as worker:
        [stream] = sqlite_whole.server._streams._streams
        stream._writer._send = _never
        await worker.grant(1)
        await until(lambda: stream._writer._in_flight)
        await worker.say(hello=pb.Hello(worker="again"))
        await until(lambda: stream._writer._is_stopped)
        worker.call.cancel()
        await until(lambda: not sqlite_whole.server._streams._streams)
        await until(lambda: _has_state(sqlite_whole, key, State.PENDING))
    assert (await sqlite_whole.job(key)).attempts == 0
    assert stream._writer._undelivered.bytes == 0


async def test_a_new_stream_gets_small_jobs_in_one_message_although_their_size_was_not_known(
    sqlite_whole: Whole,
) -> None:
    keys = await sqlite_whole.create(20 * FEED_FIRST)
    async with sqlite_whole.worker() as worker:
        await worker.grant(len(keys))
        assert [job.key for job in await worker.got(1)] == keys


async def test_jobs_that_are_not_on_their_way_go_back_uncounted_when_the_worker_wants_no_more(
    sqlite_whole: Whole,
) -> None:
    keys = await sqlite_whole.create(FEED_FIRST, variables='{"x":"' + "x" * 1_000_000 + '"}')
    async with sqlite_whole.worker() as worker:
        await worker.grant(FEED_FIRST)
        await until(lambda: not sqlite_whole.service.waiting(TYPE))
        await until(lambda: _has_state(sqlite_whole, keys[-1], State.PROCESSING))
        await worker.got(1)
        await worker.say(draining=True)
        await until(lambda: _has_state(sqlite_whole, keys[-1], State.PENDING))
        assert (await sqlite_whole.job(keys[-1])).attempts == 0
        await worker.call.done_writing()
        await worker.status()
    assert len(worker.jobs) < FEED_FIRST


@pytest.mark.parametrize("tenants", [(), ("<default>",)])
async def test_an_outage_of_the_engine_keeps_the_worker_waiting_and_loses_nothing(
    sqlite_whole: Whole, tenants: Sequence[str]
) -> None:
    new = await sqlite_whole.server.keys.create("worker", ["jobs"], tenants=tenants)
    first, second = await sqlite_whole.create(2, variables='{"n":0}')
    async with sqlite_whole.worker(key=new.text) as worker:
        await worker.grant(2)
        jobs = await worker.got(2)
        engine = sqlite_whole.service._engine
        away = _Away(engine)
        sqlite_whole.service._engine = sqlite_whole.service._dispatcher.steps._engine = away  # type: ignore[assignment]
        failed = ended(jobs[1], fail=pb.Fail(error="boom", backoff_ms=0, variables=b'{"seen":1}'))
        done = ended(jobs[0], complete=pb.Complete())
        await worker.say(outcomes=[done, failed], heartbeats=[lease_of(jobs[1])])
        await worker.call.done_writing()
        await until(lambda: away.refused >= 2)
        sqlite_whole.service._engine = sqlite_whole.service._dispatcher.steps._engine = engine
        await worker.until(lambda: worker.settled == 2)
        assert not worker.refusals
        assert (await worker.status())[0] is grpc.StatusCode.OK
    assert (await sqlite_whole.job(first)).state is State.COMPLETED
    assert (await sqlite_whole.job(second)).variables == '{"n":0,"seen":1}'


async def test_many_refusals_travel_in_messages_that_clients_take_and_are_counted_together_with_what_is_settled(
    sqlite_whole: Whole,
) -> None:
    async with sqlite_whole.worker() as worker:
        for _ in range(3):
            await worker.say(outcomes=[pb.Outcome(key=999, attempt=1, complete=pb.Complete())] * 2_000)
        await worker.until(lambda: worker.settled == 6_000)
        assert [one.number for one in worker.refusals] == list(range(1, 6_001))
        assert max(worker.sizes) < MESSAGE_BYTES_MAX / 3


async def test_a_worker_that_does_not_listen_is_not_judged_further(sqlite_whole: Whole) -> None:
    async with sqlite_whole.worker() as worker:
        [stream] = sqlite_whole.server._streams._streams
        send, stream._writer._send = stream._writer._send, _never
        bad = [pb.Outcome(key=999, attempt=1, complete=pb.Complete())] * 10_000
        for _ in range(4):
            await worker.say(outcomes=bad)
        await until(lambda: stream.ended_jobs == 40_000)
        assert stream._reported.judged <= 30_000
        stream._writer._send = send
        worker.call.cancel()


async def test_large_outcomes_are_not_read_as_long_as_the_engine_does_not_take_them(
    sqlite_whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = Outage(sqlite_whole.service._engine, monkeypatch)
    large = pb.Outcome(key=999, attempt=1, complete=pb.Complete(result=b'"%b"' % (b"x" * 500_000)))
    async with sqlite_whole.worker() as worker:
        [stream] = sqlite_whole.server._streams._streams
        outage.fail("settle")
        sending = asyncio.create_task(_say_often(worker, 20, outcomes=[large]))
        await until(lambda: stream.ended_jobs * PARSED_FACTOR * 500_000 > UNJUDGED_BYTES_MAX)
        so_far = len(outage.failed)
        await until(lambda: len(outage.failed) >= so_far + 3)
        assert stream.ended_jobs == 6
        assert not sending.done()
        outage.end()
        await worker.until(lambda: worker.settled == 20)
        await sending


async def test_outcomes_of_a_stream_that_has_ended_count_until_they_are_settled(
    sqlite_whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = Outage(sqlite_whole.service._engine, monkeypatch)
    requests = sqlite_whole.server._grpc.gateway.receiving.requests
    async with sqlite_whole.worker() as worker:
        outage.fail("settle")
        await worker.say(outcomes=[pb.Outcome(key=999, attempt=1, complete=pb.Complete())])
        await until(lambda: outage.failed)
    await until(lambda: not sqlite_whole.server._streams._streams)
    assert requests.bytes > 0
    outage.end()
    await until(lambda: requests.bytes == 0)


async def test_heartbeats_wait_for_their_turn(sqlite_whole: Whole) -> None:
    turns = sqlite_whole.service.budgets.requests
    other = Principal("other", "other", frozenset([Permission.ALL]))
    async with sqlite_whole.worker() as worker:
        async with AsyncExitStack() as stack:
            for principal in (other, *[ENVIRONMENT] * RUNNING_FIRST):
                await stack.enter_async_context(turns.of(principal))
            await worker.say(heartbeats=[pb.Lease(key=999, attempt=1)])
            await until(lambda: turns.held(ENVIRONMENT) > RUNNING_FIRST)
            assert not worker.losses
        await worker.until(lambda: worker.losses)


async def test_a_message_with_many_grants_lets_active_tenants_go_first(
    sqlite_whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everwork.service.access.turns.GIVE_WAY_SECONDS", 3_600.0)
    turns = sqlite_whole.service.budgets.requests
    other = Principal("other", "other", frozenset([Permission.ALL]))
    async with sqlite_whole.worker() as worker:
        [stream] = sqlite_whole.service.clients._streams
        async with turns.of(other), turns.of(ENVIRONMENT):
            await worker.say(grants=[pb.Grant(type=f"{number}") for number in range(3 * GRANTS_STEP)])
            await until(lambda: stream.types)
            assert len(list(stream.types)) == GRANTS_STEP
            assert await sqlite_whole.create()


async def test_capacity_that_returned_jobs_leave_is_used(sqlite_whole: Whole) -> None:
    await sqlite_whole.create()
    [job] = await sqlite_whole.service.activate(Demand(TYPE, "w", 1))
    writer = MessageWriter(_never, lambda _: None, HeldBytes(10, 10), "key")
    writer.jobs([job] * UNWRITTEN_JOBS_MAX)
    waiting = asyncio.create_task(writer.has_capacity())
    await asyncio.sleep(0)
    assert len(writer.take_waiting()) == UNWRITTEN_JOBS_MAX
    await asyncio.wait_for(waiting, SOON_S)


async def test_an_outcome_and_a_heartbeat_in_one_message_are_no_loss(sqlite_whole: Whole) -> None:
    await sqlite_whole.create()
    async with sqlite_whole.worker() as worker:
        await worker.grant(1)
        [job] = await worker.got(1)
        await worker.say(outcomes=[ended(job, complete=pb.Complete())], heartbeats=[lease_of(job)])
        await worker.until(lambda: worker.settled == 1)
        await worker.say(heartbeats=[pb.Lease(key=job.key, attempt=9)])
        await worker.until(lambda: worker.losses)
        assert [loss.lease.attempt for loss in worker.losses] == [9]


async def test_a_heartbeat_for_many_attempts_searches_the_other_streams_once(sqlite_whole: Whole) -> None:
    await sqlite_whole.create(50)
    leased = await sqlite_whole.service.activate(Demand(TYPE, "w1", 50, 30_000))
    async with sqlite_whole.worker() as worker:
        [stream] = sqlite_whole.server._streams._streams
        stream._streams = counting = _Counting(stream._streams)
        await worker.say(heartbeats=[pb.Lease(key=job.key, attempt=job.attempt) for job in leased])
        await until(lambda: len(stream.held) == 50)
        assert counting.adopted == 1


async def test_a_worker_that_comes_back_keeps_its_attempts_however_slow_the_engine_is(sqlite_whole: Whole) -> None:
    [key] = await sqlite_whole.create()
    async with sqlite_whole.worker() as worker:
        await worker.grant(1)
        [job] = await worker.got(1)
    streams, engine = sqlite_whole.server._streams, sqlite_whole.service._engine
    gate = asyncio.Event()
    sqlite_whole.service._engine = _Gated(engine, gate)  # type: ignore[assignment]
    async with sqlite_whole.channel() as channel:
        again = Worker(channel)
        await again.say(hello=pb.Hello(worker="w1", resumed=[lease_of(job)]))
        await _given_up(sqlite_whole)
        gate.set()
        await again.until(lambda: again.welcome is not None)
        assert not streams._orphans
        assert (await sqlite_whole.job(key)).state is State.PROCESSING
        again.call.cancel()


async def test_a_stopping_server_sends_no_more_jobs_but_takes_outcomes(whole: Whole) -> None:
    [key] = await whole.create()
    async with whole.worker() as worker:
        await worker.grant(5)
        [job] = await worker.got(1)
        whole.server._streams.close()
        await worker.until(lambda: worker.is_closing)
        await whole.create()
        await worker.grant(5)
        await worker.complete(job)
        await worker.until(lambda: worker.settled == 1)
        assert len(worker.jobs) == 1
    assert (await whole.job(key)).state is State.COMPLETED


async def test_a_worker_left_by_a_stopping_server_keeps_its_lease(sqlite_whole: Whole) -> None:
    [key] = await sqlite_whole.create()
    async with sqlite_whole.worker() as worker:
        await worker.grant(5)
        await worker.got(1)
        sqlite_whole.server._streams.close()
    await until(lambda: not sqlite_whole.server._streams._streams)
    assert not sqlite_whole.server._streams._orphans
    assert (await sqlite_whole.job(key)).state is State.PROCESSING


async def test_large_jobs_travel_in_messages_that_clients_take(sqlite_whole: Whole) -> None:
    await sqlite_whole.create(8, variables='{"x":"' + "é" * 500_000 + '"}')
    async with sqlite_whole.worker() as worker:
        await worker.grant(8)
        await worker.got(8)
        assert max(worker.sizes) < MESSAGE_BYTES_MAX


async def test_a_revoked_key_ends_the_stream(sqlite_whole: Whole) -> None:
    new = await sqlite_whole.server.keys.create("soon-gone", ["jobs"])
    async with sqlite_whole.worker(key=new.text) as worker:
        await sqlite_whole.server.keys.revoke(new.key.id)
        code, details = await worker.status()
    assert (code, details) == (grpc.StatusCode.UNAUTHENTICATED, "the API key of this stream is no longer valid")


async def test_a_worker_that_says_nothing_is_taken_for_gone(sqlite_whole: Whole) -> None:
    async with sqlite_whole.worker("mute", lease_ms=30) as worker:
        code, details = await worker.status()
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert details.startswith("worker 'mute' sent nothing for ")


async def test_a_tenants_key_sees_and_ends_only_its_own(sqlite_whole: Whole) -> None:
    new = await sqlite_whole.server.keys.create("acme", ["jobs"], tenants=["acme"])
    [foreign] = await sqlite_whole.create(tenant="other")
    [mine] = await sqlite_whole.create(tenant="acme")
    [held] = await sqlite_whole.service.activate(Demand(TYPE, "other", 1, tenants=("other",)))
    async with sqlite_whole.worker(key=new.text, resumed=[pb.Lease(key=held.key, attempt=1)]) as worker:
        assert worker.welcome is not None
        assert [loss.lease.key for loss in worker.welcome.lost] == [foreign]
        await worker.grant(5)
        [job] = await worker.got(1)
        assert job.key == mine
        theirs = pb.Outcome(key=foreign, attempt=1, complete=pb.Complete())
        event = ended(job, complete=pb.Complete(events=[pb.NewJob(type="x", tenant="other")]))
        await worker.say(outcomes=[theirs, event])
        await worker.until(lambda: worker.settled == 2)
        await worker.say(heartbeats=[pb.Lease(key=foreign, attempt=1)])
        await worker.until(lambda: worker.losses)
        assert [pb.Reason.Name(one.reason) for one in worker.refusals] == ["NOT_FOUND", "PERMISSION_DENIED"]
    assert (await sqlite_whole.job(foreign)).state is State.PROCESSING


@pytest.mark.parametrize(
    ("messages", "details"),
    [
        ([b"\xff\xff"], "message: must be a protobuf message of type everwork.v1.FromWorker"),
        ([pb.FromWorker(draining=True)], "hello: must be in the first message"),
        ([pb.FromWorker(hello=pb.Hello())], "hello.worker: must have 1 to 255 characters, not 0"),
        ([pb.FromWorker(hello=pb.Hello(worker="w", lease_ms=-1))], "hello.lease_ms: must be a whole number from 1 "),
        ([pb.FromWorker(hello=pb.Hello(worker="w"))] * 2, "hello: must be in the first message only"),
        (
            [pb.FromWorker(hello=pb.Hello(worker="w"), grants=[pb.Grant(credits=1)])],
            "type: must have 1 to 255 characters, not 0",
        ),
        (
            [pb.FromWorker(hello=pb.Hello(worker="w"), grants=[pb.Grant(type="t", credits=100_001)])],
            "credits: must be a whole number from 0 to 100000, not 100001",
        ),
        (
            [pb.FromWorker(hello=pb.Hello(worker="w"), outcomes=[pb.Outcome()] * 10_001)],
            "outcomes: must be at most 10,000 in one message, not 10,001",
        ),
        (
            [pb.FromWorker(hello=pb.Hello(worker="w", resumed=[pb.Lease(key=2**64 - 1)]))],
            "hello.resumed.key: must be a job key",
        ),
    ],
)
async def test_nonsense_ends_the_stream_with_its_reason(sqlite_whole: Whole, messages: list[Any], details: str) -> None:
    async with sqlite_whole.channel() as channel:
        worker = Worker(channel)
        for message in messages:
            await worker.call.write(message if isinstance(message, bytes) else message.SerializeToString())
        code, told = await worker.status()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert told.startswith(details)


@pytest.mark.parametrize(
    ("permissions", "code"),
    [(["jobs:read"], grpc.StatusCode.PERMISSION_DENIED), (["admin"], grpc.StatusCode.PERMISSION_DENIED)],
)
async def test_a_key_that_may_not_work_gets_no_stream(
    sqlite_whole: Whole, permissions: list[str], code: grpc.StatusCode
) -> None:
    new = await sqlite_whole.server.keys.create("reader", permissions)
    async with sqlite_whole.channel() as channel:
        assert (await Worker(channel, new.text).status())[0] is code
        assert (await Worker(channel, "wrong").status())[0] is grpc.StatusCode.UNAUTHENTICATED


async def test_create_jobs_is_all_or_none_and_names_the_one_that_is_wrong(whole: Whole) -> None:
    async with whole.channel() as channel:
        unary: Any = channel.unary_unary
        call = unary("/everwork.v1.WorkService/CreateJobs")
        good = pb.NewJob(type=TYPE, variables=b'{"n":1}', dedupe_key="once", delay_ms=1_000, max_attempts=2)
        request = pb.CreateJobsRequest(jobs=[good, good])
        answer = pb.CreateJobsResponse.FromString(await call(request.SerializeToString(), metadata=_key()))
        assert [one.deduplicated for one in answer.jobs] == [False, True]
        bad = pb.CreateJobsRequest(jobs=[pb.NewJob(type=TYPE), pb.NewJob(type=TYPE, priority=9_999)])
        with pytest.raises(grpc.aio.AioRpcError, match=r"jobs\[1\].priority: must be a whole number from -512 to 511"):
            await call(bad.SerializeToString(), metadata=_key())
    assert sum(count.jobs for count in await whole.service._engine.count()) == 1


async def _say_often(worker: Worker, times: int, **parts: Any) -> None:
    for _ in range(times):
        await worker.say(**parts)


async def _never(_: bytes) -> None:
    await asyncio.Event().wait()


class _Away:
    """An engine that cannot be reached; what was refused is counted."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        if name not in ("owners", "get", "settle", "activate", "extend", "check"):
            return getattr(self._engine, name)

        async def away(*_: object) -> None:
            self.refused += 1
            raise EngineUnavailable("away")

        return away


class _Counting:
    """Streams that count how often attempts were searched for in all of them."""

    def __init__(self, streams: Any) -> None:
        self._streams = streams
        self.adopted = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._streams, name)

    def adopt(self, *given: Any) -> None:
        self.adopted += 1
        self._streams.adopt(*given)


class _Gated:
    """An engine that prolongs leases only when it is told to."""

    def __init__(self, engine: Any, gate: asyncio.Event) -> None:
        self._engine = engine
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def extend(self, *arguments: Any) -> Any:
        await self._gate.wait()
        return await self._engine.extend(*arguments)


def _key() -> tuple[tuple[str, str], ...]:
    return (("x-api-key", KEY),)


async def _lease(whole: Whole, key: int) -> Lease:
    return Lease(key, (await whole.job(key)).attempt)


async def _has_state(whole: Whole, key: int, state: State) -> bool:
    return (await whole.job(key)).state is state


async def _given_up(whole: Whole) -> None:
    """Wait until whatever waited for a worker to come back has stopped waiting."""
    tasks = whole.server._streams._tasks
    while tasks:
        await asyncio.wait(tasks)
