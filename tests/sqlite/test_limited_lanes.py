"""What the file says of limited queues and lanes is what is there, whatever shares a transaction."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from everwork.core.leasing import Demand
from everwork.core.outcome import Complete, Failed, Release
from everwork.engines.sqlite.engine import SqliteEngine
from everwork.engines.sqlite.store_url import StoreUrl
from tests.factories import TYPE, WORKER, a_new_job, a_policy, leased_keys
from tests.stores import MINUTE_MS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable
    from pathlib import Path

    from everwork.core.job import LeasedJob
    from tests.stores import VirtualClock

MOST = 2
WRONG = f"""
SELECT n.lane, n.busy, n.open FROM ew_lane n WHERE
  n.busy <> (SELECT count(*) FROM ew_leased l WHERE l.queue = n.queue AND l.lane = n.lane)
  OR (n.open = 0 AND n.busy < {MOST} AND EXISTS (SELECT 1 FROM ew_ready r WHERE r.queue = n.queue AND r.lane = n.lane))
  OR (n.open = 1 AND n.busy >= {MOST})
UNION ALL SELECT type, running, max_running FROM ew_queue q JOIN ew_type t ON t.name = q.type
  WHERE max_running IS NOT NULL AND running <> (SELECT count(*) FROM ew_leased l WHERE l.queue = q.id)
"""
"""Lanes and queues whose counts are wrong, lanes closed in spite of room and work, and lanes open at their limit."""


class Crowd:
    """Does at random what people and workers do."""

    def __init__(self, engine: SqliteEngine, seed: int) -> None:
        self._engine = engine
        self._random = random.Random(seed)
        self._waiting: list[int] = []
        self._held: list[LeasedJob] = []

    async def act(self) -> None:
        """One thing or another."""
        acts: list[Any] = [self._create, self._claim, self._claim, self._settle, self._settle, self._cancel]
        await self._random.choice(acts)()

    async def _create(self) -> None:
        created = await self._engine.create([a_new_job(limit_key=self._random.choice("abc")) for _ in range(3)])
        self._waiting += [one.key for one in created]

    async def _claim(self) -> None:
        self._held += (await self._engine.activate([Demand(TYPE, WORKER, self._random.randint(1, 4))])).jobs

    async def _settle(self) -> None:
        ended, self._held = self._held[:3], self._held[3:]
        kinds: list[Any] = [Complete, Release, lambda key, attempt: Failed(key, attempt, "boom", backoff_ms=0)]
        outcomes = [self._random.choice(kinds)(job.key, job.attempt) for job in ended]
        demands = [Demand(TYPE, WORKER, self._random.randint(1, 3))] if self._random.random() < 0.5 else []
        self._held += (await self._engine.settle(outcomes, demands)).activation.jobs

    async def _cancel(self) -> None:
        chosen = self._random.sample(self._waiting, min(2, len(self._waiting)))
        await self._engine.cancel(chosen)


@pytest.fixture
async def sqlite(file: Path, clock: VirtualClock) -> AsyncIterator[SqliteEngine]:
    """An engine whose calls share a transaction when they are made together."""
    engine = SqliteEngine(StoreUrl(str(file)), clock, own_loop=True)
    await engine.open()
    yield engine
    await engine.close()


async def test_a_lane_that_is_freed_and_then_gets_work_in_one_transaction_is_open(sqlite: SqliteEngine) -> None:
    await a_policy(sqlite, max_running_per_key=1)
    demand = Demand(TYPE, WORKER, 5)
    await sqlite.create([a_new_job(limit_key="a")])
    [job] = (await sqlite.activate([demand])).jobs
    done = [Complete(job.key, job.attempt)]
    _, [created] = await asyncio.gather(sqlite.settle(done, [demand]), sqlite.create([a_new_job(limit_key="a")]))
    assert [job.key for job in (await sqlite.activate([demand])).jobs] == [created.key]


async def test_a_lane_that_becomes_full_in_the_transaction_of_a_claim_is_not_served(sqlite: SqliteEngine) -> None:
    await a_policy(sqlite, max_running_per_key=1)
    await sqlite.create([a_new_job(limit_key="b")])
    await leased_keys(sqlite)
    [running] = await sqlite.dump(0, 10)
    await sqlite.create([a_new_job(limit_key="a")])
    job = replace(running.job, key=running.job.key + 1_000, limit_key="a")
    _, answer = await asyncio.gather(
        sqlite.load([running._replace(job=job)]), sqlite.activate([Demand(TYPE, WORKER, 1)])
    )
    assert answer.jobs == []
    assert await leased_keys(sqlite) == []


async def test_a_lane_that_a_claim_empties_is_opened_again_by_a_create_in_the_same_transaction(
    sqlite: SqliteEngine,
) -> None:
    await sqlite.create([a_new_job(tenant="a"), a_new_job(tenant="b")])
    await leased_keys(sqlite)
    await sqlite.create([a_new_job(tenant="b")])
    first, answer, [second] = await asyncio.gather(
        sqlite.create([a_new_job(tenant="a")]),
        sqlite.activate([Demand(TYPE, WORKER, 2)]),
        sqlite.create([a_new_job(tenant="a")]),
    )
    assert first[0].key in [job.key for job in answer.jobs]
    assert await leased_keys(sqlite) == [second.key]


@pytest.mark.parametrize("seed", range(3))
async def test_counts_and_open_lanes_are_right_after_every_commit(
    sqlite: SqliteEngine, file: Path, clock: VirtualClock, seed: int
) -> None:
    crowd = Crowd(sqlite, seed)
    with closing(sqlite3.connect(file)) as reader:
        for step in range(150):
            if step % 50 == 0:  # With a limit per key, with both, and again with one.
                await a_policy(sqlite, max_running_per_key=MOST, max_running=4 if step == 50 else None)
            acts: list[Awaitable[None]] = [crowd.act() for _ in range(5)]
            await asyncio.gather(*acts)
            clock.advance(ms=1)
            assert reader.execute(WRONG).fetchall() == [], step


DRIFTS: dict[str, str] = {
    "too many run": "UPDATE ew_queue SET running = 4",
    "too few run": "UPDATE ew_queue SET running = -10",
    "a lane is full": "UPDATE ew_lane SET busy = 2, open = 0 WHERE lane LIKE '%b'",
    "a lane has room": "UPDATE ew_lane SET busy = 0, open = 1 WHERE lane LIKE '%a'",
    "a lane that is open has fewer than none": "UPDATE ew_lane SET busy = -5 WHERE lane LIKE '%b'",
    "a lane is closed": "UPDATE ew_lane SET open = 0",
    "a lane with work is gone": "DELETE FROM ew_lane WHERE lane LIKE '%b'",
    "a lane with leases is gone": "DELETE FROM ew_lane WHERE lane LIKE '%a'",
    "there are no turns": "UPDATE ew_queue SET fair = 0",
}
"""What somebody writes who does not keep the counts."""


async def two_run_and_two_may(engine: SqliteEngine) -> list[int]:
    """Lane a is full, lane b has room for two, whose keys are told; more wait in both."""
    await a_policy(engine, max_running=4, max_running_per_key=MOST)
    await engine.create([a_new_job(limit_key="a") for _ in range(4)])
    assert len(await leased_keys(engine, lease_ms=60 * MINUTE_MS)) == MOST
    created = await engine.create([a_new_job(limit_key="b") for _ in range(4)])
    return [one.key for one in created[:2]]


def write(file: Path, sql: str) -> None:
    """Write past the engine."""
    with closing(sqlite3.connect(file)) as other, other:
        assert other.execute(sql).rowcount


@pytest.mark.parametrize("drift", DRIFTS)
async def test_who_takes_the_sweep_over_mends_wrong_counts(
    sqlite: SqliteEngine, file: Path, clock: VirtualClock, drift: str
) -> None:
    may_start = await two_run_and_two_may(sqlite)
    await sqlite.sweep("first")
    write(file, DRIFTS[drift])
    clock.advance(seconds=6)
    await sqlite.sweep("second")
    with closing(sqlite3.connect(file)) as reader:
        assert reader.execute(WRONG).fetchall() == []
    await sqlite.create([a_new_job(limit_key="a")])  # Opens its lane, if that seems to have room.
    assert await leased_keys(sqlite) == may_start
    assert await leased_keys(sqlite) == []


async def test_who_keeps_the_sweep_mends_wrong_counts_within_a_minute(
    sqlite: SqliteEngine, file: Path, clock: VirtualClock
) -> None:
    await two_run_and_two_may(sqlite)
    await sqlite.sweep("first")
    write(file, "UPDATE ew_queue SET running = 4")
    for _ in range(15):
        assert await leased_keys(sqlite) == []
        clock.advance(seconds=4)
        await sqlite.sweep("first")
    assert len(await leased_keys(sqlite)) == 2


async def test_a_sweep_writes_nothing_when_all_counts_are_right(
    sqlite: SqliteEngine, file: Path, clock: VirtualClock
) -> None:
    await two_run_and_two_may(sqlite)
    await sqlite.sweep("first")
    assert await sqlite.take_turn("sweep", "first", 60 * MINUTE_MS)
    with closing(sqlite3.connect(file)) as reader:
        [before] = reader.execute("PRAGMA data_version").fetchall()
        clock.advance(ms=2 * MINUTE_MS)
        await sqlite.sweep("first")
        assert reader.execute("PRAGMA data_version").fetchall() == [before]
