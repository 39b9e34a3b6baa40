"""Page: login with an API key or a link from the server's terminal, and logout."""

from __future__ import annotations

from typing import Final

from everwork.exceptions import PermissionDenied, Unauthenticated
from everwork.server.errors import wire
from everwork.server.http.framework.peer import require_private_key
from everwork.server.http.ui.address import address, local_address
from everwork.server.http.ui.page import Action, Done, Page, View
from everwork.server.http.ui.visit import Visit
from everwork.service.access.principal import Principal
from everwork.service.access.sessions import OPERATOR, Session

FOREIGN: Final = ("cross-site", "same-site")


async def show(visit: Visit) -> View:
    """Show the login form; if the URL has a link's token, show only a button."""
    try:
        require_private_key(visit.request.scope, visit.context.settings)
    except PermissionDenied as error:  # A key must not be entered here.
        return _form(visit, None, str(error), 403, is_refused=True)
    return _form(visit, visit.param("token"), None)


async def log_in(visit: Visit) -> Done | View:
    """Start a session."""
    sessions, token = visit.context.service.sessions, visit.optional("token")
    require_private_key(visit.request.scope, visit.context.settings)
    try:
        if token is not None:
            session, principal = await sessions.follow(token, visit.caller.origin), OPERATOR
        else:
            principal = visit.context.keys.admit((visit.optional("key") or "").strip())
            async with visit.context.service.budgets.requests.of(principal):
                session = await sessions.begin(principal, visit.context.keys, visit.caller.origin)
    except Unauthenticated as error:
        if token is not None and visit.session.token:  # A used link was followed again within its session.
            return Done("", local_address(visit.optional("next") or ""))
        refusal = visit.context.keys.failures.refusal(error, visit.caller.origin, "ui", "login failed")
        await visit.context.keys.failures.hold_back(refusal, visit.caller.origin)
        return _form(visit, None, str(refusal), wire(refusal).http)
    await _record(visit, principal, "ui.login")
    return Done("", local_address(visit.optional("next") or ""), session=session)


async def log_out(visit: Visit) -> Done:
    """End the session."""
    await visit.context.service.sessions.end(visit.session)
    await _record(visit, visit.principal, "ui.logout")
    return Done("You are logged out.", address("/login"), session=Session("", ""))


async def _record(visit: Visit, principal: Principal, action: str) -> None:
    await visit.context.service.audit.record(principal, action, principal.name, visit.caller.origin)


def _form(visit: Visit, token: str | None, error: str | None, status: int = 200, *, is_refused: bool = False) -> View:
    next_ = visit.param("next") or visit.optional("next") or ""
    # A planted link must not silently log the visitor in as another user.
    is_automatic = not visit.session.token and visit.request.headers.get("sec-fetch-site") not in FOREIGN
    shown = {
        "token": token,
        "next": local_address(next_),
        "has_auth": visit.context.settings.has_auth,
        "is_mounted": visit.context.is_mounted,
        "is_automatic": is_automatic,
        "is_refused": is_refused,
    }
    return View("login.html", {**shown, "error": error}, status)


PAGES = (Page("/login", show, is_open=True),)
ACTIONS = (Action("/login", log_in, is_open=True), Action("/logout", log_out))
