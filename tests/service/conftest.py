"""The service on a fresh store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from everwork.engines.contract import Engine
from everwork.service.service import JobService


@pytest.fixture
async def service(engine: Engine) -> AsyncIterator[JobService]:
    """The service of the test's engine, without upkeep."""
    made = JobService(engine, "holder")
    yield made
    await made.close()
