"""One type of jobs: how it flows, its breaker, its limits and its policy, which may be changed here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from everwork.codec.json import decode_policy
from everwork.core import checks
from everwork.core.policy import TypePolicy, fields_of
from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.exceptions import InvalidInput, NotFound
from everwork.server.http.ui.chart import share
from everwork.server.http.ui.flow import RANGES, charts, range_of
from everwork.server.http.ui.page import Action, Done, Page, View
from everwork.server.http.ui.pages.dead_letters import failing
from everwork.server.http.ui.pages.types import (
    RATE_MINUTES,
    limits_of,
    mark_of,
    oldest_of,
    own_sources,
    rates,
    unasked,
    unstarted,
)
from everwork.server.http.ui.redaction import pretty
from everwork.server.http.ui.render import duration, type_url
from everwork.server.http.ui.visit import Visit
from everwork.service.access.principal import Permission
from everwork.service.admin import TypeView
from everwork.service.fleet.entries import WorkerView
from everwork.service.policies import stored_fields

DUE_LOOK_MAX: Final = 100
"""Engines count what waits, not what is due of it: so many are looked at."""
OPEN_SECONDS: Final = (60, 600, 3_600, 86_400)
"""For how long a breaker can be opened by hand."""


class Field(NamedTuple):
    """A field of a policy: its value as people say it, and whether it was set for this type."""

    name: str
    value: str
    is_set: bool


async def show(visit: Visit) -> View:
    """The page of a type."""
    type = visit.asked("name") or ""
    views = await visit.admin.types()
    view = next((one for one in views if one.info.type == type), None)
    if view is None:
        raise NotFound("type", type)
    drawn, failed, workers, due = await asyncio.gather(
        charts(visit, range_of(visit), type), failing(visit, type), visit.admin.workers(), _due(visit, view)
    )
    context = {
        "worker": own_sources(workers).get(type),
        "range": range_of(visit),
        "ranges": [(one, visit.here(range=one.name)) for one in RANGES],
        "charts": drawn,
        "failing": failed,
        "due": due,
        "workers": [one for one in workers if type in one.entry.types],
        "groups": await _groups(visit, type, view.info.groups),
        "durations": [(seconds, duration(seconds * 1000)) for seconds in OPEN_SECONDS],
    }
    return View("type.html", context | await _figures(visit, view, workers) | _policy(type, view.info.policy))


async def set_policy(visit: Visit) -> Done | View:
    """Give a type the policy that was typed in."""
    type, typed = visit.sent("type"), visit.optional("policy") or "{}"
    try:
        await visit.admin.set_policy(type, _object(typed))
    except InvalidInput as error:
        stored = [one.info.policy for one in await visit.admin.types() if one.info.type == type]
        context = _policy(type, stored[0] if stored else None)
        return View("type_policy.html", context | {"typed": typed, "error": str(error), "here": type_url(type)}, 422)
    return Done(f"The policy of {type} is saved, and holds from the next attempt on.", type_url(type))


async def clear_policy(visit: Visit) -> Done:
    """Let the default policy hold."""
    type = visit.sent("type")
    await visit.admin.clear_policy(type)
    return Done(f"The default policy holds for {type}.", type_url(type))


async def open_breaker(visit: Visit) -> Done:
    """Open a breaker by hand."""
    type = visit.sent("type")
    seconds = await visit.admin.open_breaker(type, _seconds(visit.sent("seconds")))
    return Done(
        f"The breaker of {type} is open for {duration(seconds * 1000)}; then one job tries whether things work."
    )


async def reset_breaker(visit: Visit) -> Done:
    """Close a breaker."""
    type = visit.sent("type")
    was_open = await visit.admin.reset_breaker(type)
    return Done(f"The breaker of {type} is closed." if was_open else f"The breaker of {type} was closed already.")


# What the page shows ------------------------------------------------------------------------------------


async def _figures(visit: Visit, view: TypeView, workers: Sequence[WorkerView]) -> dict[str, Any]:
    sampler, type = visit.parts.sampler, view.info.type
    reading, span = sampler.reading or await sampler.fresh(), sampler.span(RATE_MINUTES, type)
    running, is_broken = view.counts[State.PROCESSING], type in unstarted(reading, workers)
    is_unasked = type in unasked(reading, [type] if running else [])
    return {
        "info": view.info,
        "mark": mark_of(view.info, is_unasked=is_unasked, is_broken=is_broken),
        "totals": {state.label: view.counts[state] for state in State},
        "oldest_ms": oldest_of(reading).get(type),
        "per_minute": rates(sampler)(type),
        "p95": (span.wait_ms(0.95), span.execution_ms(0.95)),
        "full": share(running, decode_policy(view.info.policy).max_running or 0),
    }


async def _due(visit: Visit, view: TypeView) -> int | None:
    """How many of the waiting jobs are due; None if there are too many to look, or the visitor may not."""
    if view.counts[State.PENDING] > DUE_LOOK_MAX or not visit.may_see_jobs:
        return None
    wanted = JobFilter(type=view.info.type, states=frozenset([State.PENDING]), due=True)
    page = await visit.jobs.find_step(wanted, DUE_LOOK_MAX)
    return len(page.jobs) if page.next is None else None


async def _groups(visit: Visit, type: str, names: Sequence[str]) -> Sequence[Any]:
    return [one for one in await visit.admin.groups() if one.type == type] if names else []


def _policy(type: str, stored: str | None) -> dict[str, Any]:
    policy, said = decode_policy(stored), stored_fields(stored)
    return {
        "type": type,
        "policy": policy,
        "is_own": bool(said),
        "fields": fields_shown(policy, said),
        "limits": limits_of(policy),
        "typed": pretty(said),
        "error": None,
    }


def fields_shown(policy: TypePolicy, said: Mapping[str, Any]) -> list[Field]:
    """Every field of a policy, those first that were set for the type."""
    shown = [Field(name, _told(name, value), name in said) for name, value in fields_of(policy).items()]
    return sorted(shown, key=lambda one: not one.is_set)


def _told(name: str, value: Any) -> str:
    """The value of a field with its unit."""
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in ("base", "cap") or name.endswith("_seconds"):
        return duration(value * 1000)
    if name.endswith("_hours"):
        return duration(value * 3_600_000)
    if name == "errors":
        return "; ".join(f"{one.get('exception') or one.get('text')}: {one['strategy']}" for one in value)
    return f"{100 * value:g} %" if name == "jitter" else f"{value:,g}"


# What was typed -----------------------------------------------------------------------------------------


def _object(typed: str) -> dict[str, Any]:
    try:
        said = orjson.loads(typed)
    except orjson.JSONDecodeError as error:
        raise InvalidInput("policy", f"must be a JSON object, and this is no JSON: {error}") from None
    if not isinstance(said, dict):
        raise InvalidInput("policy", 'must be a JSON object such as {"max_attempts": 10}')
    return said


def _seconds(text: str) -> float:
    seconds = checks.typed(text.strip())
    if isinstance(seconds, str):
        raise InvalidInput("seconds", f"must be a number of seconds, not {checks.shown(text)}")
    return seconds


PAGES = (Page("/ui/type", show),)
ACTIONS = (
    Action("/ui/type/policy", set_policy, Permission.ADMIN),
    Action("/ui/type/policy-clear", clear_policy, Permission.ADMIN, asks=True),
    Action("/ui/type/breaker-open", open_breaker, Permission.ADMIN, asks=True),
    Action("/ui/type/breaker-reset", reset_breaker, Permission.ADMIN),
)
