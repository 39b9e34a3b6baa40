"""A command's way to the engine: which one, whether it may be created, and a service that is closed again."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from everwork.engines.open import open_engine
from everwork.exceptions import BadConfiguration
from everwork.service.service import JobService

T = TypeVar("T")
DEFAULT_URL: Final = "sqlite:///everwork.db"


def use(url: str | None, work: Callable[[JobService], Awaitable[T]], *, creates: bool = False) -> T:
    """Do work with an open service. Only a command that `creates` may bring a new file into being."""
    url = DEFAULT_URL if url is None else url
    if url.partition("?")[0].endswith(":memory:"):
        raise BadConfiguration("engine URL: a store in memory would end with this command; name a file")
    # Standard output is for the answer, whatever happens.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="everwork: %(message)s")
    return asyncio.run(_use(url, work, creates=creates))


async def _use(url: str, work: Callable[[JobService], Awaitable[T]], *, creates: bool) -> T:
    service = JobService(open_engine(url), f"cli-{os.getpid()}")
    await service.open(upkeep=False, create=creates)
    try:
        return await work(service)
    finally:
        await service.close()
