"""The audit log: who did what, when and from where."""

from __future__ import annotations

from typing import Final

from everwork.server.http.ui.pages import Action, Page, View
from everwork.server.http.ui.render import job_url, type_url
from everwork.server.http.ui.texts import pretty
from everwork.server.http.ui.visit import Visit
from everwork.service.audit import AuditEntry

ROWS: Final = 100


async def show(visit: Visit) -> View:
    """The newest entries, or those below a cursor."""
    below = visit.asked("below")
    entries = await visit.administration.audit(ROWS, below)
    action, who = visit.asked("action") or "", visit.asked("who") or ""
    shown = [one for one in entries if one.action.startswith(action) and who.lower() in one.who.lower()]
    older = visit.here(below=entries[-1].name) if len(entries) == ROWS else None
    context = {
        "entries": [(one, _target_url(one), pretty(dict(one.detail)) if one.detail else "") for one in shown],
        "action": action,
        "who": who,
        "older": older,
        "newest": visit.here(below=None) if below else None,
        "looked_at": len(entries),
    }
    return View("audit.html", context)


def _target_url(entry: AuditEntry) -> str | None:
    """The page of what was changed, if it has one."""
    kind = entry.action.partition(".")[0]
    if kind in ("jobs", "dead") and entry.target.isdecimal():
        return job_url(entry.target)
    return type_url(entry.target) if kind == "types" else None


PAGES = (Page("/ui/audit", show),)
ACTIONS: tuple[Action, ...] = ()
