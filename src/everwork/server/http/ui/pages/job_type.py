"""Pages: one type with its charts, breaker, limits and policy; and all breakers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from everwork.codec.json import decode_policy
from everwork.core import checks
from everwork.core.breaker import BreakerState, CircuitBreaker
from everwork.core.queries import JobFilter, TypeInfo
from everwork.core.states import State
from everwork.exceptions import InvalidInput, NotFound
from everwork.server.http.ui.address import address
from everwork.server.http.ui.chart import share
from everwork.server.http.ui.flow import RANGES, charts, range_of
from everwork.server.http.ui.page import Action, Done, Page, View
from everwork.server.http.ui.pages.dead_letters import recent_failures
from everwork.server.http.ui.pages.policy import policy_card
from everwork.server.http.ui.pages.types import (
    RATE_MINUTES,
    badge_of,
    failing_to_start,
    oldest_of,
    own_sources,
    rates,
    without_worker,
)
from everwork.server.http.ui.render import duration
from everwork.server.http.ui.visit import Visit
from everwork.service.admin import Admin, TypeView
from everwork.service.fleet.entries import WorkerView
from everwork.service.fleet.fleet import types_taken

DUE_SCAN_MAX: Final = 100
"""How many pending jobs are scanned to count the due ones: engines count pending jobs, but not due ones."""
OPEN_SECONDS: Final = (60, 600, 3_600, 86_400)
"""The choices for opening a breaker manually."""
BREAKER_ROWS_MAX: Final = 500
_BREAKER_ORDER: Final = {BreakerState.OPEN: 0, BreakerState.HALF_OPEN: 1, BreakerState.CLOSED: 2}


class BreakerRow(NamedTuple):
    """A breaker: its type, its rule if the policy has one, and the number of pending jobs."""

    info: TypeInfo
    rule: CircuitBreaker | None
    pending: int

    @property
    def is_closed(self) -> bool:
        """Whether jobs of the type may start."""
        return self.info.breaker is BreakerState.CLOSED


async def show(visit: Visit) -> View:
    """Show a type."""
    type = visit.param("name") or ""
    views = await visit.admin.types()
    view = next((one for one in views if one.info.type == type), None)
    if view is None:
        raise NotFound("type", type)
    drawn, failed, workers, due, processes = await asyncio.gather(
        charts(visit, range_of(visit), type),
        recent_failures(visit, type),
        visit.admin.workers(),
        _due(visit, view),
        visit.admin.processes(),
    )
    served = types_taken((one.entry for one in processes), workers)
    context = {
        "worker": own_sources(workers).get(type),
        "range": range_of(visit),
        "ranges": [(one, visit.url(range=one.name)) for one in RANGES],
        "charts": drawn,
        "failures": failed,
        "due": due,
        "workers": [one for one in workers if type in one.entry.types],
        "takers": sorted(Counter(one.entry.kind for one in processes if type in one.entry.types).items()),
        "groups": await _groups(visit, type, view.info.groups),
        "durations": [(seconds, duration(seconds * 1000)) for seconds in OPEN_SECONDS],
    }
    figures = await _figures(visit, view, workers, served)
    return View("type.html", context | figures | policy_card(type, view.info.policy))


async def show_breakers(visit: Visit) -> View:
    """List the types that have a breaker, open ones first."""
    rows = []
    for view in await visit.admin.types():
        rule = None if view.info.policy is None else decode_policy(view.info.policy).breaker
        if rule is not None or view.info.breaker is not BreakerState.CLOSED:
            rows.append(BreakerRow(view.info, rule, view.counts[State.PENDING]))
    rows.sort(key=lambda row: (_BREAKER_ORDER[row.info.breaker], row.info.type))
    stopped = [row for row in rows if not row.is_closed]
    held = sum(row.pending for row in stopped)
    context = {"rows": rows[:BREAKER_ROWS_MAX], "all": len(rows), "stopped": len(stopped), "held": held}
    return View("breakers.html", context)


async def open_breaker(visit: Visit) -> Done:
    """Open a breaker manually."""
    type = visit.required("type")
    seconds = await visit.admin.open_breaker(type, _seconds(visit.required("seconds")))
    return Done(f"The breaker of {type} is open for {duration(seconds * 1000)}; after that, one job runs as a probe.")


async def reset_breaker(visit: Visit) -> Done:
    """Close a breaker."""
    type = visit.required("type")
    was_open = await visit.admin.reset_breaker(type)
    return Done(f"The breaker of {type} is closed." if was_open else f"The breaker of {type} was already closed.")


async def delete(visit: Visit) -> Done:
    """Delete a type that is not in use."""
    type = visit.required("type")
    deleted = await visit.admin.delete_type(type)
    return Done(f"{type} was deleted, with {deleted:,} finished job{'s' * (deleted != 1)}.", address("/types"))


# Figures ------------------------------------------------------------------------------------------------


async def _figures(
    visit: Visit, view: TypeView, workers: Sequence[WorkerView], served: frozenset[str]
) -> dict[str, Any]:
    sampler, type = visit.context.sampler, view.info.type
    sample, span = sampler.latest or await sampler.fresh(), sampler.span(RATE_MINUTES, type)
    running, is_broken = view.counts[State.PROCESSING], type in failing_to_start(sample, workers)
    has_no_worker = type in without_worker(sample, [type] if running else served)
    return {
        "info": view.info,
        "badge": badge_of(view.info, has_no_worker=has_no_worker, is_broken=is_broken),
        "totals": {state.label: view.counts[state] for state in State},
        "oldest_ms": oldest_of(sample).get(type),
        "per_minute": rates(sampler)(type),
        "p95": (span.wait_ms(0.95), span.execution_ms(0.95)),
        "full": share(running, decode_policy(view.info.policy).max_running or 0),
    }


async def _due(visit: Visit, view: TypeView) -> int | None:
    """How many pending jobs are due; None if there are too many to scan, or the visitor may not see jobs."""
    if view.counts[State.PENDING] > DUE_SCAN_MAX or not visit.may_see_jobs:
        return None
    filter_ = JobFilter(type=view.info.type, states=frozenset([State.PENDING]), due=True)
    page = await visit.jobs.find_step(filter_, DUE_SCAN_MAX)
    return len(page.jobs) if page.next is None else None


async def _groups(visit: Visit, type: str, names: Sequence[str]) -> Sequence[Any]:
    return [one for one in await visit.admin.groups() if one.type == type] if names else []


# Typed values --------------------------------------------------------------------------------------------


def _seconds(text: str) -> float:
    seconds = checks.typed(text.strip())
    if isinstance(seconds, str):
        raise InvalidInput("seconds", f"must be a number of seconds, not {checks.shown(text)}")
    return seconds


PAGES = (Page("/type", show), Page("/breakers", show_breakers))
ACTIONS = (
    Action("/type/breaker-open", open_breaker, Admin.open_breaker, confirms=True),
    Action("/type/breaker-reset", reset_breaker, Admin.reset_breaker),
    Action("/type/delete", delete, Admin.delete_type, confirms=True),
)
