"""Servers that a test may stop, fill and misconfigure, and engines on them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from everwork.engines.redis.engine import RedisEngine
from tests.servers import RedisServer, redis_server
from tests.stores import VirtualClock, url_of


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server of the test's own."""
    with redis_server() as started:
        yield started


@asynccontextmanager
async def opened(url: str, clock: VirtualClock | None = None) -> AsyncIterator[RedisEngine]:
    """An open engine."""
    engine = RedisEngine.from_url(url, clock=clock)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


@pytest.fixture
def engine_name() -> str:
    """These tests run on Redis, whatever engines were chosen for the others."""
    return "redis"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A fresh namespace on the server that all tests share."""
    return url_of("redis", tmp_path)


@pytest.fixture
async def engine(url: str, clock: VirtualClock) -> AsyncIterator[RedisEngine]:
    """An engine on a fresh namespace."""
    async with opened(url, clock) as one:
        yield one
