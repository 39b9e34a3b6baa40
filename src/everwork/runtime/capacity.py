"""How much a handler may have here, and of which of its places it is asked for.

A worker has several places and one room for all of them. What is asked for never exceeds the room, so the asks take
turns when there are more places than room.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from everwork.core.limits import ACTIVATE_MAX
from everwork.runtime.handler import Handler, QueueKey

PREFETCH_SECONDS: Final = 0.1
"""Jobs are fetched ahead only if they will begin about this soon: elsewhere somebody may be free for them."""
ROOM_MAX: Final = 2**31
"""More than any room: no other bound."""
AMPLE: Final = 4
"""With so much room per place, each is asked every time."""
DRY_TURNS: Final = 8
"""With less, and quick jobs, a place that had nothing is asked every so many turns while others have work."""


class QueueState:
    """A place that jobs come from, as the last asks have found it."""

    __slots__ = ("emptied_in", "is_dry", "place", "turn")

    def __init__(self, place: QueueKey) -> None:
        self.place = place
        self.is_dry = False
        """The last ask brought nothing."""
        self.emptied_in = -1
        """The round of asks in which it gave less than it was asked for."""
        self.turn = 0
        """When it is asked next, if there is not room enough to ask all every time."""


class FetchRequest(NamedTuple):
    """So many jobs are wanted from a place."""

    room: Capacity
    well: QueueState
    limit: int


class Capacity:
    """The room of one handler: how many jobs are here, how long one takes, and where they come from."""

    __slots__ = ("_turn", "concurrency", "handler", "here", "is_off", "seconds", "wells")

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.concurrency = handler.concurrency
        self.wells = [QueueState(place) for place in handler.places]
        self.here = 0
        self.is_off = False
        self.seconds: float | None = None
        self._turn = 0

    @property
    def left(self) -> int:
        """How many more jobs may be leased: free runners, and what they will get to soon."""
        if self.is_off:
            return 0
        ahead = 0
        if self.seconds is not None:
            ahead = int(self.concurrency * min(1.0, PREFETCH_SECONDS / max(self.seconds, 1e-6)))
        return self.concurrency + ahead - self.here

    @property
    def _is_quick(self) -> bool:
        """Whether asking in vain costs about as much as a job."""
        return self.seconds is not None and self.seconds < PREFETCH_SECONDS

    def learn(self, seconds: float) -> None:
        """Take the duration of attempts that have just ended into account."""
        self.seconds = seconds if self.seconds is None else 0.7 * self.seconds + 0.3 * seconds

    def asks(self, most: int, round: int) -> list[FetchRequest]:
        """What to ask for now: together never more than there is room for, nor than `most`."""
        left, wells = min(self.left, most), self.wells
        if left <= 0:
            return []
        if len(wells) == 1:
            return [FetchRequest(self, wells[0], min(left, ACTIVATE_MAX))]
        self._turn += 1
        if left < AMPLE * len(wells):
            wells = self._worth_asking(round)[:left]
        return self._shared_out(left, wells)

    def _worth_asking(self, round: int) -> list[QueueState]:
        """While some place has work, the dry ones wait for their turn: what they are asked for, another may have."""
        if any(not well.is_dry and well.emptied_in != round for well in self.wells):
            due = [well for well in self.wells if not well.is_dry or well.turn <= self._turn]
            return sorted(due, key=lambda well: well.turn)
        return sorted(self.wells, key=lambda well: (well.emptied_in == round, well.turn))

    def _shared_out(self, left: int, wells: Sequence[QueueState]) -> list[FetchRequest]:
        """One from each place, the rest from those that gave something last time."""
        wet = {well for well in wells if not well.is_dry} or set(wells)
        share, more = divmod(left - len(wells), len(wet))
        asks = []
        for well in wells:
            limit = 1
            if well in wet:
                limit += share + (1 if more > 0 else 0)
                more -= 1
            asks.append(FetchRequest(self, well, min(limit, ACTIVATE_MAX)))
        return asks

    def note(self, ask: FetchRequest, got: int, round: int) -> None:
        """Remember what an ask has brought."""
        well = ask.well
        self.here += got
        well.is_dry = got == 0
        well.emptied_in = round if got < ask.limit else -1
        well.turn = self._turn + (DRY_TURNS if got == 0 and self._is_quick else 1)

    def may_have_more(self, round: int) -> bool:
        """Whether there is room, and a place that has not been emptied in this round of asks."""
        return self.left > 0 and any(well.emptied_in != round for well in self.wells)
