"""Where a claim begins: at the front of the ready index, or behind the last job claimed.

Index entries of claimed jobs stay until a vacuum may remove them, which a snapshot held open by anybody (a backup, a
forgotten transaction) forbids. A claim from the front then walks over all of them. When that gets slow, claims begin
behind the last one's end, and the front gets a tenth of the time: jobs that stand before the mark (retries, higher
priorities) wait a little, at most a second, and nothing changes in normal times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DEAD_MAX: Final = 5_000
"""So many dead entries before the first live one are not worth a thought."""
FRONT_WAIT_MS_PER_DEAD: Final = 0.0025
"""Ten times what it takes to step over one."""
FRONT_WAIT_MS_MAX: Final = 1_000

Place = tuple[int, int, int]
"""(rank, run_at_ms, key): the order of G9."""


@dataclass(slots=True)
class Mark:
    """What one claimer remembers of one queue: the last lane it visited, and the end of its last straight claim."""

    lane: int = 0
    place: Place | None = None
    front_from: float = 0.0
    """The instant, on the loop's clock in milliseconds, from which the front is looked at again."""

    def begin(self, now: float) -> Place | None:
        """Where the next claim begins; None: at the front."""
        return self.place if now < self.front_from else None

    def claimed(self, begun: Place | None, end: Place | None, dead: int, now: float) -> None:
        """Learn from a claim: where it began and ended, and how many entries of no use it has read."""
        if end is not None:
            self.place = end
        if begun is None and self.place is not None and dead > DEAD_MAX:
            self.front_from = now + min(dead * FRONT_WAIT_MS_PER_DEAD, FRONT_WAIT_MS_MAX)

    def front_in_ms(self, now: float) -> int | None:
        """How long until the front is looked at again; None if it always is."""
        return round(self.front_from - now) + 1 if now < self.front_from else None
