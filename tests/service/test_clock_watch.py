"""Jumps of the engine's clock are detected and reported, and do not end the leases of running workers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everwork.core.leasing import Lease, LeaseStatus
from everwork.core.states import State
from everwork.engines.open import open_engine
from everwork.service.doctor import examine
from everwork.service.monitor import clock_watch, overlong_leases
from everwork.service.service import JobService
from tests.factories import LEASE_MS, a_processing_job, the_job
from tests.stores import HOUR_MS, VirtualClock, url_of


class Clocks:
    """The engine's clock and this host's steady clock, both moved by the test."""

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
    """A service whose sweeps the test calls, on an engine whose clock is treated as a real one."""
    engine = open_engine(url_of(engine_name, tmp_path), clock=clocks.engine)
    monkeypatch.setattr(type(engine), "has_real_clock", True)
    opened = JobService(engine, "watcher")
    await opened.open(upkeep=False)
    yield opened
    await opened.close()


@pytest.fixture
async def remote(service: JobService, monkeypatch: pytest.MonkeyPatch) -> JobService:
    """A service on a remote store, which cannot compare its clock with another one."""
    monkeypatch.setattr(type(service._engine), "is_remote", True)
    await service.sweep()
    return service


@pytest.mark.every_engine
@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS], ids=["forward", "back"])
async def test_a_jump_is_logged_counted_and_told_by_the_doctor(
    remote: JobService, clocks: Clocks, jump_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    engine = remote._engine
    job = await a_processing_job(engine)
    for _ in range(3):
        await remote.sweep()
        clocks.pass_by(1_000)
    clocks.engine.advance(ms=jump_ms)
    await remote.sweep()
    assert remote.clock_jumps == 1
    assert f"{jump_ms / 1000:+.1f}" in caplog.text
    texts = [finding.text for finding in (await examine(engine, clocks.engine)).findings if finding.is_problem]
    assert any(text.startswith(f"the engine's clock jumped by {jump_ms // 1000:+d} s at ") for text in texts)
    assert await engine.extend([Lease(job.key, 1)], LEASE_MS) == [LeaseStatus.HELD]


async def test_after_a_jump_forward_sweeps_wait_for_the_workers_and_then_end_the_leases_of_the_dead(
    remote: JobService, clocks: Clocks
) -> None:
    engine = remote._engine
    alive, dead = await a_processing_job(engine), await a_processing_job(engine)
    await remote.sweep()
    clocks.engine.advance(ms=HOUR_MS)
    await remote.sweep()
    assert await engine.extend([Lease(alive.key, 1)], 2 * LEASE_MS) == [LeaseStatus.HELD]
    clocks.pass_by(LEASE_MS + 1)
    await remote.sweep()
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


async def sweep_for(service: JobService, clocks: Clocks, ms: int) -> None:
    """Let time pass, with a sweep every second."""
    for _ in range(ms // 1_000):
        clocks.pass_by(1_000)
        while await service.sweep():
            pass


BACK = pytest.mark.parametrize("back_ms", [5_000, HOUR_MS, 24 * HOUR_MS], ids=["seconds", "an hour", "a day"])


@pytest.mark.every_engine
@BACK
async def test_a_dead_workers_lease_is_not_kept_for_as_long_as_the_clock_was_set_back(
    remote: JobService, clocks: Clocks, back_ms: int
) -> None:
    engine = remote._engine
    jobs = [await a_processing_job(engine) for _ in range(60)]
    leases = [Lease(job.key, 1) for job in jobs]
    clocks.engine.advance(ms=-back_ms)
    await sweep_for(remote, clocks, LEASE_MS - 2_000)
    assert set(await engine.check(leases)) == {LeaseStatus.HELD}
    assert await engine.extend(leases[:1], LEASE_MS) == [LeaseStatus.HELD]
    await sweep_for(remote, clocks, LEASE_MS - 1_000)
    assert await engine.check(leases) == [LeaseStatus.HELD] + [LeaseStatus.LOST] * 59
    assert (await the_job(engine, jobs[-1].key)).state is State.PENDING


@pytest.mark.every_engine
async def test_a_long_lease_of_a_live_worker_keeps_its_length_when_the_clock_is_set_back(
    remote: JobService, clocks: Clocks
) -> None:
    engine = remote._engine
    before = await a_processing_job(engine, lease_ms=4 * 60_000)
    clocks.engine.advance(ms=-HOUR_MS)
    after = await a_processing_job(engine, lease_ms=2 * HOUR_MS)
    await sweep_for(remote, clocks, 4 * 60_000 - 1_000)
    assert await engine.check([Lease(before.key, 1), Lease(after.key, 1)]) == [LeaseStatus.HELD] * 2
    await sweep_for(remote, clocks, 60_000)
    assert await engine.check([Lease(before.key, 1), Lease(after.key, 1)]) == [LeaseStatus.LOST, LeaseStatus.HELD]


async def test_a_clock_that_is_set_back_twice_counts_twice(remote: JobService, clocks: Clocks) -> None:
    engine = remote._engine
    job = await a_processing_job(engine, lease_ms=2 * LEASE_MS)
    for _ in range(2):
        clocks.engine.advance(ms=-HOUR_MS)
        await sweep_for(remote, clocks, LEASE_MS - 1_000)
    assert await engine.check([Lease(job.key, 1)]) == [LeaseStatus.HELD]
    await sweep_for(remote, clocks, 3_000)
    assert await engine.check([Lease(job.key, 1)]) == [LeaseStatus.LOST]


async def test_a_process_notes_a_bounded_number_of_leases_and_still_ends_them_all(
    remote: JobService, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlong_leases, "NOTED_MAX", 50)
    engine = remote._engine
    leases = [Lease((await a_processing_job(engine)).key, 1) for _ in range(120)]
    clocks.engine.advance(ms=-HOUR_MS)
    await sweep_for(remote, clocks, 4 * LEASE_MS)
    assert set(await engine.check(leases)) == {LeaseStatus.LOST}
