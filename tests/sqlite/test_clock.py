"""If the host's clock is set, running leases, retry delays, open breakers and rate limits keep their length."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everwork.core.leasing import Lease, LeaseStatus
from everwork.core.outcome import Failed
from everwork.core.states import State
from everwork.engines.sqlite import engine as engine_module
from everwork.engines.sqlite.engine import SqliteEngine
from everwork.engines.sqlite.store import clock as clock_module
from everwork.engines.sqlite.store import opened as opened_module
from everwork.engines.sqlite.store import writer as writer_module
from everwork.engines.sqlite.store_url import StoreUrl
from everwork.service.monitor import clock_watch
from everwork.service.service import JobService
from tests.factories import LEASE_MS, a_new_job, a_policy, a_processing_job, asked, leased_keys, the_job, the_state
from tests.stores import HOUR_MS, START_MS


class HostClocks:
    """Both clocks of the host, controlled by the test: time passes on both, and the wall clock can also be set."""

    def __init__(self) -> None:
        self.wall_ms, self.boot_ms = START_MS, 1_000_000

    def wall(self) -> int:
        return self.wall_ms

    def boot(self) -> int:
        return self.boot_ms

    def pass_by(self, ms: int) -> None:
        self.wall_ms += ms
        self.boot_ms += ms

    def set_by(self, ms: int) -> None:
        self.wall_ms += ms


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> HostClocks:
    """The clocks that every SQLite engine in this test reads."""
    clocks = HostClocks()
    wall = clocks.wall
    for module in (clock_module, engine_module, opened_module, writer_module):
        monkeypatch.setattr(module, "host_clock_ms", wall)
    monkeypatch.setattr(clock_module, "boot_clock_ms", clocks.boot)
    return clocks


@pytest.fixture
async def engine(file: Path, host: HostClocks) -> AsyncIterator[SqliteEngine]:
    """An open engine that reads the host's clock."""
    opened = SqliteEngine(StoreUrl(str(file)))
    await opened.open()
    yield opened
    await opened.close()


JUMPS = pytest.mark.parametrize("jump_ms", [-HOUR_MS, HOUR_MS, -24 * HOUR_MS], ids=["back", "forward", "a day back"])


@JUMPS
async def test_a_lease_ends_when_it_would_have(engine: SqliteEngine, host: HostClocks, jump_ms: int) -> None:
    job = await a_processing_job(engine)
    host.pass_by(LEASE_MS - 1_000)
    host.set_by(jump_ms)
    assert (await engine.sweep("s")).lapsed == 0
    assert await engine.extend([Lease(job.key, 1)], 10_000) == [LeaseStatus.HELD]
    host.pass_by(10_001)
    assert (await engine.sweep("s")).lapsed == 1


@JUMPS
async def test_after_a_jump_a_process_recovers_the_jobs_of_the_dead_without_a_pause(
    engine: SqliteEngine, host: HostClocks, monkeypatch: pytest.MonkeyPatch, jump_ms: int
) -> None:
    monkeypatch.setattr(clock_watch, "boot_clock_ms", host.boot)
    service = JobService(engine, "sweeper")
    job = await a_processing_job(engine)
    host.pass_by(LEASE_MS - 1_000)
    await service.sweep()
    host.set_by(jump_ms)
    await service.sweep()
    assert service.clock_jumps == 1
    assert await engine.check([Lease(job.key, 1)]) == [LeaseStatus.HELD]
    host.pass_by(1_001)
    await service.sweep()
    assert await engine.check([Lease(job.key, 1)]) == [LeaseStatus.LOST]


@JUMPS
async def test_a_dead_workers_lease_is_not_kept_for_as_long_as_the_jump(
    engine: SqliteEngine, host: HostClocks, jump_ms: int
) -> None:
    await a_processing_job(engine)
    host.set_by(jump_ms)
    await engine.create([a_new_job(type="other")])
    host.pass_by(LEASE_MS + 1)
    assert (await engine.sweep("s")).lapsed == 1


@JUMPS
async def test_a_retry_comes_when_it_would_have(engine: SqliteEngine, host: HostClocks, jump_ms: int) -> None:
    job = await a_processing_job(engine)
    await engine.settle([Failed(job.key, 1, "boom")])
    for _ in range(2):
        host.set_by(jump_ms)
        await engine.create([a_new_job(type="other")])
        assert await leased_keys(engine) == []
    host.pass_by(5_001)
    assert await leased_keys(engine) == [job.key]
    assert await the_state(engine, job.key) is State.PROCESSING


@JUMPS
async def test_a_time_that_a_user_has_given_stays(engine: SqliteEngine, host: HostClocks, jump_ms: int) -> None:
    [created] = await engine.create([a_new_job(run_at_ms=START_MS + 2 * HOUR_MS)])
    host.set_by(jump_ms)
    await engine.create([a_new_job(type="other")])
    assert (await the_job(engine, created.key)).run_at_ms == START_MS + 2 * HOUR_MS


@JUMPS
async def test_a_breaker_and_a_rate_hold_as_long_as_they_would_have(
    engine: SqliteEngine, host: HostClocks, jump_ms: int
) -> None:
    await a_policy(engine, rate_jobs=1, rate_seconds=60.0)
    await engine.create([a_new_job(), a_new_job(), a_new_job(type="broken")])
    assert len(await leased_keys(engine)) == 1
    await engine.open_breaker("broken", 60_000)
    host.set_by(jump_ms)
    await engine.create([a_new_job(type="other")])
    host.pass_by(59_000)
    assert (await leased_keys(engine), await leased_keys(engine, type="broken")) == ([], [])
    host.pass_by(1_001)
    assert (len(await leased_keys(engine)), len(await leased_keys(engine, type="broken"))) == (1, 1)


async def test_a_jump_between_two_runs_is_seen_by_the_next_and_moved_once(
    engine: SqliteEngine, file: Path, host: HostClocks
) -> None:
    job = await a_processing_job(engine)
    await engine.close()
    host.set_by(-HOUR_MS)
    others = [SqliteEngine(StoreUrl(str(file))) for _ in range(2)]
    for other in others:
        await other.open()
        await other.create([a_new_job(type="other")])
    assert (await the_job(others[0], job.key)).lease_until_ms == START_MS - HOUR_MS + LEASE_MS
    for other in others:
        await other.close()
    await engine.open()


async def test_after_a_restart_of_the_host_nothing_is_moved(
    engine: SqliteEngine, file: Path, host: HostClocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await a_processing_job(engine)
    await engine.close()
    monkeypatch.setattr(clock_module, "boot_id", lambda: "another")
    host.boot_ms = 5_000
    host.wall_ms += 1_000
    await engine.open()
    await asked(engine, type="other")
    await engine.create([a_new_job(type="other")])
    assert (await the_job(engine, job.key)).lease_until_ms == START_MS + LEASE_MS


async def test_a_clock_that_is_adjusted_gradually_moves_nothing(engine: SqliteEngine, host: HostClocks) -> None:
    job = await a_processing_job(engine, lease_ms=HOUR_MS)
    for _ in range(20):
        host.pass_by(1_000)
        host.set_by(300)
        await engine.create([a_new_job(type="other")])
    assert (await the_job(engine, job.key)).lease_until_ms == START_MS + HOUR_MS


async def test_a_host_without_a_clock_since_its_start_can_be_used(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("time.CLOCK_BOOTTIME")
    opened = SqliteEngine(StoreUrl(str(file)))
    await opened.open()
    [created] = await opened.create([a_new_job()])
    await opened.close()
    assert not created.deduplicated
