"""What happens in the middle of work: connections cut, a server that restarts, is full, or changes its mind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from everwork.core.leasing import Demand, Lease, LeaseStatus, Verdict
from everwork.core.outcome import Complete, Failed
from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.engines.redis.engine import RedisEngine
from everwork.engines.redis.scripts import SCHEMA_VERSION
from everwork.exceptions import EngineError, EngineUnavailable
from tests.app.waiting import stubbornly
from tests.conformance.observe import assert_counts_add_up, count_of, every_job
from tests.factories import TYPE, WORKER, a_new_job, a_pending_job, a_processing_job, asked, settled, the_job
from tests.redis.conftest import opened
from tests.servers import RedisServer, redis_server
from tests.stores import DAY_MS, MINUTE_MS, VirtualClock

T = TypeVar("T")
DEADLINE_S = 30.0


def cut_connections(server: RedisServer) -> None:
    server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


# Connections ----------------------------------------------------------------------------------------


async def test_an_engine_whose_connection_was_cut_goes_on_with_another(server: RedisServer) -> None:
    async with opened(server.url) as engine:
        job = await a_pending_job(engine)
        cut_connections(server)
        assert (await stubbornly(lambda: engine.get([job.key]))) == [job]
        assert (await stubbornly(lambda: asked(engine))).jobs[0].key == job.key


async def test_cuts_in_the_middle_of_work_lose_and_double_nothing(server: RedisServer) -> None:
    async with opened(server.url) as engine:
        await engine.create([a_new_job() for _ in range(300)])
        ran: list[int] = []
        while await count_of(engine, State.COMPLETED) < 300:
            jobs = (await stubbornly(lambda: asked(engine, 20, lease_ms=1))).jobs
            cut_connections(server)
            done = [Complete(job.key, job.attempt) for job in jobs]
            judged = (await stubbornly(lambda done=done: engine.settle(done))).judged  # type: ignore[misc]
            ran += [job.key for job, one in zip(jobs, judged, strict=True) if one.verdict is Verdict.ACCEPTED]
            await stubbornly(lambda: engine.sweep("s"))
            await stubbornly(lambda: engine.reschedule([job.key for job in late], delay_ms=0)) if (
                late := await every_job(engine, JobFilter(states=frozenset({State.PENDING})))
            ) else None
        assert len(ran) == len(set(ran)) <= 300
        await assert_counts_add_up(engine)


async def test_a_caller_that_gives_up_leaves_the_connection_fit_for_the_next(server: RedisServer) -> None:
    async with opened(server.url) as engine:
        for _ in range(20):
            call = asyncio.ensure_future(engine.create([a_new_job()]))
            await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            [job] = await engine.create([a_new_job(type="kept")])
            assert (await the_job(engine, job.key)).type == "kept"


async def test_many_callers_share_one_connection(server: RedisServer) -> None:
    async with opened(server.url) as engine:
        answers = await asyncio.gather(*(engine.create([a_new_job()]) for _ in range(500)))
        assert sorted(answer[0].key for answer in answers) == list(range(1, 501))
        assert int(server.ask("INFO", "clients").split("connected_clients:")[1].split()[0]) <= 2


async def test_a_waiter_hears_again_after_its_connection_was_cut(server: RedisServer) -> None:
    async with opened(server.url) as engine, opened(server.url) as other:
        await engine.wait([TYPE], 1)
        server.ask("CLIENT", "KILL", "TYPE", "pubsub")
        await asked(engine)
        waiter = asyncio.ensure_future(engine.wait([TYPE], 60_000))
        await other.create([a_new_job()])
        assert await asyncio.wait_for(waiter, DEADLINE_S)


async def test_what_may_have_rung_while_nobody_listened_is_not_missed(server: RedisServer) -> None:
    async with opened(server.url) as engine:
        await engine.wait([TYPE], 1)
        mark, wire = engine.mark(), engine._store.wakeups._wire
        server.ask("CLIENT", "KILL", "TYPE", "pubsub")
        assert wire is not None
        await asyncio.wait_for(wire.ended, DEADLINE_S)
        await engine.wait_finished(1)
        assert await asyncio.wait_for(engine.wait([TYPE], 600_000, mark), DEADLINE_S)


# The server -----------------------------------------------------------------------------------------


async def test_while_the_server_is_down_calls_say_so_and_afterwards_all_is_as_before(server: RedisServer) -> None:
    async with opened(server.url) as engine:
        running = await a_processing_job(engine)
        waiting = await a_pending_job(engine)
        server.kill()
        with pytest.raises(EngineUnavailable):
            await engine.create([a_new_job()])
        with pytest.raises(EngineUnavailable, match="start it, or correct the URL"):
            await engine.create([a_new_job()])
        server.start()
        assert await stubbornly(lambda: engine.get([running.key, waiting.key])) == [running, waiting]
        assert (await engine.settle([Complete(running.key, 1)])).judged[0].verdict is Verdict.ACCEPTED


async def test_what_was_accepted_survives_any_number_of_kills_of_the_server() -> None:
    # With `everysec`, a server whose disk is slow answers before it writes.
    with redis_server("--appendfsync", "always") as server:
        await _kill_in_the_middle_of_creates(server)


async def _kill_in_the_middle_of_creates(server: RedisServer) -> None:
    async with opened(server.url) as engine:
        accepted: list[int] = []
        for round in range(3):
            creates = [asyncio.ensure_future(engine.create([a_new_job(dedupe_key=f"{round}-{n}")])) for n in range(200)]
            await creates[50]
            server.kill()
            answers = await asyncio.gather(*creates, return_exceptions=True)
            accepted += [answer[0].key for answer in answers if not isinstance(answer, BaseException)]
            server.start()
        jobs = await stubbornly(lambda: engine.get(accepted))
        assert len(accepted) >= 150
        assert None not in jobs
        await assert_counts_add_up(engine)


async def test_a_server_that_stands_still_is_waited_for(server: RedisServer) -> None:
    async with opened(server.url) as engine:
        os.kill(server.pid, signal.SIGSTOP)
        try:
            call = asyncio.ensure_future(engine.create([a_new_job()]))
            await asyncio.wait((call,), timeout=0.05)
            assert not call.done()
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert (await asyncio.wait_for(call, DEADLINE_S))[0].key == 1


async def test_a_server_that_has_become_a_replica_is_told(server: RedisServer) -> None:
    with redis_server() as primary:
        async with opened(server.url) as engine:
            server.ask("REPLICAOF", "127.0.0.1", str(primary.port))
            with pytest.raises(EngineUnavailable, match="replica"):
                await engine.create([a_new_job()])
            server.ask("REPLICAOF", "NO", "ONE")
            assert await stubbornly(lambda: engine.create([a_new_job()]))


async def test_an_eviction_policy_that_loses_jobs_is_noticed_by_the_next_connection(server: RedisServer) -> None:
    async with opened(server.url) as engine:
        server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        cut_connections(server)
        for _ in range(3):
            with pytest.raises(EngineError):
                await engine.create([a_new_job()])


# Memory ---------------------------------------------------------------------------------------------


async def test_a_full_server_accepts_no_jobs_and_writes_no_half(server: RedisServer) -> None:
    async with opened(server.url) as engine:
        job = await a_pending_job(engine, dedupe_key="d")
        before = await every_job(engine)
        server.ask("CONFIG", "SET", "maxmemory", "1")
        for batch in ([a_new_job()], [a_new_job(type="new", dedupe_key="e")], [a_new_job()] * 3_000):
            with pytest.raises(EngineUnavailable, match=r"out of memory.*raise maxmemory"):
                await engine.create(batch)
        assert await every_job(engine) == before == [job]
        assert [info.type for info in await engine.types()] == [TYPE]
        await assert_counts_add_up(engine)


async def test_a_full_server_still_hears_what_is_done_and_still_forgets_the_old(server: RedisServer) -> None:
    async with opened(server.url) as engine:
        done, failed = await a_processing_job(engine), await a_processing_job(engine)
        server.ask("CONFIG", "SET", "maxmemory", "1")
        judged = (await engine.settle([Complete(done.key, 1), Failed(failed.key, 1, "boom", final=True)])).judged
        assert [one.verdict for one in judged] == [Verdict.ACCEPTED] * 2
        assert [one.verdict for one in await engine.delete([done.key])] == [Verdict.ACCEPTED]


async def test_a_full_server_still_keeps_leases_alive(server: RedisServer, clock: VirtualClock) -> None:
    async with opened(server.url, clock) as engine:
        job = await a_processing_job(engine)
        server.ask("CONFIG", "SET", "maxmemory", "1")
        assert await engine.extend([Lease(job.key, 1)], MINUTE_MS) == [LeaseStatus.HELD]
        assert (await the_job(engine, job.key)).lease_until_ms == clock.now_ms + MINUTE_MS


async def test_a_full_server_is_freed_by_retention(server: RedisServer, clock: VirtualClock) -> None:
    async with opened(server.url, clock) as engine:
        await settled(engine, Complete((await a_processing_job(engine)).key, 1))
        clock.advance(ms=DAY_MS + 1)
        server.ask("CONFIG", "SET", "maxmemory", "1")
        assert (await engine.sweep("s")).deleted == 1
        assert await every_job(engine) == []


async def test_a_full_server_can_be_worked_off(server: RedisServer) -> None:
    async with opened(server.url) as engine:
        await engine.create([a_new_job() for _ in range(3)])
        server.ask("CONFIG", "SET", "maxmemory", "1")
        jobs = (await asked(engine, 2)).jobs
        step = await engine.settle([Complete(job.key, 1) for job in jobs], [Demand(TYPE, WORKER, 2)])
        assert [job.key for job in (*jobs, *step.activation.jobs)] == [1, 2, 3]


async def test_a_full_server_judges_what_comes_too_late(server: RedisServer) -> None:
    async with opened(server.url) as engine:
        job = await a_processing_job(engine)
        await engine.cancel([job.key])
        server.ask("CONFIG", "SET", "maxmemory", "1")
        [judged] = (await engine.settle([Complete(job.key, 1, None, (a_new_job(),))])).judged
        assert judged.verdict is Verdict.WRONG_STATE


async def test_a_full_server_still_takes_word_of_who_waits(server: RedisServer) -> None:
    async with opened(server.url) as engine:
        server.ask("CONFIG", "SET", "maxmemory", "1")
        await engine.wait([TYPE], 1)
        await engine.wait_finished(1)
        assert [server.ask("HEXISTS", "{everwork}:bell", flag) for flag in (f"w{TYPE}", "d")] == ["1", "1"]


@pytest.mark.parametrize("name", ["activate", "cancel", "reschedule", "requeue", "extend", "settle"])
async def test_whatever_a_full_server_refuses_changes_nothing(server: RedisServer, name: str) -> None:
    async with opened(server.url) as engine:
        failed, running = await a_processing_job(engine), await a_processing_job(engine)
        await engine.settle([Failed(failed.key, 1, "boom", final=True)])
        waiting = await a_pending_job(engine)
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "activate": lambda: engine.activate([Demand(TYPE, WORKER, 5), Demand("never seen", WORKER, 5)]),
            "cancel": lambda: engine.cancel([waiting.key, running.key]),
            "reschedule": lambda: engine.reschedule([waiting.key], delay_ms=5_000),
            "requeue": lambda: engine.requeue([failed.key]),
            "extend": lambda: engine.extend([], 1_000),
            "settle": lambda: engine.settle([Failed(running.key, 1, "boom")], [Demand(TYPE, WORKER, 1)]),
        }
        before = await every_job(engine)
        server.ask("CONFIG", "SET", "maxmemory", "1")
        try:
            await calls[name]()
        except EngineUnavailable:
            assert await every_job(engine) == before
        server.ask("CONFIG", "SET", "maxmemory", "0")
        await assert_counts_add_up(engine)
        await assert_nothing_is_stuck(engine)


async def assert_nothing_is_stuck(engine: RedisEngine) -> None:
    """Every pending job can be brought to run, every running one to its end."""
    pending = [job.key for job in await every_job(engine) if job.state is State.PENDING]
    await engine.reschedule(pending, delay_ms=0)
    leased = (await asked(engine, 100)).jobs
    assert sorted(job.key for job in leased) == sorted(pending)
    running = [job for job in await every_job(engine) if job.state is State.PROCESSING]
    judged = (await engine.settle([Complete(job.key, job.attempt) for job in running])).judged
    assert all(one.verdict is Verdict.ACCEPTED for one in judged)


async def test_a_store_that_was_flushed_under_a_program_is_a_store_again_with_its_next_job(server: RedisServer) -> None:
    async with opened(server.url) as engine, opened(server.url) as other:
        await engine.create([a_new_job()])
        server.ask("FLUSHALL")
        await engine.create([a_new_job()])
        assert (await other.schema()).stored == SCHEMA_VERSION
        assert len((await asked(other)).jobs) == 1
