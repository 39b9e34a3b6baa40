"""Warnings about limits that callers have reached: one line a minute for each reason, however many are refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from everwork.logs import get_logger

EVERY_SECONDS: Final = 60.0

log = get_logger("everwork")


class Notices:
    """Logs each event at most once a minute, with the number of times it has happened since its last line."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged_at: dict[str, float] = {}
        self._times: dict[str, int] = {}

    def warn(self, event: str, **facts: object) -> None:
        """Log an event, unless it was logged less than a minute ago; events are constants."""
        times = self._times[event] = self._times.get(event, 0) + 1
        now = self._clock()
        if now - self._logged_at.get(event, -EVERY_SECONDS) >= EVERY_SECONDS:
            self._logged_at[event] = now
            self._times[event] = 0
            log.warning(event, times=times, **facts)
