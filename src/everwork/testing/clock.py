"""A clock that stands still until a test moves it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from everwork.codec.new_job import instant
from everwork.core import checks
from everwork.core.limits import INSTANT_MS_MAX
from everwork.exceptions import InvalidInput

START: Final = datetime(2026, 1, 5, tzinfo=UTC)
"""Where every rehearsal begins, so that each run of a test is like the last: a Monday, at midnight."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class VirtualClock:
    """An engine's clock; `Everwork(url, clock=VirtualClock())` takes one, too. It never goes back."""

    def __init__(self, start: datetime = START) -> None:
        self.start_ms = self.now_ms = instant("start", start)

    def __call__(self) -> int:
        """The instant in milliseconds UTC, as engines ask for it."""
        return self.now_ms

    def now(self) -> datetime:
        """The instant as a datetime, for `run_at`, and for code under test that takes its time from somebody."""
        return _EPOCH + timedelta(milliseconds=self.now_ms)

    def advance(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Move on, and nothing else: nobody sweeps, no trigger fires. See `Stage.advance`."""
        self.move_to(self.now_ms + span_ms(days=days, hours=hours, minutes=minutes, seconds=seconds))

    def move_to(self, instant_ms: int) -> None:
        """Move on to an instant."""
        if not self.now_ms <= instant_ms <= INSTANT_MS_MAX:
            raise InvalidInput("clock", "must not be set back, nor beyond the year 9999")
        self.now_ms = instant_ms


def span_ms(*, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> int:
    """A span of time; one that would lead back is refused."""
    given = {"days": days, "hours": hours, "minutes": minutes, "seconds": seconds}
    for name, value in given.items():
        checks.number(name, value, 0, INSTANT_MS_MAX / 1000)
    return round(((days * 24 + hours) * 60 + minutes) * 60_000 + seconds * 1000)
