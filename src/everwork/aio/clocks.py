"""This host's clocks: the one that people and time services set, and the one that only goes forward."""

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
    """The time by the clock that can be set."""
    return time.time_ns() // 1_000_000


def boot_clock_ms() -> int:
    """The time since the host was started, including suspensions; setting the clock does not change it."""
    # Only Linux has it. On macOS, the monotonic clock goes on while the host is suspended.
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1_000_000


@cache
def boot_id() -> str:
    """Identifies the start of the host: `boot_clock_ms` means nothing after the next one. Empty if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""
