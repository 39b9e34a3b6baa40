"""Fixtures for tests of managers: everything runs for real, and nothing of it outlives the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.waiting import until
from tests.manager.running import LATE_S, MUTE, Manager, Outside, Said
from tests.stores import url_of

Start = Callable[..., Awaitable[Manager]]


@pytest.fixture
def url(engine_name: str, tmp_path: Path) -> str:
    """The store of the test."""
    return url_of(engine_name, tmp_path)


@pytest.fixture
def said(tmp_path: Path) -> Said:
    """What the workers of the test say."""
    return Said(tmp_path / "said")


@pytest.fixture
def managers() -> Iterator[list[Manager]]:
    """All managers of the test. None of them may take a process for dead that has just started."""
    started: list[Manager] = []
    yield started
    for manager in started:
        manager.end()
    assert not [manager.log() for manager in started if "it did not respond for" in manager.log()]


@pytest.fixture
def start(url: str, said: Said, managers: list[Manager]) -> Start:
    """Starts managers, and waits until their workers have started."""

    async def start_one(*processes: str, **settings: Any) -> Manager:
        wanted = sum(name not in MUTE for workers in processes for name in workers.split(","))
        before = len(said.lines("startup"))
        managers.append(manager := Manager(url, said, processes, settings))

        def have_started() -> bool:
            assert manager.is_running, manager.log()
            return len(said.lines("startup")) >= before + wanted

        await until(have_started, LATE_S)
        return manager

    return start_one


@pytest.fixture
async def outside(url: str) -> AsyncIterator[Outside]:
    """The store, as those see it who run no workers."""
    opened = Outside(url)
    await opened.service.open(upkeep=False)
    yield opened
    await opened.service.close()
