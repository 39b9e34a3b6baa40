"""Dead letters: by what went wrong, to be brought back or removed, one sort of error at a time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from everwork.core import checks
from everwork.engines.codec import decode_policy
from everwork.exceptions import InvalidInput, NothingMatches
from everwork.server.http.ui.hidden import Hidden, masks_of
from everwork.server.http.ui.pages import Action, Done, Page, View
from everwork.server.http.ui.render import address
from everwork.server.http.ui.search import utc_moment
from everwork.server.http.ui.visit import Visit
from everwork.service import dead
from everwork.service.dead import Act, DeadFilter, DeadGroup

LOOK_MAX: Final = 1_000
"""Of so many of the newest the page is made, unless all are asked for."""
SOUGHT_CHARS_MAX: Final = 60
_FIGURES: Final = re.compile(r"[^\s]*\d[^\s]*|['\"]")
NAMES: Final = ("type", "tenant", "error", "fingerprint", "after", "before")


class Group(NamedTuple):
    """A group as it is shown: its error without secrets, and where jobs like its latest are listed."""

    group: DeadGroup
    error: str
    href: str


async def show(visit: Visit) -> View:
    """The groups, or the newest jobs of one of them."""
    typed = {name: value for name in NAMES if (value := visit.asked(name)) is not None}
    try:
        wanted, error = _wanted(typed), None
    except InvalidInput as problem:
        wanted, error = None, str(problem)
    context: dict[str, Any] = {"typed": typed, "error": error, "grouped": None, "groups": []}
    if wanted is not None:
        context |= await _found(visit, wanted)
    return View("dead.html", context | {"is_all": visit.asked("all") == "1", "all_url": visit.here(all="1")})


async def sure(visit: Visit) -> View:
    """Before many are changed: how many, and what will happen."""
    act, typed = _act(visit), _typed(visit)
    wanted = _wanted(typed)
    found = await _matching(visit, act, wanted)
    context: dict[str, Any] = {"act": act.value, "typed": typed, "matched": found, "back": visit.back, "returns": None}
    if visit.sees_all and wanted.type is not None:
        context["returns"] = await _returns(visit, wanted.type)
    return View("dead_change.html", context)


async def change(visit: Visit) -> Done:
    """Bring back or remove what was meant."""
    act, wanted = _act(visit), _wanted(_typed(visit))
    done = await visit.administration.change_dead(act, wanted, all=wanted.is_empty)
    said = "brought back: they wait again, with all their attempts" if act is Act.REQUEUE else "removed for ever"
    return Done(f"{done.changed:,} of {done.matched:,} dead letters were {said}.", "/ui/dead")


async def _found(visit: Visit, wanted: DeadFilter) -> dict[str, Any]:
    look_max = dead.LOOKED_AT_MAX if visit.asked("all") == "1" else LOOK_MAX
    found = await dead.grouped(visit.desk, wanted, look_max=look_max)
    return {"grouped": found, "groups": await _shown(visit, found.groups)}


async def _shown(visit: Visit, groups: Sequence[DeadGroup]) -> list[Group]:
    """Each group with its latest error; what is secret in that job stays out of it."""
    jobs = await visit.desk.get_many([group.key for group in groups])
    masks = masks_of(visit)
    return [
        Group(
            group,
            group.error if job is None else Hidden(masks, job).cleaned(group.error),
            address("/ui/jobs", state="failed", type=group.type, error=_sought(group.error)),
        )
        for group, job in zip(groups, jobs, strict=True)
    ]


async def _matching(visit: Visit, act: Act, wanted: DeadFilter) -> int:
    try:
        done = await visit.administration.change_dead(act, wanted, all=wanted.is_empty, dry_run=True)
    except NothingMatches:
        return 0
    return done.matched


async def _returns(visit: Visit, type: str) -> float | None:
    """After how many hours dead letters of a type come back by themselves."""
    found = next((one.info.policy for one in await visit.administration.types() if one.info.type == type), None)
    return decode_policy(found).failed_job_retry_hours


def _act(visit: Visit) -> Act:
    try:
        return Act(visit.sent("act"))
    except ValueError:
        raise InvalidInput("act", f"must be one of {', '.join(one.value for one in Act)}") from None


def _typed(visit: Visit) -> dict[str, str]:
    return {name: value for name in NAMES if (value := visit.optional(name)) is not None}


def _wanted(typed: dict[str, str]) -> DeadFilter:
    wanted = DeadFilter(type=checks.name("type", typed["type"]) if "type" in typed else None)
    if "tenant" in typed:
        wanted = replace(wanted, tenants=(checks.name("tenant", typed["tenant"]),))
    if "fingerprint" in typed:
        wanted = replace(wanted, fingerprint=dead.require_fingerprint(typed["fingerprint"]))
    return replace(
        wanted,
        error_text=typed.get("error"),
        failed_after_ms=_instant("after", typed),
        failed_before_ms=_instant("before", typed),
    )


def _sought(error: str) -> str | None:
    """What to look for in errors to find those of the same sort: the longest part of the first line without figures."""
    parts = _FIGURES.split((error.strip().splitlines() or [""])[0])
    return max((part.strip() for part in parts), key=len, default="")[:SOUGHT_CHARS_MAX] or None


def _instant(name: str, typed: dict[str, str]) -> int | None:
    return None if name not in typed else utc_moment(name, typed[name])


PAGES = (Page("/ui/dead", show),)
ACTIONS = (Action("/ui/dead/sure", sure), Action("/ui/dead/change", change))
