"""Breakers: which types stopped themselves because their jobs failed in a row, and until when."""

from __future__ import annotations

from typing import NamedTuple

from everwork.core.breaker import BreakerState, CircuitBreaker
from everwork.core.states import State
from everwork.engines.codec import decode_policy
from everwork.engines.values import TypeInfo
from everwork.server.http.ui.pages import Action, Page, View
from everwork.server.http.ui.visit import Visit

_ORDER = {BreakerState.OPEN: 0, BreakerState.HALF_OPEN: 1, BreakerState.CLOSED: 2}


class Row(NamedTuple):
    """A breaker: its type, its rule if the policy has one, and how many jobs wait."""

    info: TypeInfo
    rule: CircuitBreaker | None
    pending: int


async def show(visit: Visit) -> View:
    """The types that have a breaker, the open ones first."""
    rows = []
    for view in await visit.administration.types():
        rule = None if view.info.policy is None else decode_policy(view.info.policy).breaker
        if rule is not None or view.info.breaker is not BreakerState.CLOSED:
            rows.append(Row(view.info, rule, view.counts[State.PENDING]))
    rows.sort(key=lambda row: (_ORDER[row.info.breaker], row.info.type))
    return View("breakers.html", {"rows": rows})


PAGES = (Page("/ui/breakers", show),)
ACTIONS: tuple[Action, ...] = ()
