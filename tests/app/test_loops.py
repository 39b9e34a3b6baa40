"""One application in several event loops, in forked children, and after an engine that would not open."""

from __future__ import annotations

import asyncio
import gc
import re
import sqlite3
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from everwork import Everwork
from everwork.engines.sqlite.engine import SqliteEngine
from everwork.engines.sqlite.transaction import Transaction
from everwork.exceptions import EngineUnavailable
from tests.app.forks import in_child
from tests.app.waiting import DEADLINE_S, SOON_S

pytestmark = pytest.mark.every_engine


@pytest.fixture
def sync_app(url: str) -> Iterator[Everwork]:
    """An application that no event loop owns."""
    app = Everwork(url)
    yield app
    app.sync.close()


def test_one_event_loop_after_the_other_may_use_the_application(sync_app: Everwork) -> None:
    first = asyncio.run(sync_app.enqueue("email-send"))
    second = asyncio.run(sync_app.enqueue("email-send"))
    assert first < second
    assert asyncio.run(sync_app.get(first)).key == first


def test_event_loops_of_several_threads_may_use_it_at_once(sync_app: Everwork) -> None:
    async def many(thread: int) -> list[int]:
        return list(await asyncio.gather(*(sync_app.enqueue("count", number=thread) for _ in range(50))))

    with ThreadPoolExecutor(4) as threads:
        keys = [key for made in threads.map(lambda thread: asyncio.run(many(thread)), range(4)) for key in made]
    assert len(set(keys)) == 200 == jobs_in(sync_app)


def test_a_loop_that_ends_in_the_middle_of_a_call_disturbs_nobody(sync_app: Everwork) -> None:
    async def leave() -> None:
        waiting = asyncio.ensure_future(sync_app.result(await sync_app.enqueue("email-send")))
        await asyncio.wait({waiting}, timeout=0)

    asyncio.run(leave())
    asyncio.run(sync_app.enqueue("email-send"))
    assert jobs_in(sync_app) == 2


def jobs_in(app: Everwork) -> int:
    """How many jobs the application's store holds."""
    return sum(one.jobs for one in asyncio.run(app._host.call(lambda service: service._engine.count())))


def test_a_forked_child_may_use_an_application_that_its_parent_has_opened(sync_app: Everwork, url: str) -> None:
    before = sync_app.sync.enqueue("email-send", by="parent")

    def act() -> None:
        for _ in range(20):
            sync_app.sync.enqueue("email-send", by="child")
        assert asyncio.run(sync_app.get(before)).key == before
        sync_app.sync.close()

    assert in_child(act) == 0
    sync_app.sync.enqueue("email-send", by="parent")
    assert jobs_in(sync_app) == 22
    assert sync_app.sync.get(before).variables == {"by": "parent"}
    assert intact(url)


def test_parent_and_forked_children_may_enqueue_at_once(sync_app: Everwork, url: str) -> None:
    sync_app.sync.open()
    stop = threading.Event()

    def go_on() -> int:
        made = 0
        while not stop.is_set():
            sync_app.sync.enqueue("email-send")
            made += 1
        return made

    with ThreadPoolExecutor(1) as threads:
        parent = threads.submit(go_on)
        codes = [in_child(lambda: [sync_app.sync.enqueue("email-send") for _ in range(20)]) for _ in range(3)]
        stop.set()
        made = parent.result(DEADLINE_S)
    assert codes == [0, 0, 0]
    assert jobs_in(sync_app) == made + 60
    assert intact(url)


def test_a_child_forked_in_the_middle_of_a_write_to_a_file_may_enqueue(tmp_path: Path) -> None:
    """SQLite remembers locks per process: the child must not inherit one that nobody will ever give back."""
    sync_app = Everwork(f"sqlite:///{tmp_path}/jobs.db")
    sync_app.sync.open()
    engine = sync_app.service._engine
    assert isinstance(engine, SqliteEngine)
    begun, never = threading.Event(), threading.Event()

    def write_for_a_while(tx: Transaction) -> None:
        tx.type("email-send")
        begun.set()
        never.wait(0.5)

    sync_app.loop.call_soon_threadsafe(engine._store.writer.submit, write_for_a_while)
    assert begun.wait(DEADLINE_S)
    assert in_child(lambda: sync_app.sync.enqueue("email-send")) == 0
    sync_app.sync.close()


def intact(url: str) -> bool:
    """Whether nothing is wrong with the store's file; a server looks after its own."""
    if not url.startswith("sqlite:///"):
        return True
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    try:
        return bool(connection.execute("PRAGMA integrity_check").fetchone() == ("ok",))
    finally:
        connection.close()


async def test_an_engine_that_cannot_be_opened_is_told_and_a_later_use_works(tmp_path: Path) -> None:
    folder = tmp_path / "missing"
    app = Everwork(f"sqlite:///{folder}/jobs.db")
    for _ in range(2):
        with pytest.raises(EngineUnavailable, match="does not exist; create it first"):
            await asyncio.wait_for(app.enqueue("email-send"), SOON_S)
    folder.mkdir()
    assert await asyncio.wait_for(app.enqueue("email-send"), SOON_S) == 1
    await app.close()


async def test_everybody_who_waits_for_an_engine_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    app = Everwork(f"sqlite:///{tmp_path}/missing/jobs.db")
    calls = [asyncio.wait_for(app.enqueue("email-send"), SOON_S) for _ in range(5)]
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(error) for error in errors] == [EngineUnavailable] * 5


async def test_an_application_that_could_not_be_opened_can_be_closed(tmp_path: Path) -> None:
    app = Everwork(f"sqlite:///{tmp_path}/missing/jobs.db")
    with pytest.raises(EngineUnavailable):
        await app.open()
    await asyncio.wait_for(app.close(), SOON_S)


async def test_work_on_an_engine_that_cannot_be_opened_says_so(tmp_path: Path) -> None:
    app = Everwork(f"sqlite:///{tmp_path}/missing/jobs.db")

    @app.job("work")
    async def work() -> None: ...

    with pytest.raises(EngineUnavailable, match="does not exist; create it first"):
        await asyncio.wait_for(app.work(), SOON_S)


def test_run_on_an_engine_that_cannot_be_opened_says_so(tmp_path: Path) -> None:
    app = Everwork(f"sqlite:///{tmp_path}/missing/jobs.db")

    @app.job("work")
    async def work() -> None: ...

    with pytest.raises(EngineUnavailable, match="does not exist; create it first"):
        app.run()


def test_the_sync_twins_tell_it_and_leave_nothing_behind(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always")
        gc.collect()  # What tests before this one have left behind.
        left.clear()
        app = Everwork(f"sqlite:///{tmp_path}/missing/jobs.db")
        with pytest.raises(EngineUnavailable, match="does not exist; create it first"):
            app.sync.get(1)
        del app
        gc.collect()
    assert [str(warning.message) for warning in left] == []


def test_a_relative_path_means_the_same_file_after_the_working_directory_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = Everwork("sqlite:///jobs.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with app.sync as sync:
        sync.enqueue("email-send")
    assert [(tmp_path / "jobs.db").exists(), (tmp_path / "elsewhere" / "jobs.db").exists()] == [True, False]


def test_whoever_closes_it_leaves_nobody_waiting_in_another_loop(sync_app: Everwork) -> None:
    is_over = threading.Event()

    async def enqueue_until_it_is_over() -> int:
        created = 0
        async with sync_app:
            while not is_over.is_set():
                try:
                    await asyncio.wait_for(sync_app.enqueue("email-send"), DEADLINE_S)
                    created += 1
                except EngineUnavailable as error:
                    assert re.search("open|closed", str(error))  # noqa: PT017 - it may be raised or not
        return created

    async def open_and_close() -> None:
        async with sync_app:
            await sync_app.enqueue("email-send")

    with ThreadPoolExecutor() as pool:
        other = pool.submit(asyncio.run, enqueue_until_it_is_over())
        for _ in range(10):
            asyncio.run(open_and_close())
        is_over.set()
        assert other.result(DEADLINE_S) > 0
