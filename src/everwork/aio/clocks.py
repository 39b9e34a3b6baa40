"""This host's clocks: the wall clock, which can be set, and the boot clock, which only goes forward."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

Seconds = Callable[[], float]
"""A monotonic clock."""

JUMP_MS: Final = 2_000
"""Gradual adjustment moves the clock that can be set by less than this in a second; more is a jump."""


def host_clock_ms() -> int:
    """The wall clock's time."""
    return time.time_ns() // 1_000_000


def boot_clock_ms() -> int:
    """The time since the host booted, including time in suspend; setting the wall clock does not change it."""
    # CLOCK_BOOTTIME exists only on Linux. On macOS, CLOCK_MONOTONIC keeps running while the host is suspended.
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1_000_000


@cache
def boot_id() -> str:
    """The id of this boot; values of `boot_clock_ms` can be compared only within one boot. Empty if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""
