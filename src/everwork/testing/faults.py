"""What a test may let go wrong between a handler and the store."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from everwork.core import checks
from everwork.exceptions import InvalidInput
from everwork.testing.store import Refusals

TIMES_MAX = 1_000_000


class Fault(Enum):
    """What goes wrong with an attempt whose handler has ended; named as the test asks for it."""

    CRASH_BEFORE_SETTLE = "crash_before_settle"
    CRASH_AFTER_SETTLE = "crash_after_settle"
    DUPLICATE_DELIVERY = "duplicate_delivery"
    LOSE_LEASE = "lose_lease"


class Order:
    """A fault that is to happen so many times, to attempts of one type or of any."""

    __slots__ = ("fault", "left", "type")

    def __init__(self, fault: Fault, type: str | None, times: int) -> None:
        self.fault = fault
        self.type = type
        self.left = times

    def __str__(self) -> str:
        what = "" if self.type is None else repr(self.type)
        return f"{self.fault.value}({what}), {self.left} more"


class FaultPlan:
    """The faults that were asked for, in their order, and have not happened yet."""

    def __init__(self) -> None:
        self.left: list[Order] = []
        self.refusals = Refusals()

    def add(self, fault: Fault, type: str | None, times: int, known: Collection[str]) -> None:
        """Ask for a fault; of a type that nobody handles, it would never happen."""
        if type is not None and type not in known:
            raise InvalidInput("type", f"must be one of {', '.join(sorted(known))}, not {checks.shown(type)}")
        self.left.append(Order(fault, type, checks.whole_number("times", times, 1, TIMES_MAX)))

    def take(self, type: str) -> Fault | None:
        """What goes wrong with the next attempt of a type."""
        order = next((one for one in self.left if one.type in (None, type)), None)
        if order is None:
            return None
        order.left -= 1
        if not order.left:
            self.left.remove(order)
        return order.fault

    def require_none_left(self) -> None:
        """A fault that never happened makes a test that cannot fail."""
        left = [str(order) for order in self.left]
        if self.refusals.left:
            left.append(f"engine_away(), {self.refusals.left} more")
        if left:
            raise AssertionError(f"asked for, but never happened: {'; '.join(left)}")
