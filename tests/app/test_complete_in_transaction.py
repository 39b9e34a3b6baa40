"""ctx.complete(tx=): a handler's work and the end of its job are one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from everwork import Everwork, JobContext, RetryPolicy, State
from everwork.exceptions import InvalidInput, LeaseLost, WrongState
from tests.app.waiting import finished, run_one, until, working

AT_ONCE = RetryPolicy(max_attempts=3, base=0)


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Everwork]:
    """An application on a file that the user shares."""
    made = Everwork(f"sqlite:///{tmp_path}/shared.db", worker="w1")
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def file(app: Everwork, tmp_path: Path) -> Path:
    """The file, with a table of the user's."""
    assert app is not None
    path = tmp_path / "shared.db"
    with closing(sqlite3.connect(path)) as own, own:
        own.execute("CREATE TABLE paid (id INTEGER)")
    return path


def paid(file: Path) -> int:
    """How often the user's own work was kept."""
    with closing(sqlite3.connect(file)) as own:
        count: int = own.execute("SELECT count(*) FROM paid").fetchone()[0]
        return count


async def kinds(app: Everwork, key: int) -> list[tuple[int, str]]:
    """The history in short."""
    return [(event.attempt, event.kind) for event in await app.history(key)]


async def test_the_work_and_the_completion_are_committed_together(app: Everwork, file: Path) -> None:
    @app.job("pay")
    async def pay(ctx: JobContext) -> None:
        with closing(sqlite3.connect(file)) as own, own:
            own.execute("INSERT INTO paid VALUES (1)")
            await ctx.complete({"receipt": 7}, tx=own)

    job = await run_one(app, "pay")
    assert (job.state, job.result, paid(file)) == (State.COMPLETED, {"receipt": 7}, 1)
    assert await kinds(app, job.key) == [(1, "complete")]


async def test_a_plain_function_completes_in_its_own_thread(app: Everwork, file: Path) -> None:
    @app.job("pay")
    def pay(ctx: JobContext) -> None:
        with closing(sqlite3.connect(file)) as own, own:
            own.execute("INSERT INTO paid VALUES (1)")
            ctx.sync.complete("done", tx=own)

    job = await run_one(app, "pay")
    assert (job.state, job.result, paid(file)) == (State.COMPLETED, "done", 1)


async def test_the_job_is_completed_by_the_commit_and_not_by_the_return(app: Everwork, file: Path) -> None:
    seen: list[State] = []

    @app.job("pay")
    async def pay(ctx: JobContext) -> str:
        with closing(sqlite3.connect(file)) as own, own:
            await ctx.complete("first", tx=own)
        seen.append((await app.get(ctx.key)).state)
        return "second"

    job = await run_one(app, "pay")
    assert (seen, job.result) == ([State.COMPLETED], "first")


async def test_after_a_rollback_the_attempt_fails_as_any_other(app: Everwork, file: Path) -> None:
    @app.job("pay", retry=AT_ONCE)
    async def pay(ctx: JobContext) -> None:
        with closing(sqlite3.connect(file)) as own, own:
            own.execute("INSERT INTO paid VALUES (1)")
            await ctx.complete(ctx.attempt, tx=own)
            if ctx.attempt == 1:
                raise RuntimeError("the card was refused")

    job = await run_one(app, "pay")
    assert (job.state, job.result, paid(file)) == (State.COMPLETED, 2, 1)
    assert await kinds(app, job.key) == [(1, "fail"), (2, "complete")]


async def test_an_error_after_the_commit_does_not_undo_the_completion(app: Everwork, file: Path) -> None:
    @app.job("pay", retry=AT_ONCE)
    async def pay(ctx: JobContext) -> None:
        with closing(sqlite3.connect(file)) as own, own:
            await ctx.complete("done", tx=own)
        raise RuntimeError("too late")

    job = await run_one(app, "pay")
    assert (job.state, job.result) == (State.COMPLETED, "done")
    assert await kinds(app, job.key) == [(1, "complete")]


async def test_a_job_that_was_cancelled_meanwhile_is_not_completed_and_the_work_is_rolled_back(
    app: Everwork, file: Path
) -> None:
    raised: list[Exception] = []

    @app.job("pay")
    def pay(ctx: JobContext) -> None:
        app.sync.cancel(ctx.key, "not needed")
        try:
            with closing(sqlite3.connect(file)) as own, own:
                own.execute("INSERT INTO paid VALUES (1)")
                ctx.sync.complete(tx=own)
        except (WrongState, LeaseLost) as error:
            raised.append(error)
            raise

    async with working(app):
        job = await finished(app, await app.enqueue("pay"))
        await until(lambda: raised)
    assert (job.state, paid(file)) == (State.CANCELLED, 0)
    assert "is cancelled: it cannot be completed" in str(raised[0])


@pytest.mark.parametrize(("tx", "text"), [(5, "sqlite3, aiosqlite"), (None, "sqlite3, aiosqlite")])
async def test_what_is_no_connection_is_refused(app: Everwork, tx: object, text: str) -> None:
    @app.job("pay", retry=None)
    async def pay(ctx: JobContext) -> None:
        with pytest.raises(InvalidInput, match=rf"^tx: must be a {text}"):
            await ctx.complete(tx=tx)

    assert (await run_one(app, "pay")).state is State.COMPLETED


async def test_a_result_that_is_no_json_is_refused(app: Everwork, file: Path) -> None:
    @app.job("pay", retry=None)
    async def pay(ctx: JobContext) -> None:
        with closing(sqlite3.connect(file)) as own, own:
            await ctx.complete(object(), tx=own)

    job = await run_one(app, "pay")
    assert job.state is State.FAILED
    assert "result" in (job.last_error or "")
