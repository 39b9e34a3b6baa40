"""What stays in memory, and how far a question looks."""

from __future__ import annotations

import redis

from everwork.core.leasing import Demand
from everwork.core.limits import LIST_SCAN_MAX
from everwork.core.outcome import Complete, Failed
from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.engines.redis.engine import RedisEngine
from tests.conformance.observe import every_job
from tests.factories import TYPE, WORKER, a_new_job, a_pending_job, asked
from tests.redis.conftest import opened
from tests.servers import RedisServer
from tests.stores import DAY_MS, HOUR_MS, VirtualClock


async def worked_off(engine: RedisEngine, jobs: int, **fields: object) -> None:
    """Create jobs and complete them, with results, some failures and some dedupe keys on the way."""
    await engine.create([a_new_job(dedupe_key=f"{fields}-{n}" if n % 3 else None) for n in range(jobs)])
    while leased := (await asked(engine, 500)).jobs:
        await engine.settle(
            [
                Failed(job.key, job.attempt, "boom", backoff_ms=0)
                if job.key % 5 == 0 and job.attempt == 1
                else Complete(job.key, job.attempt, '{"n":1}')
                for job in leased
            ]
        )


def keys_of(url: str) -> set[str]:
    with redis.Redis.from_url(url) as client:
        return {key.decode() for key in client.scan_iter("*", count=10_000)}


def bytes_of(url: str) -> int:
    """The memory of the keys, without buffers and what the allocator keeps."""
    with redis.Redis.from_url(url) as client:
        return sum(client.memory_usage(key, samples=0) or 0 for key in keys_of(url))


def tag_of(url: str) -> str:
    return next(iter(keys_of(url))).partition("}")[0] + "}"


async def swept(engine: RedisEngine) -> None:
    while (await engine.sweep("s")).more:
        pass


async def test_a_finished_job_leaves_nothing_behind_once_its_time_is_over(
    server: RedisServer, clock: VirtualClock
) -> None:
    async with opened(server.url, clock) as engine:
        await worked_off(engine, 2_500)
        clock.advance(ms=DAY_MS + 1)
        await swept(engine)
        left = {key.partition("}:")[2].split(":")[0] for key in keys_of(server.url)}
        assert left <= {"version", "seq", "types", "t", "bell", "turn", "turns", "served", "leases", "hours", "w", "m"}
        assert await engine.count() == []


async def test_days_of_work_take_no_more_memory_than_one(server: RedisServer, clock: VirtualClock) -> None:
    async with opened(server.url, clock) as engine:
        taken = []
        for day in range(4):
            await worked_off(engine, 2_000, day=day)
            clock.advance(ms=DAY_MS + 1)
            await swept(engine)
            taken.append(bytes_of(server.url))
        # A day of statistics takes a few hundred bytes; if each job left one byte, that would be 6,000.
        assert max(taken) - min(taken) < 2_000, taken


async def test_the_statistics_of_old_hours_are_forgotten(server: RedisServer, clock: VirtualClock) -> None:
    async with opened(server.url, clock) as engine:
        await worked_off(engine, 10)
        clock.advance(ms=31 * DAY_MS)
        await swept(engine)
        assert not any("}:w:" in key or "}:m:" in key for key in keys_of(server.url))


async def test_long_entries_of_the_registry_are_read_and_forgotten_in_portions(
    server: RedisServer, clock: VirtualClock
) -> None:
    async with opened(server.url, clock) as engine:
        names = [f"{number:02}" for number in range(11)]
        for name in names:
            await engine.register("minute", name, name + "x" * 600_000, None if name in names[:2] else HOUR_MS)
        await engine.register("owner", "mail", "w")
        told = await engine.registered(None)
        assert [(one.kind, one.name, one.body[:2]) for one in told[:11]] == [("minute", name, name) for name in names]
        assert len(told) == 12
        assert [one.name for one in await engine.last_registered("minute", 10, "10")] == names[9::-1]
        clock.advance(ms=HOUR_MS)
        left: list[int] = []
        for _ in range(7):
            await swept(engine)
            left.append(int(server.ask("HLEN", f"{tag_of(server.url)}:registry")))
        assert left == [12, 10, 8, 6, 4, 3, 3]
        assert [one.name for one in await engine.registered(None)] == [*names[:2], "mail"]


async def test_one_call_of_list_looks_at_a_bounded_number_of_jobs(engine: RedisEngine) -> None:
    first = await a_pending_job(engine, type="rare")
    for _ in range(3):
        await engine.create([a_new_job() for _ in range(10_000)])
    page = await engine.find(JobFilter(type="rare"), 10)
    assert page.jobs == []
    assert page.next is not None
    assert page.next >= 30_001 - LIST_SCAN_MAX
    assert await every_job(engine, JobFilter(type="rare")) == [first]


async def test_failed_and_running_jobs_are_found_at_once_among_many_others(engine: RedisEngine) -> None:
    [failed, running] = (await engine.create([a_new_job(type="x"), a_new_job(type="x")]))[:2]
    jobs = (await engine.activate([Demand("x", WORKER, 2)])).jobs
    await engine.settle([Failed(jobs[0].key, 1, "boom", final=True)])
    for _ in range(3):
        await engine.create([a_new_job() for _ in range(10_000)])
    wanted = JobFilter(states=frozenset({State.FAILED, State.PROCESSING}))
    page = await engine.find(wanted, 10)
    assert ([job.key for job in page.jobs], page.next) == ([running.key, failed.key], None)


async def test_an_instant_far_away_does_not_disturb_the_order(engine: RedisEngine, clock: VirtualClock) -> None:
    far = await a_pending_job(engine, run_at_ms=253_402_300_799_999, priority=511)
    near = await a_pending_job(engine)
    assert [job.key for job in (await asked(engine)).jobs] == [near.key]
    assert (await engine.activate([Demand(TYPE, WORKER, 1)])).next_due_ms == far.run_at_ms
    clock.now_ms = far.run_at_ms
    later = await a_pending_job(engine, priority=510)
    assert [job.key for job in (await asked(engine)).jobs] == [far.key, later.key]
