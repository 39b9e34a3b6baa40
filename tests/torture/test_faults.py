"""Every fault point is one that the load really passes: a process armed with it dies there."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from everwork.core.job import NewJob
from everwork.engines.open import open_engine
from tests.forked import run_forked
from tests.stores import ENGINES, url_of
from tests.torture import faults, plan
from tests.torture.history import host_clock_ms
from tests.torture.process import Life

PASSAGES = [
    (engine, role, point)
    for engine in ENGINES
    for role in ("worker", "producer")
    for point in faults.points(engine, role)
]


@pytest.mark.parametrize(("name", "role", "point"), PASSAGES)
async def test_a_process_dies_at_its_fault_point(name: str, role: str, point: str, tmp_path: Path) -> None:
    url = url_of(name, tmp_path)
    engine = open_engine(url)
    await engine.open()
    await engine.create([NewJob(plan.WORK, json.dumps({"r": f"job-{number}"})) for number in range(50)])
    await engine.close()
    life = Life(f"{role}-0", 0, url, tmp_path, 1, 700, host_clock_ms(), "")
    assert _live(role, life, f"{point}:3") == -signal.SIGKILL


def _live(role: str, life: Life, fault: str) -> int:
    environment = {**os.environ, faults.VARIABLE: fault}
    return run_forked(f"tests.torture.{role}", life.arguments(), env=environment).returncode
