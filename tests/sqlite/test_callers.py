"""A caller that comes alone commits in its own event loop: never for long, never past others, and across forks."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from everwork import Everwork
from everwork.engines.sqlite.engine import SqliteEngine
from everwork.engines.sqlite.store import loop_writer
from everwork.engines.sqlite.store.connections import Pause
from everwork.engines.sqlite.store.loop_writer import IN_A_ROW_MAX, SLOW_SECONDS, CallerWriter, LoopWriter
from everwork.engines.sqlite.store.thread_writer import ThreadWriter
from everwork.engines.sqlite.store_url import StoreUrl
from everwork.exceptions import EngineUnavailable
from tests.app.forks import in_child
from tests.app.waiting import DEADLINE_S
from tests.conformance.observe import assert_counts_add_up, every_job
from tests.conformance.test_hand_over import parked
from tests.factories import a_new_job, asked
from tests.sqlite.test_lock import a_stranger
from tests.sqlite.test_wake import go, start, told  # noqa: F401 - a fixture
from tests.sqlite.test_writing import foreign_transaction, set_page_limit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from everwork.engines.sqlite.transaction import Transaction
    from tests.sqlite.test_wake import Start


@pytest.fixture(autouse=True)
def on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No commit counts as slow because other tests are running."""
    monkeypatch.setattr(loop_writer, "SLOW_SECONDS", DEADLINE_S)


@pytest.fixture
async def engine(file: Path) -> AsyncIterator[SqliteEngine]:
    """An open engine for callers."""
    opened = SqliteEngine(StoreUrl(str(file)), for_callers=True)
    await opened.open()
    await opened.create([a_new_job()])
    yield opened
    await opened.close()


def writer_of(engine: SqliteEngine) -> CallerWriter:
    """The engine's writer."""
    writer = engine._store.writer
    assert isinstance(writer, CallerWriter)
    return writer


def keys_in(file: Path) -> list[int]:
    """The keys of all jobs, as another connection sees them."""
    with closing(sqlite3.connect(file)) as connection:
        return [key for (key,) in connection.execute("SELECT key FROM ew_job ORDER BY key")]


async def test_a_caller_that_comes_alone_commits_before_the_loop_goes_on(engine: SqliteEngine, file: Path) -> None:
    threads: list[int] = []
    assert writer_of(engine).do_now(lambda _: threads.append(threading.get_ident())) == [None]
    creating = engine.create_alone([a_new_job()])
    with pytest.raises(StopIteration) as ended:
        creating.send(None)
    assert ended.value.value[0].key == 2
    assert threads == [threading.get_ident()]
    assert keys_in(file) == [1, 2]
    await assert_counts_add_up(engine)


async def test_a_caller_wakes_workers_and_hands_jobs_over(engine: SqliteEngine, file: Path) -> None:
    worker = SqliteEngine(StoreUrl(str(file)), own_loop=True)
    await worker.open()
    assert len((await asked(worker)).jobs) == 1
    mark, waiting = worker.mark(), asyncio.ensure_future(worker.wait(["email-send"], 60_000))
    await asyncio.sleep(0)
    assert await engine.create_alone([a_new_job()])
    assert await asyncio.wait_for(waiting, DEADLINE_S)
    assert worker.mark() > mark
    await asked(worker)
    taker = await parked(worker)
    await asyncio.sleep(0)
    [created] = await engine.create_alone([a_new_job()]) or await engine.create([a_new_job()])
    assert [job.key for job in await taker.came()] == [created.key]
    await worker.close()


async def test_two_tasks_in_one_iteration_of_the_loop_are_a_crowd(engine: SqliteEngine) -> None:
    answers = await asyncio.gather(*(engine.create_alone([a_new_job()]) for _ in range(3)))
    assert [answer is None for answer in answers] == [False, True, True]
    assert await engine.create_alone([a_new_job()]) is None
    assert len(await every_job(engine)) == 2


async def test_many_creates_in_a_row_let_the_loop_go_on(engine: SqliteEngine) -> None:
    passes = 0

    def count() -> None:
        nonlocal passes
        passes += 1
        asyncio.get_running_loop().call_soon(count)

    count()
    created = [await engine.create_alone([a_new_job()]) for _ in range(3 * IN_A_ROW_MAX)]
    assert None not in created
    assert passes >= 2


async def test_after_a_slow_transaction_the_loop_does_not_write_for_a_while(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_writer, "SLOW_SECONDS", SLOW_SECONDS)

    def be_slow(_: Transaction) -> None:
        until = time.monotonic() + 2 * SLOW_SECONDS
        while time.monotonic() < until:
            pass

    assert writer_of(engine).do_now(be_slow) == [None]
    assert await engine.create_alone([a_new_job()]) is None
    while await engine.create_alone([a_new_job()]) is None:
        await engine.create([a_new_job()])


async def test_a_caller_never_waits_for_another_process(engine: SqliteEngine, file: Path) -> None:
    async with a_stranger(file):
        assert await engine.create_alone([a_new_job()]) is None
    assert await engine.create_alone([a_new_job()])


async def test_a_caller_never_waits_for_another_programs_transaction(engine: SqliteEngine, file: Path) -> None:
    with foreign_transaction(file) as foreign:
        ending = threading.Timer(0.3, lambda: foreign.execute("COMMIT"))
        ending.start()  # A caller that waits for it creates its job.
        assert await engine.create_alone([a_new_job()]) is None
        ending.join()
    assert keys_in(file) == [1]
    assert await engine.create_alone([a_new_job()])


async def test_a_caller_does_not_overtake_those_that_wait_in_the_thread(engine: SqliteEngine) -> None:
    entered, may_end = threading.Event(), threading.Event()

    def hold(_: Transaction) -> None:
        entered.set()
        may_end.wait(DEADLINE_S)

    holding = writer_of(engine).submit(hold)
    assert entered.wait(DEADLINE_S)
    assert await engine.create_alone([a_new_job()]) is None
    may_end.set()
    await holding


async def test_a_failed_create_leaves_nothing_behind(engine: SqliteEngine, file: Path) -> None:
    await set_page_limit(engine, 0)
    with pytest.raises(EngineUnavailable, match="the disk is full"):
        await engine.create_alone([a_new_job(variables=f'{{"x":"{"y" * 1_000_000}"}}')])
    await set_page_limit(engine, 1_000)
    assert keys_in(file) == [1]
    other = SqliteEngine(StoreUrl(str(file)))
    await other.open()
    assert len(await asyncio.wait_for(other.create([a_new_job()]), DEADLINE_S)) == 1
    await other.close()


class TimeLimit(Exception):
    """What a signal handler raises to end a call."""


STEPS = ["acquire_now", "_refuse_another_file", "_wait_up_to", "_begin_now", "_transact"]


@contextmanager
def interrupted(writer: ThreadWriter, step: str, error: type[BaseException], *, is_done: bool) -> Iterator[None]:
    """Meanwhile, a step of each transaction is interrupted, before or after it has done its work."""
    owner: Any = writer._lock if step == "acquire_now" else writer
    run = getattr(owner, step)

    def interrupt(*values: Any, **options: Any) -> None:
        if is_done:
            run(*values, **options)
        raise error

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, step, interrupt)
        yield


async def create_elsewhere(file: Path) -> None:
    """Create a job with another engine, which must get the lock."""
    async with asyncio.timeout(DEADLINE_S):
        other = SqliteEngine(StoreUrl(str(file)))
        await other.open()
        await other.create([a_new_job()])
        await other.close()


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeLimit])
@pytest.mark.parametrize("step", STEPS)
async def test_an_interrupt_in_the_middle_leaves_no_lock_behind(
    step: str, error: type[BaseException], is_done: bool, engine: SqliteEngine, file: Path
) -> None:
    """A program's own event loop, as in a notebook, may be interrupted anywhere, and go on: Ctrl-C, or a time limit."""
    writer = writer_of(engine)
    with interrupted(writer, step, error, is_done=is_done), pytest.raises(error):
        writer.do_now(lambda _: None)
    await create_elsewhere(file)
    assert await engine.create_alone([a_new_job()]) is not None
    assert keys_in(file) == [1, 2, 3]


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", [*STEPS, "_peek_first"])
async def test_an_interrupt_in_the_engine_s_own_loop_reaches_the_caller(step: str, is_done: bool, file: Path) -> None:
    engine = SqliteEngine(StoreUrl(str(file)), own_loop=True)
    await engine.open()
    await engine.create([a_new_job()])
    logged: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    writer = engine._store.writer
    assert isinstance(writer, LoopWriter)
    with interrupted(writer, step, TimeLimit, is_done=is_done), pytest.raises(TimeLimit):
        await asyncio.wait_for(writer.submit(lambda _: None), DEADLINE_S)
    await create_elsewhere(file)
    await asyncio.wait_for(engine.create([a_new_job()]), DEADLINE_S)
    await engine.close()
    assert keys_in(file) == [1, 2, 3]
    assert len(logged) == (step != "_transact")


async def test_a_closed_engine_says_so(engine: SqliteEngine) -> None:
    await engine.close()
    with pytest.raises(EngineUnavailable, match="is closed"):
        await engine.create_alone([a_new_job()])


async def test_only_an_engine_for_callers_commits_in_their_loop(sqlite: SqliteEngine) -> None:
    assert await sqlite.create_alone([a_new_job()]) is None
    assert SqliteEngine.from_url("sqlite:///:memory:").for_callers() is None


async def test_an_accepted_job_survives_a_kill(file: Path, start: Start) -> None:  # noqa: F811
    caller = await start("alone", file)
    go(caller)
    keys = [await told(caller) for _ in range(10)]
    assert await caller.wait() == -signal.SIGKILL
    assert keys_in(file) == [int(key) for key in keys]


# Forks ---------------------------------------------------------------------------------------------------


def use_in_child(file: Path) -> None:
    """Create a job with an engine of the child's own."""

    async def use() -> None:
        engine = SqliteEngine(StoreUrl(str(file)))
        await engine.open()
        await engine.create([a_new_job()])
        await engine.close()

    child = threading.Thread(target=asyncio.run, args=(use(),))  # The test's own loop runs in this thread.
    child.start()
    child.join()


async def test_a_fork_in_the_loop(engine: SqliteEngine, file: Path) -> None:
    assert in_child(lambda: use_in_child(file)) == 0
    assert await engine.create_alone([a_new_job()])
    assert keys_in(file) == [1, 2, 3]


async def test_the_thread_leaves_the_connection_to_the_loop_during_its_commit(engine: SqliteEngine) -> None:
    writer, has_run, seen = writer_of(engine), threading.Event(), list[bool]()
    calls: list[asyncio.Future[None]] = []
    pauses: list[Pause] = []

    def hold(_: Transaction) -> None:
        calls.append(writer.submit(lambda _: has_run.set()))
        pauses.append(writer.pause())
        seen.append(has_run.wait(0.2) or pauses[0].is_closed.wait(0.2))

    assert writer.do_now(hold) == [None]
    assert seen == [False]
    await asyncio.wait_for(calls[0], DEADLINE_S)
    assert pauses[0].is_closed.wait(DEADLINE_S)
    assert await engine.create_alone([a_new_job()]) is None
    pauses[0].is_over.set()


async def test_a_fork_in_a_thread_waits_for_the_commit_of_the_loop(engine: SqliteEngine, file: Path) -> None:
    in_commit, codes = threading.Event(), list[int]()

    def fork_in_thread() -> None:
        assert in_commit.wait(DEADLINE_S)
        codes.append(in_child(lambda: use_in_child(file)))

    forking = threading.Thread(target=fork_in_thread)
    forking.start()

    def hold(tx: Transaction) -> None:
        in_commit.set()
        until = time.monotonic() + DEADLINE_S
        while not engine._store._probing.locked() and time.monotonic() < until:  # The fork takes it first.
            pass
        tx.cursor.execute("UPDATE ew_seq SET last = last + 100")

    assert writer_of(engine).do_now(hold) == [None]
    await asyncio.to_thread(forking.join)
    assert codes == [0]
    assert keys_in(file) == [1, 102]


def test_a_fork_beside_a_loop_that_no_longer_runs(file: Path) -> None:
    app, loop = Everwork(f"sqlite:///{file}"), asyncio.new_event_loop()
    loop.run_until_complete(app.__aenter__())
    loop.run_until_complete(app.enqueue("email-send"))
    codes: list[int] = []
    forking = threading.Thread(target=lambda: codes.append(in_child(lambda: use_in_child(file))))
    forking.start()
    forking.join(DEADLINE_S)
    assert codes == [0]
    loop.run_until_complete(app.enqueue("email-send"))
    loop.run_until_complete(app.__aexit__(None, None, None))
    loop.close()
    assert keys_in(file) == [1, 2, 3]


# Applications ----------------------------------------------------------------------------------------------


async def has_own_engine(app: Everwork) -> bool:
    """Whether the running loop has an engine of its own."""
    engines = app._host._loop_engines
    return engines is not None and await engines.service() is not None


async def test_the_loop_of_an_application_has_an_engine_of_its_own(file: Path) -> None:
    async with Everwork(f"sqlite:///{file}") as app:
        keys = [await app.enqueue("email-send") for _ in range(3)]
        assert await has_own_engine(app)
        keys += await asyncio.gather(*(app.enqueue("email-send") for _ in range(64)))
        assert await asyncio.to_thread(asyncio.run, other_loop(app)) == 68
    assert sorted(keys) == list(range(1, 68))


async def other_loop(app: Everwork) -> int:
    """Create a job from a loop in which the application was not opened."""
    assert not await has_own_engine(app)
    return await app.enqueue("email-send")


@pytest.mark.parametrize("options", [{"url": "sqlite:///:memory:"}, {"offline": "spool"}], ids=["memory", "offline"])
async def test_other_applications_have_one_engine(options: dict[str, str], file: Path) -> None:
    offline = str(file.parent / "spool.db") if "offline" in options else None
    async with Everwork(options.get("url", f"sqlite:///{file}"), offline=offline) as app:
        assert await app.enqueue("email-send") == 1
        assert not await has_own_engine(app)


def open_files(file: Path) -> list[str]:
    """The files of a store that this process has open."""
    descriptors = list(Path("/proc/self/fd").iterdir())
    targets = [str(one.readlink()) for one in descriptors if one.is_symlink()]
    return [target for target in targets if target.startswith(str(file))]


def test_an_application_whose_loop_has_ended_is_closed_completely(file: Path) -> None:
    app, loop = Everwork(f"sqlite:///{file}"), asyncio.new_event_loop()
    loop.run_until_complete(app.__aenter__())
    loop.run_until_complete(app.enqueue("email-send"))
    assert loop.run_until_complete(has_own_engine(app))
    loop.close()
    assert app.sync.enqueue("email-send") == 2
    assert open_files(file)
    app.sync.close()
    assert open_files(file) == []
    assert keys_in(file) == [1, 2]


async def test_an_application_is_closed_from_another_thread(file: Path) -> None:
    app = Everwork(f"sqlite:///{file}")
    async with app:
        assert await app.enqueue("email-send") == 1
        assert await has_own_engine(app)
        await asyncio.to_thread(app.sync.close)
        assert await app.enqueue("email-send") == 2
    assert keys_in(file) == [1, 2]
