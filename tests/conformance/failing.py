"""Types with a breaker, jobs that fail, and how the breaker stands."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from everwork.core.breaker import BreakerState
from everwork.core.outcome import Failed
from tests.conformance.test_registry import info_of
from tests.factories import TYPE, a_new_job, a_policy, asked, settled
from tests.stores import MINUTE_MS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from everwork.core.job import LeasedJob
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

where_it_is_decided = pytest.mark.not_by_poll
"""Not in the way that differs only in how a waiting worker is woken."""

RULE: dict[str, Any] = {"breaker_failures": 3, "breaker_seconds": 60.0}


async def leased(engine: Engine, jobs: int = 1, *, lease_ms: int = 10 * MINUTE_MS, **fields: Any) -> list[LeasedJob]:
    """New jobs that a worker holds; no other job of their type may be due."""
    created = await engine.create([a_new_job(**fields) for _ in range(jobs)])
    answer = await asked(engine, jobs, type=fields.get("type", TYPE), lease_ms=lease_ms)
    assert sorted(job.key for job in answer.jobs) == sorted(one.key for one in created)
    return answer.jobs


async def fail_finally(engine: Engine, *jobs: LeasedJob) -> None:
    """Fail jobs one by one, each for good, so that none comes back."""
    for job in jobs:
        await settled(engine, Failed(job.key, job.attempt, "boom", final=True))


async def failures(engine: Engine, times: int, **fields: Any) -> None:
    """So many counted failures, one after the other."""
    for _ in range(times):
        await fail_finally(engine, *await leased(engine, **fields))


async def standing(engine: Engine, type: str = TYPE) -> tuple[BreakerState, int]:
    """How a type's breaker stands, and how many failures it has counted."""
    info = await info_of(engine, type)
    return info.breaker, info.breaker_failures


async def an_open_breaker(engine: Engine, **said: Any) -> None:
    """A type that three failures have stopped."""
    await a_policy(engine, **RULE, **said)
    await failures(engine, 3)
    assert await standing(engine) == (BreakerState.OPEN, 3)


async def a_half_open_breaker(engine: Engine, clock: VirtualClock, waiting: int = 5) -> list[int]:
    """A type that was stopped a minute ago; the keys of the jobs that wait."""
    await an_open_breaker(engine)
    created = await engine.create([a_new_job() for _ in range(waiting)])
    clock.advance(seconds=60)
    assert await standing(engine) == (BreakerState.HALF_OPEN, 3)
    return [one.key for one in created]


async def a_probe(engine: Engine, *, lease_ms: int = 10 * MINUTE_MS) -> LeasedJob:
    """The one job that a half-open breaker lets through, however many are asked for."""
    [job] = (await asked(engine, 10, lease_ms=lease_ms)).jobs
    return job


@asynccontextmanager
async def another(engine: Engine) -> AsyncIterator[Engine]:
    """A further engine on the same store, as another process has one."""
    opened = engine.fresh()
    await opened.open()
    try:
        yield opened
    finally:
        await opened.close()
