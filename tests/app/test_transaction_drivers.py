"""tx=: the user's own transaction, with every driver that an engine lets join."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import psycopg
import pytest

from everwork import Everwork, JobContext, RetryPolicy, State
from everwork.exceptions import InvalidInput
from tests.app.waiting import DEADLINE_S, run_one, working
from tests.conformance.own_transactions import DRIVERS, OPENINGS, SYNCHRONOUS
from tests.stores import ENGINES

if TYPE_CHECKING:
    from tests.conformance.own_transactions import Own

ONCE = [pair for pair in DRIVERS if pair[0] in ENGINES]
with_every_driver = pytest.mark.parametrize(("engine_name", "driver"), ONCE)


@with_every_driver
async def test_the_commit_completes_the_job_and_creates_the_next(app: Everwork, url: str, driver: str) -> None:
    seen: list[State] = []

    @app.job("pay")
    async def pay(ctx: JobContext) -> None:
        async with OPENINGS[driver](url, True) as own:
            await app.using(tx=own.tx).enqueue("receipt")
            await ctx.complete({"paid": True}, tx=own.tx)
            seen.append((await app.get(ctx.key)).state)
            await own.commit()
        seen.append((await app.get(ctx.key)).state)

    job = await run_one(app, "pay")
    assert (seen, job.result) == ([State.PROCESSING, State.COMPLETED], {"paid": True})
    assert [event.kind for event in await app.history(job.key)] == ["complete"]
    assert (await app.get(job.key + 1)).type == "receipt"


@with_every_driver
async def test_after_a_rollback_the_next_attempt_completes_it(app: Everwork, url: str, driver: str) -> None:
    @app.job("pay", retry=RetryPolicy(base=0))
    async def pay(ctx: JobContext) -> None:
        async with OPENINGS[driver](url, True) as own:
            await ctx.complete(ctx.attempt, tx=own.tx)
            await _end(own, ctx.attempt)

    job = await run_one(app, "pay")
    assert (job.state, job.result) == (State.COMPLETED, 2)
    assert [(event.attempt, event.kind) for event in await app.history(job.key)] == [(1, "fail"), (2, "complete")]


async def _end(own: Own, attempt: int) -> None:
    if attempt == 1:
        await own.rollback()
        raise RuntimeError("the card was refused")
    await own.commit()


@with_every_driver
async def test_a_waiting_worker_finds_the_job_after_the_commit(app: Everwork, url: str, driver: str) -> None:
    @app.job("work")
    async def work() -> str:
        return "done"

    async with working(app):
        async with OPENINGS[driver](url, True) as own:
            key = await app.using(tx=own.tx).enqueue("work")
            await own.commit()
        assert await asyncio.wait_for(app.result(key), DEADLINE_S) == "done"


@pytest.mark.parametrize(("engine_name", "driver"), [pair for pair in ONCE if pair[1] in SYNCHRONOUS])
async def test_the_sync_twin_takes_the_transaction_of_a_synchronous_driver(
    app: Everwork, url: str, driver: str
) -> None:
    await app.open()
    async with OPENINGS[driver](url, True) as own:
        key = app.sync.using(tx=own.tx).enqueue("work")
        await own.commit()
    assert (await app.get(key)).state is State.PENDING


@pytest.mark.parametrize(("engine_name", "driver"), [pair for pair in ONCE if pair[1] not in SYNCHRONOUS])
async def test_the_sync_twin_refuses_the_transaction_of_an_asynchronous_driver(
    app: Everwork, url: str, driver: str
) -> None:
    await app.open()
    async with OPENINGS[driver](url, True) as own:
        with pytest.raises(InvalidInput, match=r"^tx: must belong to a synchronous driver here; use await app\.within"):
            app.sync.using(tx=own.tx).enqueue("work")


@pytest.mark.parametrize("engine_name", ["postgres"])
async def test_a_connection_may_be_set_to_another_kind_of_cursor(app: Everwork, url: str) -> None:
    await app.open()
    place = url.partition("?")[0]
    for kind in (psycopg.RawCursor, psycopg.ClientCursor):
        with psycopg.connect(place, cursor_factory=kind) as own:
            await app.within(own).enqueue("work")
    async with await psycopg.AsyncConnection.connect(place, cursor_factory=psycopg.AsyncRawCursor) as awaited:
        await app.within(awaited).enqueue("work")
    assert len([job async for job in app.list()]) == 3


@pytest.mark.parametrize("engine_name", ["postgres"])
async def test_a_database_without_tables_for_jobs_is_refused_with_the_call_that_creates_them(url: str) -> None:
    place = url.partition("?")[0]
    with psycopg.connect(place) as own:
        problem = (
            r"^tx: its database has no tables for jobs in schema 'never_opened': .*; call `await app\.open\(\)` or "
        )
        with pytest.raises(InvalidInput, match=problem):
            await Everwork(f"{place}?schema=never_opened").within(own).enqueue("work")
