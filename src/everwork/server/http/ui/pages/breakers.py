"""Breakers: which types stopped themselves because their jobs failed in a row, and until when."""

from __future__ import annotations

from typing import Final, NamedTuple

from everwork.codec.json import decode_policy
from everwork.core.breaker import BreakerState, CircuitBreaker
from everwork.core.queries import TypeInfo
from everwork.core.states import State
from everwork.server.http.ui.page import Action, Page, View
from everwork.server.http.ui.visit import Visit

_ORDER: Final = {BreakerState.OPEN: 0, BreakerState.HALF_OPEN: 1, BreakerState.CLOSED: 2}
ROWS_MAX: Final = 500


class Row(NamedTuple):
    """A breaker: its type, its rule if the policy has one, and how many jobs wait."""

    info: TypeInfo
    rule: CircuitBreaker | None
    pending: int

    @property
    def is_closed(self) -> bool:
        """Whether jobs of the type start as usual."""
        return self.info.breaker is BreakerState.CLOSED


async def show(visit: Visit) -> View:
    """The types that have a breaker, the open ones first."""
    rows = []
    for view in await visit.admin.types():
        rule = None if view.info.policy is None else decode_policy(view.info.policy).breaker
        if rule is not None or view.info.breaker is not BreakerState.CLOSED:
            rows.append(Row(view.info, rule, view.counts[State.PENDING]))
    rows.sort(key=lambda row: (_ORDER[row.info.breaker], row.info.type))
    stopped = [row for row in rows if not row.is_closed]
    held = sum(row.pending for row in stopped)
    context = {"rows": rows[:ROWS_MAX], "all": len(rows), "stopped": len(stopped), "held": held}
    return View("breakers.html", context)


PAGES = (Page("/ui/breakers", show),)
ACTIONS: tuple[Action, ...] = ()
