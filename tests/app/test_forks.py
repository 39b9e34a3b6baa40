"""Processes that were forked with one application: each is a worker of its own, with connections of its own."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from everwork import Everwork, State
from everwork.app import engine_host
from everwork.exceptions import EngineUnavailable
from tests.app.forks import exit_code, fork, in_child
from tests.app.test_lost_answers import lose_answers
from tests.app.waiting import DEADLINE_S, SOON_S, stop_thread, working

pytestmark = pytest.mark.every_engine

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def sync_app(url: str) -> Iterator[Everwork]:
    """An application that no event loop owns."""
    app = Everwork(url)
    yield app
    app.sync.close()


def told_by_child(act: object) -> str:
    """What a forked child answers."""
    reads, writes = os.pipe()
    assert in_child(lambda: os.write(writes, str(act()).encode())) == 0  # type: ignore[operator]
    os.close(writes)
    with os.fdopen(reads) as pipe:
        return pipe.read()


def test_a_fork_has_a_name_of_its_own(sync_app: Everwork) -> None:
    here = sync_app.worker
    there = told_by_child(lambda: sync_app.worker)
    assert {there, sync_app.worker} == {there, here}
    assert there != here


def test_a_fork_takes_turns_in_its_own_name(sync_app: Everwork) -> None:
    sync_app.sync.open()
    here = sync_app.service.holder

    def holder() -> str:
        sync_app.sync.open()
        return sync_app.service.holder

    assert told_by_child(holder) != here


def test_a_worker_with_a_given_name_keeps_it_in_a_fork_but_takes_turns_in_its_own(url: str) -> None:
    app = Everwork(url, worker="mail")
    assert told_by_child(lambda: app.worker) == "mail" == app.worker
    with closing(app.sync):
        app.sync.open()
        assert app.service.holder != "mail"


def test_a_fork_that_lost_an_answer_leaves_the_jobs_of_its_siblings_alone(
    sync_app: Everwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, writes = os.pipe()

    @sync_app.job("hold")
    async def hold() -> None:
        os.write(writes, b"begun")
        await asyncio.Event().wait()

    held = sync_app.sync.enqueue("hold")
    sibling = fork(sync_app.run)
    try:
        assert os.read(reads, 5) == b"begun"
        assert in_child(lambda: asyncio.run(work_with_a_lost_answer(sync_app, monkeypatch))) == 0
        assert (sync_app.sync.get(held).state, sync_app.sync.history(held)) == (State.PROCESSING, [])
    finally:
        os.kill(sibling, signal.SIGKILL)
        exit_code(sibling)


async def work_with_a_lost_answer(app: Everwork, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run one job of a type that nobody else runs; its first lease gets lost on the way."""
    app.functions.clear()

    @app.job("other")
    async def other() -> None: ...

    lost = await lose_answers(app, monkeypatch, of="jobs")
    key = await app.enqueue("other")
    async with working(app):
        await asyncio.wait_for(app.result(key), DEADLINE_S)
    assert len(lost) == 1


async def test_a_fork_leaves_the_connections_of_its_parent_alone(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_host, "CLOSE_SECONDS", 2 * DEADLINE_S)  # A child that closes them does not end in time.
    app = Everwork(url)

    async def create_and_close() -> None:
        async with app:
            await app.enqueue("email-send")

    async with app:
        first = await app.enqueue("email-send")
        assert in_child(lambda: in_thread(create_and_close)) == 0
        assert await app.enqueue("email-send") == first + 2


def in_thread(act: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine in an event loop of its own, whatever the calling thread runs."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(asyncio.run, act()).result()


def test_the_end_of_a_fork_does_not_cost_its_parent_a_connection(url: str) -> None:
    """An interpreter that ends frees everything, also what it shares with its parent."""
    program = f"""if True:
        import os, sys
        from everwork import Everwork
        app = Everwork({url!r})
        key = app.sync.enqueue("email-send")
        if os.fork() == 0:
            app.sync.get(key)
            sys.exit(0)
        assert os.wait()[1] == 0
        import asyncio
        asyncio.run(asyncio.wait_for(app.get(key), {SOON_S / 2}))
    """
    # Since 3.12 Python warns of a fork beside threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_handler_may_fork_a_child_that_uses_the_application(sync_app: Everwork) -> None:
    @sync_app.job("parent")
    def parent() -> int:
        def act() -> None:
            sync_app.sync.enqueue("child")
            sync_app.sync.close()

        return in_child(act)

    workers = threading.Thread(target=sync_app.run)
    workers.start()
    try:
        assert sync_app.sync.result(sync_app.sync.enqueue("parent"), DEADLINE_S) == 0
    finally:
        stop_thread(sync_app, workers)


def test_a_fork_beside_a_store_whose_file_was_taken_away_harms_no_other(tmp_path: Path) -> None:
    (tmp_path / "lost").mkdir()
    lost, kept = (Everwork(f"sqlite:///{tmp_path / name}") for name in ("lost/jobs.db", "kept.db"))
    lost.sync.enqueue("email-send")
    kept.sync.enqueue("email-send")
    shutil.rmtree(tmp_path / "lost")
    assert [in_child(lambda: None), in_child(lambda: None)] == [0, 0]
    assert kept.sync.enqueue("email-send") == 2
    with pytest.raises(EngineUnavailable):
        lost.sync.enqueue("email-send")
    kept.sync.close()
    lost.sync.close()
