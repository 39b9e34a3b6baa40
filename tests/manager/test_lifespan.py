"""The lifespan of worker processes: around everything that their workers do."""

from __future__ import annotations

import signal

import pytest

from everwork import Everwork, Process
from tests.app.waiting import until
from tests.manager import lifespans
from tests.manager.conftest import Start
from tests.manager.running import LATE_S, Said
from tests.manager.test_tick import a_manager
from tests.manager.workers import LOG

pytestmark = pytest.mark.parametrize("engine_name", ["sqlite"])


def words(said: Said) -> list[str]:
    """What was said, in its order."""
    return [line.split()[0] for line in said.path.read_text().splitlines()]


async def test_a_process_enters_its_lifespan_before_its_workers_start_and_leaves_it_when_they_have_stopped(
    start: Start, said: Said, url: str
) -> None:
    manager = await start("lifespans.Stateful", lifespan=True)
    async with Everwork(url) as app:
        keys = [await app.enqueue("stateful") for _ in range(2)]
        for key in keys:
            assert await app.result(key, timeout=LATE_S) == [{"size": 5}, "pool"]
    manager.send(signal.SIGTERM)
    await until(lambda: not manager.is_running, LATE_S)
    assert words(said) == ["entered", "startup", "opened", "stateful", "stateful", "shutdown", "closed", "left"]


async def test_a_tick_enters_the_lifespan_of_a_process_and_leaves_it(
    url: str, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOG, str(said.path))
    manager = a_manager(url, Process(workers=[lifespans.Stateful], lifespan=lifespans.lifespan))
    await manager.run_once()
    assert words(said) == ["entered", "startup", "shutdown", "left"]
