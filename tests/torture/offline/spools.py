"""The spools of a run, as they are found at its end: what is left in them, and how the rest is delivered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Final

from everwork import Spool
from everwork.engines.contract import Engine
from everwork.service.service import JobService
from everwork.spool.contents import Entry, entries
from everwork.spool.file import SpoolFile
from everwork.spool.settings import Offline
from tests.torture.verdict import Spooled

SUFFIX: Final = ".spool"
_ENTRIES_MAX: Final = 1_000_000
_SECONDS_MAX: Final = 60
_LOOK_SECONDS: Final = 0.01


def spools_in(folder: Path) -> list[Path]:
    """The spools of a run."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def is_waiting(path: Path) -> bool:
    """Whether a spool holds something that is to be delivered."""
    with closing(SpoolFile(Spool(str(path)), None)) as file:
        return file.has_waiting()


def left_in(paths: Iterable[Path]) -> list[Spooled]:
    """What spools still hold."""
    left = []
    for path in paths:
        with closing(SpoolFile(Spool(str(path)), None)) as file:
            left += [_spooled(path.name, entry) for entry in entries(file, _ENTRIES_MAX)]
    return left


def _spooled(spool: str, entry: Entry) -> Spooled:
    if entry.is_outcome:
        key, _, attempt = entry.id.partition("/")
        return Spooled(spool, int(key), int(attempt), entry.reason)
    return Spooled(spool, int(entry.id.rpartition("-")[2]), 0, entry.reason)


async def delivering(engine: Engine, path: Path, url: str) -> JobService:
    """A service that has delivered what waited in a spool; the caller closes it."""
    service = JobService(engine, "courier", offline=Offline.of(str(path), url))
    await service.open(upkeep=False)
    async with asyncio.timeout(_SECONDS_MAX):
        while is_waiting(path):  # noqa: ASYNC110 - no one tells
            await asyncio.sleep(_LOOK_SECONDS)
    return service
