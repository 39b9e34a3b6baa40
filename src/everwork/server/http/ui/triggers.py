"""Triggers: what fires when, what it made last, and whether anybody would fire it."""

from __future__ import annotations

from typing import Final, NamedTuple

from everwork.engines.codec import decode
from everwork.server.http.ui.hidden import masks_of
from everwork.server.http.ui.pages import Action, Done, Page, View
from everwork.server.http.ui.render import job_url
from everwork.server.http.ui.texts import cut, pretty
from everwork.server.http.ui.visit import Visit
from everwork.service.cards import TriggerView
from everwork.service.fires import TriggerFire

FIRES: Final = 3
VARIABLES_CHARS_MAX: Final = 2_000


class Row(NamedTuple):
    """A trigger, what it passes on without secrets, and the jobs that it made last; None: nobody had time to look."""

    view: TriggerView
    variables: tuple[str, int]
    fires: list[TriggerFire] | None


async def show(visit: Visit) -> View:
    """All triggers."""
    views = await visit.administration.triggers()
    made = await visit.administration.fires_of_many([view.card for view in views], FIRES)
    rows = [Row(view, _variables(visit, view), made.get(view.card.name)) for view in views]
    return View("triggers.html", {"rows": rows})


async def switch(visit: Visit) -> Done:
    """Let a trigger fire, or not."""
    is_on = visit.sent("on") == "yes"
    done = await visit.administration.switch_trigger(visit.sent("trigger"), is_on)
    state = "on" if is_on else "off: it does not fire; what it misses is not caught up with"
    return Done(f"{done.card.title} is {'' if done.is_changed else 'already '}{state}.")


async def fire(visit: Visit) -> Done:
    """Let a trigger make its job now; its page is next."""
    card, key = await visit.administration.fire_trigger(visit.sent("trigger"))
    return Done(f"{card.title} was fired by hand; this is the job that it made.", job_url(key))


def _variables(visit: Visit, view: TriggerView) -> tuple[str, int]:
    try:
        value = decode(view.card.variables)
    except ValueError:  # Somebody has written what cannot be read.
        return "", 0
    return ("", 0) if value == {} else cut(pretty(masks_of(visit).masked(value)), VARIABLES_CHARS_MAX)


PAGES = (Page("/ui/triggers", show),)
ACTIONS = (Action("/ui/triggers/switch", switch), Action("/ui/triggers/fire", fire))
