"""Processes that were forked with one application: each is a worker of its own, with connections of its own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import closing

import pytest

from everwork import Everwork, State
from tests.door.forks import exit_code, fork, in_child
from tests.door.test_lost_answers import lose_answers
from tests.door.waiting import DEADLINE_S, working


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
