"""Where claims begin: from the front, or behind a mark while dead entries stand at the front."""

from __future__ import annotations

import asyncpg
import pytest

from everwork.core.leasing import Demand
from everwork.core.outcome import Complete
from everwork.engines.postgres.claims import DEAD_MAX, FRONT_WAIT_MS_MAX, Mark
from everwork.engines.postgres.engine import PostgresEngine
from tests.factories import TYPE, WORKER, a_new_job, a_pending_job, asked, leased_keys
from tests.postgres.big_store import Watched, watch
from tests.postgres.conftest import opened, without_options
from tests.stores import VirtualClock

END = (0, 1_000, 7)
NEVER = 1e15

# What a claimer remembers ------------------------------------------------------------------------------


def test_at_first_a_claim_begins_at_the_front() -> None:
    assert Mark().begin(0.0) is None
    assert Mark().front_in_ms(0.0) is None


def test_after_few_dead_entries_the_front_it_is_again() -> None:
    mark = Mark()
    mark.claimed(None, END, DEAD_MAX, 0.0)
    assert mark.begin(0.0) is None


def test_after_many_dead_entries_claims_begin_behind_the_last_one_for_a_while() -> None:
    mark = Mark()
    mark.claimed(None, END, 40_000, 500.0)
    assert mark.begin(599.0) == END
    assert mark.front_in_ms(520.0) == 81
    assert mark.begin(600.0) is None


def test_the_front_is_looked_at_once_a_second_at_least() -> None:
    mark = Mark()
    mark.claimed(None, END, 10**9, 0.0)
    assert mark.begin(FRONT_WAIT_MS_MAX) is None
    assert mark.begin(FRONT_WAIT_MS_MAX - 1) == END


def test_a_claim_behind_the_mark_moves_it_on_but_does_not_put_the_front_off() -> None:
    mark = Mark()
    mark.claimed(None, END, 40_000, 0.0)
    mark.claimed(END, (0, 2_000, 9), 40_000, 90.0)
    assert mark.begin(99.0) == (0, 2_000, 9)
    assert mark.begin(100.0) is None


def test_a_claim_that_found_nothing_leaves_the_mark_where_it_was() -> None:
    mark = Mark()
    mark.claimed(None, END, 40_000, 0.0)
    mark.claimed(END, None, 0, 1.0)
    assert mark.begin(2.0) == END


def test_dead_entries_before_anything_was_ever_claimed_give_no_mark() -> None:
    mark = Mark()
    mark.claimed(None, None, 40_000, 0.0)
    assert mark.begin(0.0) is None


# Under a snapshot that somebody holds -----------------------------------------------------------------


async def test_under_a_held_snapshot_claims_skip_the_dead_and_afterwards_begin_at_the_front(
    url: str, clock: VirtualClock
) -> None:
    async with opened(f"{url}&pool=1", clock) as engine:
        watched, mark = watch(engine), engine._store.marks.of(Demand(TYPE, WORKER, 1))
        watched.keeps = True
        holder = await asyncpg.connect(without_options(url))
        async with holder.transaction(isolation="repeatable_read"):
            await holder.fetchval("SELECT 1")
            await drain(engine, DEAD_MAX + 1_000)
            await vacuum(engine)
            await engine.create([a_new_job() for _ in range(100)])
            mark.front_from = 0.0
            assert await entries_read(engine, watched) > DEAD_MAX
            assert mark.front_from > 0.0
            mark.front_from = NEVER
            assert await entries_read(engine, watched) < 100
        await holder.close()
        await vacuum(engine)
        mark.front_from = 0.0
        assert await entries_read(engine, watched) < 100
        assert mark.front_from == 0.0


async def test_a_job_before_the_mark_is_found_when_the_front_is_looked_at_and_the_caller_is_told_when(
    engine: PostgresEngine, clock: VirtualClock
) -> None:
    [first, second] = await engine.create([a_new_job(), a_new_job()])
    assert await leased_keys(engine) == [first.key, second.key]
    mark = engine._store.marks.of(Demand(TYPE, WORKER, 1))
    mark.front_from = NEVER
    urgent = await a_pending_job(engine, priority=9)
    behind = await a_pending_job(engine)
    answer = await asked(engine)
    assert [job.key for job in answer.jobs] == [behind.key]
    assert answer.next_due_ms is not None
    assert answer.next_due_ms > clock.now_ms
    mark.front_from = 0.0
    assert await leased_keys(engine) == [urgent.key]


@pytest.mark.parametrize("other", [{"tenants": ("<default>",)}, {"group": "audit"}, {"type": "other"}])
async def test_each_demand_has_a_mark_of_its_own(engine: PostgresEngine, other: dict[str, str]) -> None:
    here = engine._store.marks.of(Demand(TYPE, WORKER, 1))
    there = engine._store.marks.of(Demand(TYPE, WORKER, 1)._replace(**other))  # type: ignore[arg-type]
    assert here is not there


async def drain(engine: PostgresEngine, jobs: int) -> None:
    """Let so many jobs pass through."""
    await engine.create([a_new_job() for _ in range(jobs)])
    while leased := (await asked(engine, 1_000)).jobs:
        await engine.settle([Complete(job.key, job.attempt) for job in leased])


async def entries_read(engine: PostgresEngine, watched: Watched) -> int:
    """How many entries of the ready index a claim of ten jobs reads."""
    before = watched.entries["live_ready"]
    assert len(await leased_keys(engine, 10)) == 10
    return watched.entries["live_ready"] - before


async def vacuum(engine: PostgresEngine) -> None:
    await engine._store.connections.vacuum(engine._store.sql("sweep")["vacuum"])
