"""What is told to workers whose whole type is stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everwork.core.outcome import Complete
from everwork.service.explain import BlockedTypes
from tests.factories import TYPE, a_pending_job, asked

if TYPE_CHECKING:
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock


async def reason(engine: Engine, *, names_probe: bool = True) -> str | None:
    """Why no job of the type is leased."""
    return await BlockedTypes(engine).reason(TYPE, names_probe=names_probe)


async def test_a_breaker_is_told_while_it_is_open_and_while_its_probe_runs(engine: Engine, clock: VirtualClock) -> None:
    first, _ = await a_pending_job(engine), await a_pending_job(engine)
    assert await reason(engine) is None
    await engine.open_breaker(TYPE, 60_000)
    stopped = f"type '{TYPE}' is stopped by its circuit breaker"
    assert await reason(engine) == f"{stopped} until 2023-11-14T22:01:00.000Z"
    clock.advance(seconds=60)
    assert await reason(engine) is None  # The next poll gets the probe.
    [probe] = (await asked(engine)).jobs
    waiting = f"{stopped}, which waits for its probe, job '{first.key}', to succeed"
    assert await reason(engine) == waiting
    # The probe may be a job of another tenant.
    assert await reason(engine, names_probe=False) == f"{stopped}, which waits for its probe to succeed"
    await engine.settle([Complete(probe.key, probe.attempt)])
    assert await reason(engine) is None
