"""Claims of limited types: what they read under a held snapshot, whom they wait for, and what old clients are told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from everwork.core.outcome import Complete, Failed
from everwork.engines.postgres import sweep
from everwork.engines.postgres.engine import PostgresEngine
from everwork.engines.postgres.statements import COUNT_EVERY_MS, COUNT_PASSED_MAX
from tests.factories import TYPE, WORKER, a_new_job, a_policy, a_processing_job, asked, leased_keys
from tests.postgres.big_store import Watched, watch
from tests.postgres.conftest import opened, without_options
from tests.stores import VirtualClock

JOBS = COUNT_PASSED_MAX + 1_000
LIMITS = ({"max_running": 1_000}, {"max_running_per_key": 1_000})


@pytest.mark.parametrize("said", LIMITS, ids=["of the type", "of a key"])
async def test_under_a_held_snapshot_a_claim_counts_from_the_lowest_job_that_runs_and_misses_none(
    url: str, clock: VirtualClock, said: dict[str, Any]
) -> None:
    async with opened(f"{url}&pool=1", clock) as engine:
        watched = watch(engine)
        watched.keeps = True
        await a_policy(engine, **said)
        retried = await a_processing_job(engine, limit_key="k")
        holder = await asyncpg.connect(without_options(url))
        async with holder.transaction(isolation="repeatable_read"):
            await holder.fetchval("SELECT 1")
            await engine.settle([Failed(retried.key, 1, "later")])
            await engine.reschedule([retried.key], delay_ms=1_000)
            await drain(engine, JOBS)
            await entries_counted(engine, watched)
            assert await entries_counted(engine, watched) < COUNT_PASSED_MAX
            clock.advance(seconds=1)
            assert await leased_keys(engine, 10) == [retried.key]
            await engine.create([a_new_job(limit_key="k") for _ in range(1_000)])
            leased = (await asked(engine, 1_000)).jobs
            assert len(leased) == 1_000 - 20 - 1  # Two looks, and the job that came back.
            await engine.settle(completions(leased))
            clock.advance(ms=COUNT_EVERY_MS)
            assert await entries_counted(engine, watched) > JOBS  # What nobody has thought of heals.
        await holder.close()


async def test_who_finds_every_lane_full_waits_at_no_gate_the_next_time(url: str, engine: PostgresEngine) -> None:
    await a_policy(engine, max_running_per_key=1)
    await engine.create([a_new_job(limit_key=key) for key in "aabb"])
    assert len(await leased_keys(engine)) == 2
    await open_lanes_are_listed(url, engine)
    async with held_gate(url, engine):
        assert await leased_keys(engine) == []
    [fresh] = await engine.create([a_new_job(limit_key="c")])
    assert await leased_keys(engine) == [fresh.key]


async def test_a_claim_reads_nothing_of_lanes_at_their_limit(url: str, clock: VirtualClock) -> None:
    async with opened(f"{url}&pool=1", clock) as engine:
        await a_policy(engine, max_running_per_key=1)
        await engine.create([a_new_job(limit_key=f"k{n}") for n in range(200) for _ in range(2)])
        assert len(await leased_keys(engine, 1_000)) == 200
        await open_lanes_are_listed(url, engine)
        watched = watch(engine)
        watched.keeps = True
        for lane in ("free", "free too"):
            [fresh] = await engine.create([a_new_job(limit_key=lane)])
            watched.entries.clear()
            assert await leased_keys(engine) == [fresh.key]
            assert watched.entries["live_ready"] < 20
        watched.entries.clear()
        assert await leased_keys(engine) == []
        assert (watched.entries["live_ready"], watched.entries["open_lane_pkey"]) < (20, 20)


async def test_work_of_a_transaction_that_began_before_the_limit_was_set_is_found(
    url: str, engine: PostgresEngine
) -> None:
    """Its create saw a type without a limit: it tells no claim of its lane."""
    await engine.create([a_new_job(limit_key=key) for key in "abc"])
    assert len(await leased_keys(engine)) == 3
    holder = await asyncpg.connect(without_options(url))
    async with holder.transaction():
        [fresh] = await engine.create_in(holder, [a_new_job(limit_key="d")])
        await a_policy(engine, max_running_per_key=1)
        for _ in range(3):
            assert await leased_keys(engine) == []
    assert await leased_keys(engine) == [fresh.key]
    await holder.close()


async def test_what_creates_leave_while_nobody_claims_is_folded_by_sweeps(
    url: str, engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "FOLD_FROM", 5)
    await a_policy(engine, max_running_per_key=1)
    for key in "abcabc":
        await engine.create([a_new_job(limit_key=key)])
    await engine.sweep("s")
    holder = await asyncpg.connect(without_options(url))
    schema = engine._store.url.schema
    assert await holder.fetchval(f"SELECT count(*) FROM {schema}.open_lane_delta") == 0
    assert await holder.fetchval(f"SELECT count(*) FROM {schema}.open_lane") == 3
    await holder.close()
    assert len(await leased_keys(engine)) == 3


async def open_lanes_are_listed(url: str, engine: PostgresEngine) -> None:
    """Poll until claims rely on the list of open lanes, which waits for every transaction on the server."""
    listed = f"SELECT EXISTS (SELECT 1 FROM {engine._store.url.schema}.gate WHERE listed_at_ms > 0)"
    holder = await asyncpg.connect(without_options(url))
    async with asyncio.timeout(30):
        while not await holder.fetchval(listed):
            assert await leased_keys(engine) == []
    await holder.close()
    assert await leased_keys(engine) == []


@asynccontextmanager
async def held_gate(url: str, engine: PostgresEngine) -> AsyncIterator[None]:
    holder = await asyncpg.connect(without_options(url))
    async with holder.transaction():
        await holder.fetch(f"SELECT * FROM {engine._store.url.schema}.gate FOR UPDATE")
        yield
    await holder.close()


async def test_a_client_of_version_1_is_told_only_what_it_knows(url: str, engine: PostgresEngine) -> None:
    await a_policy(engine, max_running=1, rate_jobs=1, rate_seconds=60)
    job = await a_processing_job(engine)
    await engine.create([a_new_job()])
    claims = [{"o": 0, "t": TYPE, "g": "", "n": 1, "w": [WORKER], "l": [1_000], "c": 0}]
    document = {"done": {str(job.key): [1, None]}, "claims": claims, "now": engine._store.now_ms()}
    holder = await asyncpg.connect(without_options(url))
    old = await notes(holder, engine, document)
    await holder.execute(f"DELETE FROM {engine._store.url.schema}.finished")
    again = await a_second_life(engine)
    new = await notes(holder, engine, {**document, "done": {str(again): [1, None]}, "v": 2})
    await holder.close()
    assert (old, new) == (["now"], ["room", "due", "now"])


async def a_second_life(engine: PostgresEngine) -> int:
    """A job that runs whatever the rate says."""
    await a_policy(engine)
    [key] = await leased_keys(engine, 1)
    await engine.create([a_new_job()])
    await a_policy(engine, max_running=1, rate_jobs=1, rate_seconds=60)
    return key


async def notes(holder: Any, engine: PostgresEngine, document: dict[str, Any]) -> list[str]:
    """What a step tells beside jobs."""
    sql = engine._store.sql("activate")["step"]
    return [row["type"] for row in await holder.fetch(sql, json.dumps(document)) if row["attempt"] is None]


async def drain(engine: PostgresEngine, jobs: int) -> None:
    """Let so many jobs pass through."""
    await engine.create([a_new_job(limit_key="k") for _ in range(jobs)])
    while leased := (await asked(engine, 1_000)).jobs:
        await engine.settle(completions(leased))


def completions(leased: Sequence[Any]) -> list[Complete]:
    return [Complete(job.key, job.attempt) for job in leased]


async def entries_counted(engine: PostgresEngine, watched: Watched) -> int:
    """How many entries of what runs a claim of ten jobs reads."""
    await engine.create([a_new_job(limit_key="k") for _ in range(10)])
    before = watched.entries["live_busy"]
    assert len(await leased_keys(engine, 10)) == 10
    return watched.entries["live_busy"] - before
