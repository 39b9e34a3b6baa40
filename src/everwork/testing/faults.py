"""Faults that a test can inject between a handler and the store."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from everwork.core import checks
from everwork.exceptions import InvalidInput
from everwork.testing.store import Refusals

TIMES_MAX = 1_000_000


class Fault(Enum):
    """What goes wrong with an attempt after its handler has ended; each fault is named like its method of a stage."""

    CRASH_BEFORE_SETTLE = "crash_before_settle"
    CRASH_AFTER_SETTLE = "crash_after_settle"
    DUPLICATE_DELIVERY = "duplicate_delivery"
    LOSE_LEASE = "lose_lease"


class PlannedFault:
    """A fault that will happen a given number of times, to attempts of one type or of any type."""

    __slots__ = ("fault", "left", "type")

    def __init__(self, fault: Fault, type: str | None, times: int) -> None:
        self.fault = fault
        self.type = type
        self.left = times

    def __str__(self) -> str:
        what = "" if self.type is None else repr(self.type)
        return f"{self.fault.value}({what}), {self.left} more"


class FaultPlan:
    """The requested faults that have not happened yet, in order."""

    def __init__(self) -> None:
        self.left: list[PlannedFault] = []
        self.refusals = Refusals()

    def add(self, fault: Fault, type: str | None, times: int, known: Collection[str]) -> None:
        """Request a fault. A type without a handler is refused, because the fault would never happen."""
        if type is not None and type not in known:
            raise InvalidInput("type", f"must be one of {', '.join(sorted(known))}, not {checks.shown(type)}")
        self.left.append(PlannedFault(fault, type, checks.whole_number("times", times, 1, TIMES_MAX)))

    def take(self, type: str) -> Fault | None:
        """The fault for the next attempt of a type."""
        planned = next((one for one in self.left if one.type in (None, type)), None)
        if planned is None:
            return None
        planned.left -= 1
        if not planned.left:
            self.left.remove(planned)
        return planned.fault

    def require_none_left(self) -> None:
        """Fail if a requested fault has not happened, because the test did not test what it claims to."""
        left = [str(planned) for planned in self.left]
        if self.refusals.left:
            left.append(f"engine_away(), {self.refusals.left} more")
        if left:
            raise AssertionError(f"requested faults that never happened: {'; '.join(left)}")
