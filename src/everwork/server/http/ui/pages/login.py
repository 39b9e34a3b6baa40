"""Logging in, by an API key or by a link from the server's terminal, and out."""

from __future__ import annotations

from typing import Final

from everwork.exceptions import Unauthenticated
from everwork.logs import get_logger
from everwork.server.http.ui.page import Action, Done, Page, View
from everwork.server.http.ui.visit import Visit, own_path
from everwork.service.access.principal import Principal
from everwork.service.access.sessions import OPERATOR, Session

FOREIGN: Final = ("cross-site", "same-site")

log = get_logger("everwork")


async def show(visit: Visit) -> View:
    """The form to log in; with a link's token, a button is enough."""
    return _form(visit, visit.asked("token"), None)


async def log_in(visit: Visit) -> Done | View:
    """Begin a session."""
    sessions, token = visit.parts.service.sessions, visit.optional("token")
    try:
        if token is not None:
            session, principal = await sessions.follow(token), OPERATOR
        else:
            principal = visit.parts.keys.admit((visit.optional("key") or "").strip())
            session = await sessions.begin(visit.parts.keys.badge(principal))
    except Unauthenticated as error:
        if token is not None and visit.session.token:  # A link that is followed again by whoever has come in by it.
            return Done("", own_path(visit.optional("next") or ""))
        log.warning("somebody could not log in", origin=visit.origin, error=str(error))
        return _form(visit, None, str(error), 401)
    await _note(visit, principal, "ui.login")
    return Done("", own_path(visit.optional("next") or ""), session=session)


async def log_out(visit: Visit) -> Done:
    """End the session."""
    await visit.parts.service.sessions.end(visit.session)
    await _note(visit, visit.principal, "ui.logout")
    return Done("You are logged out.", "/ui/login", session=Session("", ""))


async def _note(visit: Visit, principal: Principal, action: str) -> None:
    await visit.parts.audit.record(principal, action, principal.name, visit.origin)


def _form(visit: Visit, token: str | None, error: str | None, status: int = 200) -> View:
    asked = visit.asked("next") or visit.optional("next") or ""
    # A link that somebody has planted must not make another of whoever is logged in, unasked.
    is_asked = not visit.session.token and visit.request.headers.get("sec-fetch-site") not in FOREIGN
    shown = {"token": token, "next": own_path(asked), "has_auth": visit.parts.settings.has_auth, "is_asked": is_asked}
    return View("login.html", {**shown, "error": error}, status)


PAGES = (Page("/ui/login", show, is_open=True),)
ACTIONS = (Action("/ui/login", log_in, is_open=True), Action("/ui/logout", log_out))
