"""`?notify=off`: every call is one transaction that any server connection can run, as transaction-mode poolers want."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from everwork import Everwork
from everwork.core.leasing import Lease, LeaseStatus, Verdict
from everwork.core.outcome import Complete, Failed, Release
from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.exceptions import BadConfiguration
from tests.app.waiting import finished, working
from tests.conformance.observe import assert_counts_add_up, count_of
from tests.factories import TYPE, a_dead_letter, a_new_job, a_pending_job, asked, leased_keys, the_state
from tests.postgres.conftest import opened, schema_of, without_options
from tests.postgres.pooler import Pooler


@pytest.fixture
async def pooler(url: str) -> AsyncIterator[Pooler]:
    """Two server connections for everybody; in the end, nothing has crossed it that needs a session."""
    async with Pooler(without_options(url)) as one:
        yield one
    assert one.trespasses == []


@pytest.fixture
def pooled(pooler: Pooler, url: str) -> str:
    """The store as it is reached through the pooler."""
    return f"{pooler.url}?schema={schema_of(url)}&notify=off"


async def test_a_job_is_created_leased_and_completed_behind_a_pooler(pooled: str, pooler: Pooler) -> None:
    async with opened(pooled) as engine:
        job = await a_pending_job(engine, dedupe_key="d")
        [leased] = (await asked(engine)).jobs
        assert (await engine.settle([Complete(job.key, leased.attempt, '"done"')])).judged[
            0
        ].verdict is Verdict.ACCEPTED
        assert await the_state(engine, job.key) is State.COMPLETED
    assert min(pooler.transactions[number] for number in (0, 1)) > 3


async def test_many_callers_at_once_share_two_server_connections(pooled: str) -> None:
    async with opened(f"{pooled}&pool=8") as engine:
        await asyncio.gather(*(engine.create([a_new_job(), a_new_job()]) for _ in range(40)))
        leased = await asyncio.gather(*(leased_keys(engine, 10) for _ in range(8)))
        keys = [key for some in leased for key in some]
        await asyncio.gather(*(engine.settle([Complete(key, 1)]) for key in keys))
        assert len(set(keys)) == len(keys) == await count_of(engine, State.COMPLETED) == 80
        await assert_counts_add_up(engine)


async def test_every_other_call_works_behind_a_pooler(pooled: str) -> None:
    async with opened(pooled) as engine:
        dead = await a_dead_letter(engine)
        await engine.pause(TYPE, True)
        await engine.requeue([dead.key])
        assert await leased_keys(engine) == []
        await engine.pause(TYPE, False)
        assert await leased_keys(engine) == [dead.key]
        assert await engine.extend([Lease(dead.key, 2)], 60_000) == [LeaseStatus.HELD]
        await engine.settle([Release(dead.key, 2)])
        assert [job.key for job in (await engine.find(JobFilter(type=TYPE), 5)).jobs] == [dead.key]
        assert [one.verdict for one in await engine.cancel([dead.key])] == [Verdict.ACCEPTED]
        assert not (await engine.sweep("s")).more
        assert (await engine.health()).details["wake-ups"] == "poll"


async def test_a_statement_that_is_refused_leaves_the_connection_fit_for_the_next(pooled: str) -> None:
    async with opened(f"{pooled}&pool=1") as engine:
        for _ in range(3):
            with pytest.raises(Exception, match="division by zero"):
                await engine._store.connections.fetch("SELECT 1 / 0")
            assert (await a_pending_job(engine)).state is State.PENDING


async def test_a_waiter_without_notifications_looks_for_itself(pooled: str) -> None:
    async with opened(pooled) as engine, opened(pooled) as other:
        await other.create([a_new_job()])
        assert await asyncio.wait_for(engine.wait([TYPE], 60_000), 45)
        assert engine._store.listener._task is None


async def test_workers_work_behind_a_pooler(pooled: str) -> None:
    app = Everwork(pooled, worker="w1")

    @app.job("double", concurrency=4)
    async def double(number: int) -> dict[str, int]:
        return {"doubled": 2 * number}

    async with app, working(app):
        keys = await app.enqueue_many([("double", {"number": n}) for n in range(20)])
        jobs = [await finished(app, key) for key in keys]
    assert [job.result for job in jobs] == [{"doubled": 2 * n} for n in range(20)]


async def test_a_failed_attempt_is_decided_and_written_behind_a_pooler(pooled: str) -> None:
    async with opened(pooled) as engine:
        job = await a_pending_job(engine)
        await leased_keys(engine)
        assert (await engine.settle([Failed(job.key, 1, "boom", final=True)])).judged[0].verdict is Verdict.ACCEPTED
        assert await the_state(engine, job.key) is State.FAILED


async def test_with_notifications_a_pooler_is_refused_with_a_word_on_what_to_do(pooled: str) -> None:
    with pytest.raises(BadConfiguration, match=r"unsupported startup parameter.*\?notify=off"):
        async with opened(pooled.replace("notify=off", "notify=on")):
            pass
