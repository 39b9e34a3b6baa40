"""The fixtures around a test: what they start is ended where it was started, and a failure is told once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from everwork import AbstractWorker, Everwork, WorkerSettings
from everwork.testing import Stage

ASKS_AND_FAILS = """
import everwork, pytest

@pytest.fixture
def everwork_app():
    app = everwork.Everwork("sqlite:///nowhere.db")
    app.job("mail")(lambda: None)
    return app

def test_that_fails_before_its_drain(everwork_sync_stage):
    everwork_sync_stage.crash_before_settle("mail")
    assert False, "the reason"

def test_that_forgets_its_drain(everwork_sync_stage):
    everwork_sync_stage.crash_before_settle("mail")
"""


class Keeper(AbstractWorker):
    """A worker that holds something that belongs to an event loop, as a session does."""

    loops: list[asyncio.AbstractEventLoop] = []  # noqa: RUF012 - begun anew by the fixture below

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="Keeper", sources={"keep"})

    async def startup(self) -> None:
        """Begin."""
        self.loops.append(asyncio.get_running_loop())

    async def shutdown(self) -> None:
        """End."""
        self.loops.append(asyncio.get_running_loop())

    async def __call__(self) -> None:
        """Do nothing."""


@pytest.fixture
def everwork_app(app: Everwork, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Torn down after the stage: looks at what that has left."""
    monkeypatch.setattr(Keeper, "loops", [])
    yield [app, Keeper]
    started, shut_down = Keeper.loops
    assert started is shut_down


async def test_a_coroutine_gets_a_stage_whose_workers_live_in_its_event_loop(everwork_stage: Stage) -> None:
    await everwork_stage.app.enqueue("keep")
    await everwork_stage.app.enqueue("letter-send", order=7)
    assert [run.type for run in await everwork_stage.drain()] == ["letter-send", "keep"]
    assert Keeper.loops == [asyncio.get_running_loop()]


def test_a_fault_that_is_left_over_fails_a_test_that_passed_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "test_asking.py").write_text(ASKS_AND_FAILS)
    source = str(Path(__file__).parents[2] / "src")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "everwork.testing.fixtures", "--rootdir=."],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": source, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert "1 failed, 1 passed, 1 error" in run.stdout, run.stdout
    assert "ERROR at teardown of test_that_forgets_its_drain" in run.stdout
