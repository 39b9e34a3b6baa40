"""list: a job that moves while it is listed is met, and met once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from everwork.core.outcome import Release
from everwork.core.queries import JobFilter
from tests.factories import TYPE, a_pending_job, asked, settled

if TYPE_CHECKING:
    from everwork.engines.contract import Engine

pytestmark = pytest.mark.every_way


async def test_a_job_that_is_leased_and_released_all_the_time_is_listed_once(engine: Engine) -> None:
    job = await a_pending_job(engine)
    listing = asyncio.create_task(lists(engine, 40))
    while not listing.done():
        for leased in (await asked(engine, 1)).jobs:
            await settled(engine, Release(leased.key, leased.attempt))
    assert await listing == [[job.key]] * 40


async def lists(engine: Engine, times: int) -> list[list[int]]:
    """What was listed, time and again."""
    return [[job.key for job in (await engine.find(JobFilter(type=TYPE), 10)).jobs] for _ in range(times)]
