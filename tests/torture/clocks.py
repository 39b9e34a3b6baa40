"""Clocks that jump. All processes share the clock of their host; a server can also have a wrong clock of its own.

`EVERWORK_TORTURE_CLOCK` names a file with the offset of the host's clock, which histories and SQLite use.
`EVERWORK_TORTURE_OWN_CLOCK` names a file with the offset of everything else in a process: PostgreSQL and Redis use the
clock of their own server, so this offset must not affect jobs.
"""

from __future__ import annotations

import mmap
import os
import time
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

HOST: Final = "EVERWORK_TORTURE_CLOCK"
OWN: Final = "EVERWORK_TORTURE_OWN_CLOCK"
_BYTES: Final = 8


class JumpingClock:
    """A clock whose offset is in a file, shared by all processes that read it."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_BYTES))
        with path.open("r+b") as file:
            self._offset = mmap.mmap(file.fileno(), _BYTES)

    @property
    def offset_ms(self) -> int:
        """The offset."""
        return int.from_bytes(self._offset[:_BYTES], "little", signed=True)

    def jump(self, ms: int) -> None:
        """Jump forward or back."""
        self._offset[:_BYTES] = (self.offset_ms + ms).to_bytes(_BYTES, "little", signed=True)

    def time_ns(self) -> int:
        """What `time.time_ns` would return."""
        return time.time_ns() + self.offset_ms * 1_000_000


@cache
def clock_at(path: str) -> JumpingClock:
    """The clock of a file."""
    return JumpingClock(Path(path))


def host_clock_ms() -> int:
    """The host's instant, in milliseconds UTC."""
    path = os.environ.get(HOST)
    return (clock_at(path).time_ns() if path else time.time_ns()) // 1_000_000


def follow() -> None:
    """Make this process use the clocks in its environment."""
    if path := os.environ.get(HOST):
        from everwork.engines.sqlite.store import opened  # noqa: PLC0415 - needed here only

        _replace(opened, path)
    if path := os.environ.get(OWN):
        from everwork.service.access import keys  # noqa: PLC0415
        from everwork.service.fleet import clients  # noqa: PLC0415
        from everwork.spool import entries  # noqa: PLC0415

        for module in (keys, clients, entries):
            _replace(module, path)


def _replace(module: ModuleType, path: str) -> None:
    named: dict[str, Any] = {**vars(time), "time_ns": clock_at(path).time_ns}
    vars(module)["time"] = SimpleNamespace(**named)
