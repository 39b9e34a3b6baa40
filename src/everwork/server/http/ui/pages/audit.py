"""The audit log: who did what, when and from where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from everwork.core.instants import utc_text
from everwork.exceptions import InvalidInput
from everwork.server.http.ui.page import Action, Page, View
from everwork.server.http.ui.redaction import Masks, masks_of, pretty
from everwork.server.http.ui.render import address, job_url, type_url
from everwork.server.http.ui.visit import Visit
from everwork.service.access.audit import AuditEntry

ROWS: Final = 100
STEPS_MAX: Final = 10
"""A filter that little matches looks at so many times as many entries as fit on a page."""
KINDS: Final = ("jobs.", "dead.", "types.", "groups.", "workers.", "triggers.", "processes.", "keys.", "ui.")


GONE: Final = ("jobs.delete", "dead.purge")
"""What leaves no job behind to look at."""


class Row(NamedTuple):
    """An entry, what it was about in the words of people, the page of that, and what else was noted."""

    entry: AuditEntry
    target: str
    href: str | None
    brief: str
    detail: str


class Looked(NamedTuple):
    """The entries that match, how many were looked at, and the entry below which to go on."""

    found: list[AuditEntry]
    looked_at: int
    below: str | None


async def show(visit: Visit) -> View:
    """The newest entries, or those below a cursor."""
    below, problem = visit.asked("below"), None
    try:
        looked = await _look(visit, below)
    except InvalidInput as error:
        looked, problem = Looked([], 0, None), error.problem
    names = {key.id: key.name for key in await visit.admin.list_keys()}
    masks = masks_of(visit)
    context = {
        "rows": [_open_to(visit, _row(entry, names, masks)) for entry in looked.found],
        "looked_at": looked.looked_at,
        "problem": problem,
        "kinds": KINDS,
        "action": visit.asked("action") or "",
        "who": visit.asked("who") or "",
        "older": visit.here(below=looked.below) if looked.below else None,
        "newest": visit.here(below=None) if below else None,
    }
    return View("audit.html", context, 422 if problem else 200)


async def _look(visit: Visit, below: str | None) -> Looked:
    """A page of entries; with a filter, as many as a few steps find."""
    action, who = (visit.asked("action") or "").lower(), (visit.asked("who") or "").lower()
    found: list[AuditEntry] = []
    looked_at = 0
    for _ in range(STEPS_MAX):
        entries = await visit.admin.audit(ROWS, below)
        looked_at += len(entries)
        for entry in entries:
            below = entry.name
            if entry.action.startswith(action) and who in f"{entry.who} {entry.key_id}".lower():
                found.append(entry)
            if len(found) == ROWS:
                return Looked(found, looked_at, below)
        if len(entries) < ROWS:
            return Looked(found, looked_at, None)
    return Looked(found, looked_at, below)


def _row(entry: AuditEntry, names: Mapping[str, str], masks: Masks) -> Row:
    detail: dict[str, Any] = masks.masked(dict(entry.detail))
    kind = entry.action.partition(".")[0]
    named = names.get(entry.target) if kind == "keys" else detail.get("title")
    target = "" if kind == "ui" else str(named or entry.target)
    told = ((name, value) for name, value in detail.items() if value not in (None, [], {}, target))
    brief = ", ".join(_brief(name, value) for name, value in told)
    return Row(entry, target, _href(kind, entry), brief, pretty(detail) if detail else "")


def _open_to(visit: Visit, row: Row) -> Row:
    """Without the way to a job, for whoever may not see any."""
    is_job = row.href is not None and row.href.startswith("/ui/jobs/")
    return row._replace(href=None) if is_job and not visit.may_see_jobs else row


def _brief(name: str, value: object) -> str:
    """A field of a detail in few words: names as people say them, instants as times."""
    if isinstance(value, int) and name.endswith(("_at_ms", "_after_ms", "_before_ms")):
        return f"{name.removesuffix('_ms').replace('_', ' ')} {utc_text(value)[:16]}"
    return f"{name.replace('_', ' ')} {_plain(value)}"


def _plain(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(_plain, value))
    if isinstance(value, dict):
        return ", ".join(_brief(name, one) for name, one in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _href(kind: str, entry: AuditEntry) -> str | None:
    """The page of what was changed, if it has one."""
    target = entry.target
    if kind in ("jobs", "dead") and not {"filter", "matched"} & entry.detail.keys() and target.isdecimal():
        return None if entry.action in GONE else job_url(target)
    if kind in ("jobs", "dead", "types"):
        return _type_href(target)
    if kind == "groups":
        return _type_href(target.rpartition("/")[0])
    if kind == "triggers":
        return address("/ui/trigger", name=target)
    return {"keys": "/ui/keys", "workers": "/ui/workers", "processes": "/ui/workers"}.get(kind)


def _type_href(type: str) -> str | None:
    return None if type in ("", "*") else type_url(type)


PAGES: Sequence[Page] = (Page("/ui/audit", show),)
ACTIONS: Sequence[Action] = ()
