"""The quick start: its worker handles pushed events and its trigger's, on a real Redis, until SIGTERM."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.servers import RedisServer, redis_server

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "quickstart"
COMMAND: Final = str(Path(sys.executable).parent / "everwork")
SECONDS_MAX: Final = 60


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with redis_server("--appendonly", "yes") as server:
        yield server


def test_the_quick_start_handles_events_and_triggers_until_sigterm(redis: RedisServer, tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLE, tmp_path / "quickstart")
    environ = {**os.environ, "EVERWORK_ENGINE": redis.url}
    with subprocess.Popen(
        [sys.executable, "main.py"], cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as manager:
        try:
            assert manager.stdout is not None
            _run(folder, environ, sys.executable, "push.py", "Hello")
            assert manager.stdout.readline() == "Processing: Hello (x=7)\n"
            # Its first point of time is 30 seconds away.
            _run(folder, environ, COMMAND, "triggers", "fire", "periodic-task")
            assert manager.stdout.readline() == "Processing: Hello from trigger! (x=0)\n"
            manager.send_signal(signal.SIGTERM)
            assert manager.wait(SECONDS_MAX) == 0
        finally:
            manager.kill()


def _run(folder: Path, environ: dict[str, str], *command: str) -> None:
    subprocess.run(command, cwd=folder, env=environ, capture_output=True, timeout=SECONDS_MAX, check=True)
