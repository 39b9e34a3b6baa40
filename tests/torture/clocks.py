"""Clocks that jump. All processes share the clock of their host; a server can also have a separate, wrong clock.

`EVERWORK_TORTURE_CLOCK` names a file with the offset of the host's clock, which histories and SQLite use.
`EVERWORK_TORTURE_OWN_CLOCK` names a file with the offset of a process's own clock: PostgreSQL and Redis use the
clock of their own server, so this offset must not affect jobs.
"""

from __future__ import annotations

import mmap
import os
import time
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Final

from everwork.aio import clocks

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
        """Make the clock jump forward or back."""
        self._offset[:_BYTES] = (self.offset_ms + ms).to_bytes(_BYTES, "little", signed=True)

    def time_ns(self) -> int:
        """What `time.time_ns` would return."""
        return time.time_ns() + self.offset_ms * 1_000_000


@cache
def clock_at(path: str) -> JumpingClock:
    """The clock whose offset is in a file."""
    return JumpingClock(Path(path))


def host_clock_ms() -> int:
    """The host's current time, in milliseconds UTC."""
    path = os.environ.get(HOST)
    return (clock_at(path).time_ns() if path else time.time_ns()) // 1_000_000


def follow() -> None:
    """Make this process use the clocks in its environment."""
    followed = [clock_at(path) for path in map(os.environ.get, (HOST, OWN)) if path]

    def time_ns() -> int:
        return time.time_ns() + sum([clock.offset_ms for clock in followed]) * 1_000_000

    # Every reading of the clock goes through this module.
    vars(clocks)["time"] = SimpleNamespace(**{**vars(time), "time_ns": time_ns})
