"""One type of jobs: how it flows, its breaker, its limits and its policy, which may be changed here."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import orjson

from everwork.core.states import State
from everwork.engines.values import JobFilter
from everwork.exceptions import InvalidInput, NotFound
from everwork.server.http.ui.flow import RANGES, charts, range_of
from everwork.server.http.ui.pages import Action, Done, Page, View
from everwork.server.http.ui.render import type_url
from everwork.server.http.ui.texts import pretty
from everwork.server.http.ui.types import RATE_MINUTES, limits_of, oldest_of, policy_rows, state_of
from everwork.server.http.ui.visit import Visit
from everwork.service.administration import TypeView

DEAD_MAX: Final = 5


async def show(visit: Visit) -> View:
    """The page of a type."""
    return await _page(visit, visit.asked("name") or "")


async def set_policy(visit: Visit) -> Done | View:
    """Give a type the policy that was typed in."""
    type, typed = visit.sent("type"), visit.optional("policy") or "{}"
    try:
        await visit.administration.set_policy(type, _object(typed))
    except InvalidInput as error:
        return await _page(visit, type, typed, str(error), 422)
    return Done(f"The policy of {type} is saved, and holds from the next attempt on.", type_url(type))


async def clear_policy(visit: Visit) -> Done:
    """Let the default policy hold."""
    type = visit.sent("type")
    await visit.administration.clear_policy(type)
    return Done(f"The default policy holds for {type}.", type_url(type))


async def open_breaker(visit: Visit) -> Done:
    """Open a breaker by hand."""
    type = visit.sent("type")
    seconds = await visit.administration.open_breaker(type, _seconds(visit.optional("seconds")))
    return Done(f"The breaker of {type} is open for {seconds:g} s; then one job tries whether things work.")


async def reset_breaker(visit: Visit) -> Done:
    """Close a breaker."""
    type = visit.sent("type")
    was_open = await visit.administration.reset_breaker(type)
    return Done(f"The breaker of {type} is closed." if was_open else f"The breaker of {type} was closed already.")


async def _page(visit: Visit, type: str, typed: str | None = None, error: str | None = None, status: int = 200) -> View:
    view = next((one for one in await visit.administration.types() if one.info.type == type), None)
    if view is None:
        raise NotFound("type", type)
    policy, drawn, dead, workers = await asyncio.gather(
        visit.administration.policy(type),
        charts(visit, range_of(visit), type),
        visit.desk.look(JobFilter(type=type, states=frozenset([State.FAILED])), DEAD_MAX),
        visit.administration.workers(),
    )
    context = {
        "type": type,
        "range": range_of(visit),
        "ranges": [(one, visit.here(range=one.name)) for one in RANGES],
        "charts": drawn,
        "dead": dead.jobs,
        "workers": [one for one in workers if type in one.card.types],
        "policy": policy,
        "policy_rows": policy_rows(policy.policy, policy.said),
        "limits": limits_of(policy.policy),
        "typed": pretty(policy.said) if typed is None else typed,
        "error": error,
    }
    return View("type.html", context | _figures(visit, view), status)


def _figures(visit: Visit, view: TypeView) -> dict[str, Any]:
    span = visit.parts.pulse.span(RATE_MINUTES, view.info.type)
    return {
        "info": view.info,
        "state": state_of(view.info),
        "totals": {state.label: view.counts[state] for state in State},
        "oldest_ms": oldest_of(visit).get(view.info.type),
        "per_minute": span.per_second * 60,
        "p95": (span.wait_ms(0.95), span.execution_ms(0.95)),
    }


def _object(typed: str) -> dict[str, Any]:
    try:
        said = orjson.loads(typed)
    except orjson.JSONDecodeError as error:
        raise InvalidInput("policy", f"must be a JSON object, and this is no JSON: {error}") from None
    if not isinstance(said, dict):
        raise InvalidInput("policy", 'must be a JSON object such as {"max_attempts": 10}')
    return said


def _seconds(text: str | None) -> float:
    try:
        return float(text or "60")
    except ValueError:
        raise InvalidInput("seconds", "must be a number of seconds") from None


PAGES = (Page("/ui/type", show),)
ACTIONS = (
    Action("/ui/type/policy", set_policy),
    Action("/ui/type/policy-clear", clear_policy),
    Action("/ui/type/breaker-open", open_breaker),
    Action("/ui/type/breaker-reset", reset_breaker),
)
