"""The table of a process's leased attempts, in memory that it shares with its parent.

The child writes its attempts; the parent extends their leases, flags attempts that were cancelled or lost their lease,
and reads the remaining ones after the child has died. A slot's state is written last when the slot is filled and first
when it is freed, so a reader never sees a half-written slot. A flag is one byte that includes the use number of its
slot, so that a late flag does not hit the slot's next attempt. Times are CLOCK_MONOTONIC, shared by the whole machine.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from everwork.runtime.attempt import Stop

_HEADER: Final = struct.Struct("<ddQIB")
_SLOT: Final = struct.Struct("<qqdddHBBB")
_TIME: Final = struct.Struct("<d")
_KEPT_OFFSET: Final = 32
_BEGUN_OFFSET: Final = 24
_STATE_OFFSET: Final = 42
_FLAG_OFFSET: Final = 43
_USE_OFFSET: Final = 44
_USES: Final = 64
HEADER_BYTES: Final = 64
SLOT_BYTES: Final = 48
WORKERS_MAX: Final = 1_000
_SLOTS_OFFSET: Final = HEADER_BYTES + WORKERS_MAX


class Phase(IntEnum):
    """The phase of a process."""

    STARTING = 0
    RUNNING = 1
    STOPPING = 2


class SlotState(IntEnum):
    """The state of a leased attempt."""

    FREE = 0
    WAITING = 1
    BEGUN = 2
    HUNG = 3
    """Still running past its timeout; its outcome is already reported."""
    ENDED = 4
    """Its handler has ended and its outcome is reported, but not yet settled."""


class Entry(NamedTuple):
    """A leased attempt in the table."""

    slot: int
    key: int
    attempt: int
    leased_at: float
    begun_at: float
    timeout: float
    worker: int
    state: SlotState
    use: int = 0
    """Distinguishes this use of the slot from earlier and later ones."""

    def is_overdue(self, now: float) -> bool:
        """Whether the attempt has run longer than its timeout."""
        return self.state is SlotState.BEGUN and now > self.begun_at + self.timeout


class Vitals(NamedTuple):
    """Signs of life: when each of the child's two loops last ran, and how many attempts have ended and are held."""

    engine_at: float
    handlers_at: float
    ended: int
    held: int
    phase: Phase


_FLAGS: Final = {1: Stop.CANCELLED, 2: Stop.LOST}
_NUMBERS: Final = {stop: number for number, stop in _FLAGS.items()}


def bytes_for(slots: int) -> int:
    """The size of a table."""
    return _SLOTS_OFFSET + slots * SLOT_BYTES


class Ledger:
    """One process's table. Each side has its own instance over the same memory."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self.slots = (len(memory) - _SLOTS_OFFSET) // SLOT_BYTES
        self._free = list(range(self.slots - 1, -1, -1))
        self._ended = 0

    # The child's side: the engine's thread, except for `begin`, `end` and `turn_handlers`. ---------------------

    @property
    def free(self) -> int:
        """How many more attempts fit."""
        return len(self._free)

    def enter(self, key: int, attempt: int, *, leased_at: float, timeout: float, worker: int) -> int:
        """Write a leased attempt; returns its slot."""
        slot = self._free.pop()
        at = _SLOTS_OFFSET + slot * SLOT_BYTES
        use = (self._memory[at + _USE_OFFSET] + 1) % _USES
        _SLOT.pack_into(self._memory, at, key, attempt, leased_at, 0.0, timeout, worker, 0, 0, use)
        self._memory[at + _STATE_OFFSET] = 1
        return slot

    def begin(self, slot: int, now: float) -> None:
        """Record that the attempt's handler has started."""
        at = _SLOTS_OFFSET + slot * SLOT_BYTES
        _TIME.pack_into(self._memory, at + _BEGUN_OFFSET, now)
        self._memory[at + _STATE_OFFSET] = 2

    def mark_hung(self, slot: int) -> None:
        """Record that the attempt's outcome is reported, but its handler has not ended."""
        at = _SLOTS_OFFSET + slot * SLOT_BYTES + _STATE_OFFSET
        if self._memory[at] == 2:
            self._memory[at] = 3

    def end(self, slot: int) -> None:
        """Record that the attempt's handler has ended; its outcome remains to be settled."""
        self._memory[_SLOTS_OFFSET + slot * SLOT_BYTES + _STATE_OFFSET] = 4

    def leave(self, slot: int) -> None:
        """Free the slot of a settled attempt. An attempt that never started does not count as ended."""
        at = _SLOTS_OFFSET + slot * SLOT_BYTES + _STATE_OFFSET
        self._ended += self._memory[at] > 1
        self._memory[at] = 0
        self._free.append(slot)

    def flag_of(self, slot: int) -> Stop | None:
        """The parent's reason for stopping an attempt, if it has requested a stop."""
        at = _SLOTS_OFFSET + slot * SLOT_BYTES
        why, use = divmod(self._memory[at + _FLAG_OFFSET], _USES)
        return _FLAGS.get(why) if use == self._memory[at + _USE_OFFSET] else None

    @property
    def kept_at(self) -> float:
        """When the parent last checked the leases of this process and extended those due; 0 if it has not yet."""
        return float(_TIME.unpack_from(self._memory, _KEPT_OFFSET)[0])

    def turn_engine(self, now: float) -> None:
        """Record that the engine's loop is running, and how many attempts have ended and are held."""
        struct.pack_into("<d", self._memory, 0, now)
        struct.pack_into("<QI", self._memory, 16, self._ended, self.slots - len(self._free))

    def turn_handlers(self, now: float) -> None:
        """Record that the handlers' loop is running."""
        struct.pack_into("<d", self._memory, 8, now)

    def enter_phase(self, phase: Phase) -> None:
        """Record the phase of the process."""
        self._memory[28] = int(phase)

    def is_off(self, worker: int) -> bool:
        """Whether the parent has disabled a worker."""
        return self._memory[HEADER_BYTES + worker] != 0

    # The parent's side --------------------------------------------------------------------------

    def vitals(self) -> Vitals:
        """The child's signs of life."""
        engine_at, handlers_at, ended, held, phase = _HEADER.unpack_from(self._memory, 0)
        return Vitals(engine_at, handlers_at, ended, held, Phase(phase))

    def entries(self) -> Iterator[Entry]:
        """The attempts that the child holds."""
        table = bytes(self._memory[_SLOTS_OFFSET : _SLOTS_OFFSET + self.slots * SLOT_BYTES])
        for slot, state in enumerate(table[_STATE_OFFSET::SLOT_BYTES]):
            if state:
                *values, _, _, use = _SLOT.unpack_from(table, slot * SLOT_BYTES)
                yield Entry._make((slot, *values, SlotState(state), use))

    def flag(self, entry: Entry, why: Stop) -> bool:
        """Flag an attempt as cancelled or lost; returns whether the flag is new. A reused slot is left unchanged."""
        at = _SLOTS_OFFSET + entry.slot * SLOT_BYTES
        # An entry that was read while the slot was reused may have the key of one attempt and the use of another.
        is_here = _SLOT.unpack_from(self._memory, at)[:2] == (entry.key, entry.attempt)
        flag = _NUMBERS[why] * _USES + entry.use
        if not is_here or self._memory[at + _FLAG_OFFSET] == flag:
            return False
        self._memory[at + _FLAG_OFFSET] = flag
        return True

    def keep(self, now: float) -> None:
        """Record that the leases of the process have been checked, and extended where due."""
        _TIME.pack_into(self._memory, _KEPT_OFFSET, now)

    def switch(self, worker: int, is_on: bool) -> None:
        """Enable or disable a worker."""
        self._memory[HEADER_BYTES + worker] = 0 if is_on else 1
