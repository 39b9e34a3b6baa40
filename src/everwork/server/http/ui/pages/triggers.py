"""Pages: all triggers, and one trigger with its schedule and latest jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from everwork.codec.json import decode
from everwork.exceptions import InvalidInput
from everwork.server.http.ui.address import address, job_url, type_url
from everwork.server.http.ui.page import Action, Done, Page, View
from everwork.server.http.ui.redaction import cut, masks_of, pretty
from everwork.server.http.ui.visit import Visit
from everwork.service.admin import Admin
from everwork.service.fleet.entries import TriggerView, own_source
from everwork.service.triggers.cron import in_words
from everwork.service.triggers.fires import TriggerFire
from everwork.service.triggers.outlook import upcoming

FIRES: Final = 1
FIRES_OF_ONE: Final = 50
POINTS: Final = 5
ROWS_MAX: Final = 200
VARIABLES_CHARS_MAX: Final = 4_000


class Row(NamedTuple):
    """A trigger, its page, its worker, and its latest jobs; None if there was no time to read them.

    `is_own`: it creates jobs of its worker's own source.
    """

    view: TriggerView
    href: str
    worker: str | None
    is_own: bool
    fires: list[TriggerFire] | None

    @property
    def schedule_words(self) -> str | None:
        """The cron expression in words; None for intervals, which are readable as they are."""
        return in_words(self.view.entry.schedule.rpartition(" ")[0])  # The time zone follows the expression.

    @property
    def type_href(self) -> str:
        """The page of the type whose jobs the trigger creates."""
        return type_url(self.view.entry.type)

    @property
    def is_unserved(self) -> bool:
        """Whether the trigger is enabled but no running process fires it."""
        return self.view.is_on and not self.view.is_served


async def show(visit: Visit) -> View:
    """List all triggers."""
    views, titles = await asyncio.gather(visit.admin.triggers(), _titles(visit))
    shown = views[:ROWS_MAX]
    fires = await visit.admin.fires_of_many([view.entry for view in shown], FIRES)
    rows = [_row(view, titles, fires.get(view.entry.name)) for view in shown]
    return View("triggers.html", {"rows": rows, "total": len(views)})


async def show_one(visit: Visit) -> View:
    """Show one trigger: its next scheduled times, variables and latest jobs."""
    name = visit.param("name")
    if name is None:
        raise InvalidInput("name", "is required")
    view, titles = await asyncio.gather(visit.admin.trigger(name), _titles(visit))
    fires = await visit.admin.fires(view.entry.name, FIRES_OF_ONE)
    context: dict[str, Any] = {
        "row": _row(view, titles, fires),
        "points": upcoming(view, POINTS),
        "variables": _variables(visit, view),
        "may_see_jobs": visit.may_see_jobs,
    }
    return View("trigger.html", context)


async def switch(visit: Visit) -> Done:
    """Enable or disable a trigger."""
    is_on = visit.required("on") == "yes"
    done = await visit.admin.switch_trigger(visit.required("trigger"), is_on)
    state = "enabled" if is_on else "disabled; missed runs are not caught up"
    return Done(f"{done.entry.title} is {'' if done.is_changed else 'already '}{state}.")


async def fire(visit: Visit) -> Done:
    """Fire a trigger now, and redirect to its job."""
    entry, key = await visit.admin.fire_trigger(visit.required("trigger"))
    if not visit.may_see_jobs:
        return Done(f"{entry.title} fired manually and created job {key}.")
    return Done(f"{entry.title} fired manually and created this job.", job_url(key))


async def _titles(visit: Visit) -> dict[str, str]:
    return {view.entry.id: view.entry.title for view in await visit.admin.workers()}


def _row(view: TriggerView, titles: Mapping[str, str], fires: list[TriggerFire] | None) -> Row:
    entry = view.entry
    href = address("/trigger", name=entry.name)
    return Row(view, href, titles.get(entry.worker_id), entry.type == own_source(entry.worker_id), fires)


def _variables(visit: Visit, view: TriggerView) -> tuple[str, int]:
    try:
        value = decode(view.entry.variables)
    except ValueError:  # The registry can hold variables that are not JSON.
        return "", 0
    return ("", 0) if value == {} else cut(pretty(masks_of(visit).masked(value)), VARIABLES_CHARS_MAX)


PAGES = (Page("/triggers", show), Page("/trigger", show_one))
ACTIONS = (
    Action("/triggers/switch", switch, Admin.switch_trigger, confirms=True),
    Action("/triggers/fire", fire, Admin.fire_trigger, confirms=True),
)
