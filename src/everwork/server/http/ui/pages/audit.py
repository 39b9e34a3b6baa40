"""Page: the audit log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from everwork.core.instants import utc_text
from everwork.exceptions import InvalidInput
from everwork.server.http.ui.address import address, job_url, type_url
from everwork.server.http.ui.page import Action, Page, View
from everwork.server.http.ui.redaction import Masks, masks_of, pretty
from everwork.server.http.ui.visit import Visit
from everwork.service.access.audit import AuditEntry

ROWS: Final = 100
STEPS_MAX: Final = 10
"""The maximum number of pages of entries that a filter scans."""
ACTION_PREFIXES: Final = ("jobs.", "dead.", "types.", "groups.", "workers.", "triggers.", "processes.", "keys.", "ui.")
GONE: Final = ("jobs.delete", "dead.purge")
"""Actions after which the job no longer exists."""


class Row(NamedTuple):
    """An audit entry with its target's readable name, a link to the target's page, and a summary of its details."""

    entry: AuditEntry
    target: str
    href: str | None
    brief: str
    detail: str


class Search(NamedTuple):
    """The matching entries, how many were scanned, and the cursor to continue."""

    found: list[AuditEntry]
    scanned: int
    below: str | None


async def show(visit: Visit) -> View:
    """List the newest entries, or those below a cursor."""
    below, problem = visit.param("below"), None
    try:
        search = await _search(visit, below)
    except InvalidInput as error:
        search, problem = Search([], 0, None), error.problem
    names = {key.id: key.name for key in await visit.admin.list_keys()}
    masks = masks_of(visit)
    context = {
        "rows": [_permitted(visit, _row(entry, names, masks)) for entry in search.found],
        "scanned": search.scanned,
        "problem": problem,
        "prefixes": ACTION_PREFIXES,
        "action": visit.param("action") or "",
        "who": visit.param("who") or "",
        "older": visit.url(below=search.below) if search.below else None,
        "newest": visit.url(below=None) if below else None,
    }
    return View("audit.html", context, 422 if problem else 200)


async def _search(visit: Visit, below: str | None) -> Search:
    """A page of entries; with a filter, as many as a few scans can find."""
    action, who = (visit.param("action") or "").lower(), (visit.param("who") or "").lower()
    found: list[AuditEntry] = []
    scanned = 0
    for _ in range(STEPS_MAX):
        entries = await visit.admin.audit(ROWS, below)
        scanned += len(entries)
        for entry in entries:
            below = entry.name
            if entry.action.startswith(action) and who in f"{entry.who} {entry.key_id}".lower():
                found.append(entry)
            if len(found) == ROWS:
                return Search(found, scanned, below)
        if len(entries) < ROWS:
            return Search(found, scanned, None)
    return Search(found, scanned, below)


def _row(entry: AuditEntry, names: Mapping[str, str], masks: Masks) -> Row:
    detail: dict[str, Any] = masks.masked(dict(entry.detail))
    subject = entry.action.partition(".")[0]
    named = names.get(entry.target) if subject == "keys" else detail.get("title")
    target = "" if subject == "ui" else str(named or entry.target)
    shown = ((name, value) for name, value in detail.items() if value not in (None, [], {}, target))
    brief = ", ".join(_brief(name, value) for name, value in shown)
    return Row(entry, target, _href(subject, entry), brief, pretty(detail) if detail else "")


def _permitted(visit: Visit, row: Row) -> Row:
    """Remove the link to a job if the visitor may not see jobs."""
    is_job = row.href is not None and row.href.startswith(address("/jobs/"))
    return row._replace(href=None) if is_job and not visit.may_see_jobs else row


def _brief(name: str, value: object) -> str:
    """A field of the details in words: names lose their underscores, instants become times."""
    if isinstance(value, int) and name.endswith(("_at_ms", "_after_ms", "_before_ms")):
        return f"{name.removesuffix('_ms').replace('_', ' ')} {utc_text(value)[:16].replace('T', ' ')} UTC"
    return f"{name.replace('_', ' ')} {_plain(value)}"


def _plain(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(_plain, value))
    if isinstance(value, dict):
        return ", ".join(_brief(name, one) for name, one in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _href(subject: str, entry: AuditEntry) -> str | None:
    """The page of the target, if it has one."""
    target = entry.target
    if subject in ("jobs", "dead") and not {"filter", "matched"} & entry.detail.keys() and target.isdecimal():
        return None if entry.action in GONE else job_url(target)
    if subject in ("jobs", "dead", "types"):
        return _type_href(target)
    if subject == "groups":
        return _type_href(target.rpartition("/")[0])
    if subject == "triggers":
        return address("/trigger", name=target)
    path = {"keys": "/keys", "workers": "/workers", "processes": "/workers"}.get(subject)
    return None if path is None else address(path)


def _type_href(type: str) -> str | None:
    return None if type in ("", "*") else type_url(type)


PAGES: Sequence[Page] = (Page("/audit", show),)
ACTIONS: Sequence[Action] = ()
