"""The first page: whether work flows, what fails, and what needs somebody."""

from __future__ import annotations

from everwork.server.http.ui.pages import Action, Page, View
from everwork.server.http.ui.visit import Visit


async def show(visit: Visit) -> View:
    """Everything at a glance."""
    counts = await visit.desk.count()
    totals: dict[str, int] = {}
    for count in counts:
        totals[count.state.label] = totals.get(count.state.label, 0) + count.jobs
    return View("overview.html", {"totals": totals})


PAGES = (Page("/ui", show),)
ACTIONS: tuple[Action, ...] = ()
