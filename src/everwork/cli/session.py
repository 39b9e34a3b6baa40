"""A command's way to the engine: which one, whether it may be created, and a service that is closed again."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

import structlog

from everwork.engines.open import open_engine
from everwork.engines.sqlite.place import Place
from everwork.exceptions import BadConfiguration, EngineUnavailable
from everwork.service.service import JobService

T = TypeVar("T")
DEFAULT_URL: Final = "sqlite:///everwork.db"


def use(url: str | None, work: Callable[[JobService], Awaitable[T]], *, creates: bool = False) -> T:
    """Do work with an open service. Only a command that `creates` may bring a new file into being."""
    url = DEFAULT_URL if url is None else url
    if urlsplit(url).scheme == "sqlite":
        _check_file(Place.from_url(url), creates=creates)
    # Standard output is for the answer, whatever happens.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    return asyncio.run(_use(url, work))


async def _use(url: str, work: Callable[[JobService], Awaitable[T]]) -> T:
    service = JobService(open_engine(url), f"cli-{os.getpid()}")
    await service.open(upkeep=False)
    try:
        return await work(service)
    finally:
        await service.close()


def _check_file(place: Place, *, creates: bool) -> None:
    if place.in_memory:
        raise BadConfiguration("engine URL: a store in memory would end with this command; name a file")
    if not creates and not Path(place.path).exists():
        raise EngineUnavailable(
            f"engine URL: there is no file {place.path}; create a first job (everwork jobs create TYPE) or name "
            "another engine (--engine)"
        )
