"""The engine's clock jumps: the process notices, says so, and does not end the leases of live workers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everwork.core.leasing import Lease, LeaseStatus
from everwork.engines.open import open_engine
from everwork.service import clock_watch
from everwork.service.doctor import examine
from everwork.service.service import JobService
from tests.factories import LEASE_MS, a_processing_job
from tests.stores import HOUR_MS, VirtualClock, url_of


class Clocks:
    """The engine's clock and this host's steady one, moved by the test."""

    def __init__(self) -> None:
        self.engine = VirtualClock()
        self.steady_ms = 1_000_000

    def pass_by(self, ms: int) -> None:
        self.engine.advance(ms=ms)
        self.steady_ms += ms


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    monkeypatch.setattr(clock_watch, "boot_clock_ms", lambda: made.steady_ms)
    return made


@pytest.fixture
async def service(
    engine_name: str, tmp_path: Path, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[JobService]:
    """A service whose sweeps the test calls, on an engine whose clock counts as a real one."""
    engine = open_engine(url_of(engine_name, tmp_path), clock=clocks.engine)
    monkeypatch.setattr(type(engine), "has_real_clock", True)
    opened = JobService(engine, "watcher")
    await opened.open(upkeep=False)
    yield opened
    await opened.close()


@pytest.mark.every_engine
@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS], ids=["forward", "back"])
async def test_a_jump_is_logged_counted_and_told_by_the_doctor(
    service: JobService, clocks: Clocks, jump_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    engine = service._engine
    job = await a_processing_job(engine)
    for _ in range(3):
        await service.sweep()
        clocks.pass_by(1_000)
    clocks.engine.advance(ms=jump_ms)
    await service.sweep()
    assert service.clock_jumps == 1
    assert f"{jump_ms / 1000:+.1f}" in caplog.text
    texts = [finding.text for finding in (await examine(engine, clocks.engine)).findings if finding.is_problem]
    assert any(text.startswith(f"the engine's clock jumped by {jump_ms // 1000:+d} s at ") for text in texts)
    assert await engine.extend([Lease(job.key, 1)], LEASE_MS) == [LeaseStatus.HELD]


async def test_after_a_jump_forward_sweeps_wait_for_the_workers_and_then_end_the_leases_of_the_dead(
    service: JobService, clocks: Clocks
) -> None:
    engine = service._engine
    alive, dead = await a_processing_job(engine), await a_processing_job(engine)
    await service.sweep()
    clocks.engine.advance(ms=HOUR_MS)
    await service.sweep()
    assert await engine.extend([Lease(alive.key, 1)], 2 * LEASE_MS) == [LeaseStatus.HELD]
    clocks.pass_by(LEASE_MS + 1)
    await service.sweep()
    statuses = await engine.check([Lease(alive.key, 1), Lease(dead.key, 1)])
    assert statuses == [LeaseStatus.HELD, LeaseStatus.LOST]


async def test_a_slow_answer_of_the_engine_is_no_jump(
    service: JobService, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = service._engine
    await service.sweep()
    now = engine.now

    async def slow() -> int:
        clocks.pass_by(10_000)
        answer = await now()
        clocks.pass_by(5_000)
        return answer

    monkeypatch.setattr(engine, "now", slow)
    await service.sweep()
    assert service.clock_jumps == 0
