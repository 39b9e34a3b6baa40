"""Measures of attempts: in whose transactions they count, how they are folded, and what version 2 makes of them."""

from __future__ import annotations

import json

import asyncpg
import psycopg
import pytest

from everwork.core import measures
from everwork.core.leasing import Lease
from everwork.core.limits import STATISTICS_KEEP_HOURS
from everwork.core.outcome import Complete, Failed
from everwork.core.queries import Measure, Oldest
from everwork.engines.postgres import read, sweep
from everwork.engines.postgres.engine import PostgresEngine
from tests.factories import LEASE_MS, TYPE, a_new_job, a_processing_job, asked, settled
from tests.postgres.conftest import opened, pretend_old, schema_of, without_options
from tests.stores import HOUR_MS, START_MS, VirtualClock

COMPLETED = {measures.execution(0): 1, measures.wait(0): 1}


async def counted_as(engine: PostgresEngine) -> dict[str, int]:
    return {measure.name: measure.jobs for measure in await engine.measures(1)}


async def rows_of(engine: PostgresEngine, table: str) -> int:
    [[rows]] = await engine._store.connections.read(f"SELECT count(*) FROM {engine._url.schema}.{table}")
    return int(rows)


async def test_a_completion_in_the_users_transaction_is_measured_when_it_commits(
    url: str, engine: PostgresEngine
) -> None:
    job = await a_processing_job(engine)
    own = await asyncpg.connect(without_options(url))
    for ends in (asyncpg.transaction.Transaction.rollback, asyncpg.transaction.Transaction.commit):
        assert await counted_as(engine) == {}
        await (transaction := own.transaction()).start()
        await engine.complete_in(own, [Complete(job.key, 1)])
        await ends(transaction)
    await own.close()
    assert await counted_as(engine) == COMPLETED


async def test_what_is_folded_is_added_to_what_was_folded_before_and_kept_for_so_long(
    engine: PostgresEngine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "FOLD_FROM", 1)
    for _ in range(2):
        for outcome in (Complete(0, 1), Failed(0, 1, "boom", final=True)):
            await settled(engine, outcome._replace(key=(await a_processing_job(engine)).key))
        await engine.sweep("s")
        assert await rows_of(engine, "measure_delta") == 0
    names = (measures.execution(0), measures.wait(0), measures.failure(measures.UNCLASSIFIED))
    assert await counted_as(engine) == dict(zip(names, (4, 4, 2), strict=True))
    clock.advance(ms=(STATISTICS_KEEP_HOURS + 1) * HOUR_MS)
    await engine.sweep("s")
    assert await rows_of(engine, "measure_hour") == 0


async def test_what_a_lapse_has_counted_is_undone_after_it_was_folded_and_leaves_no_zeros(
    engine: PostgresEngine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "FOLD_FROM", 1)
    job = await a_processing_job(engine)
    clock.advance(ms=LEASE_MS)
    await engine.sweep("s")
    assert await rows_of(engine, "measure_delta") == await rows_of(engine, "work_delta") == 0
    await engine.reclaim([Lease(job.key, 1)], LEASE_MS)
    for _ in range(2):
        assert (await counted_as(engine), (await engine.stats(1)).hours) == ({}, [])
        await engine.sweep("s")
    clock.advance(ms=HOUR_MS)
    await engine.extend([Lease(job.key, 1)], LEASE_MS)
    await engine.sweep("s")
    assert await rows_of(engine, "measure_hour") == await rows_of(engine, "work_hour") == 0


async def test_many_rows_of_few_batches_are_folded_by_their_own_number_and_so_many_at_a_time(
    engine: PostgresEngine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs of one batch that have waited for unlike times are one row of the counts, but several of the measures."""
    waits_ms = (0, 40_000, 200_000, 1_000_000, 4_000_000)
    await engine.create([a_new_job(delay_ms=max(waits_ms) - wait_ms) for wait_ms in waits_ms])
    clock.advance(ms=max(waits_ms))
    jobs = (await asked(engine)).jobs
    await engine.settle([Complete(job.key, job.attempt) for job in jobs])
    assert await rows_of(engine, "measure_delta") == len(waits_ms) > (counts := await rows_of(engine, "count_delta"))
    before = await counted_as(engine)
    for name, number in (("FOLD_FROM", len(waits_ms)), ("FOLD_MAX", 2), ("FOLDS_MAX", 2)):
        monkeypatch.setattr(sweep, name, number)
    await engine.sweep("s")
    assert await rows_of(engine, "measure_delta") == 1
    assert await rows_of(engine, "count_delta") == counts
    assert await counted_as(engine) == before


async def test_of_many_priorities_only_so_many_are_looked_at(
    engine: PostgresEngine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for priority in (-1, 0, 1):
        await engine.create([a_new_job(priority=priority), a_new_job(type="other", priority=priority)])
        clock.advance(ms=1)
    monkeypatch.setattr(read, "OLDEST_SCAN_MAX", 2)
    assert await engine.oldest() == [Oldest(type, "", START_MS + 1) for type in (TYPE, "other")]


# Versions -------------------------------------------------------------------------------------------------


async def test_a_failure_that_a_client_of_version_2_reports_has_no_sort(engine: PostgresEngine) -> None:
    job = await a_processing_job(engine)
    ended = {"a": 1, "n": 1, "m": job.max_attempts, "s": 4, "b": 0, "x": 5, "i": "reject", "e": "boom", "c": None}
    document = json.dumps({"v": 2, "now": START_MS, "ended": {str(job.key): ended}}).encode()
    await engine._store.connections.fetch(engine._store.sql("activate")["step"], document)
    assert await counted_as(engine) == {**COMPLETED, measures.failure(measures.UNCLASSIFIED): 1}


async def test_a_store_of_version_2_measures_what_ends_after_it_is_brought_up_to_date_also_for_who_had_it_open(
    url: str, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked = "INSERT INTO {}.work_delta SELECT {}, id, 7, 0, 0, 70, 0, 'w' FROM {}.queue"
    with monkeypatch.context() as patched:
        pretend_old(patched, 2)
        async with opened(url, clock) as old:
            job = await a_processing_job(old)
            with psycopg.connect(without_options(url)) as own:
                own.execute(worked.format(schema_of(url), START_MS // HOUR_MS, schema_of(url)).encode())
            patched.undo()
            async with opened(url, clock) as engine:
                assert await engine.measures(1) == []
                await settled(old, Complete(job.key, 1))
                stats, measured = await engine.stats(1), await engine.measures(1)
    assert sum(hour.completed for hour in stats.hours) == 8
    assert measured == [Measure(START_MS // HOUR_MS, TYPE, what, 1) for what in COMPLETED]
