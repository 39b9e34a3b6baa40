"""Sessions of the dashboard: cookies, flash messages, and protection against forged forms."""

from __future__ import annotations

import hmac
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from everwork.core.limits import SESSION_MS
from everwork.exceptions import PermissionDenied, Unauthenticated
from everwork.server.http.framework.context import PRINCIPAL, AppContext
from everwork.server.http.framework.operations import ANONYMOUS
from everwork.server.http.framework.peer import host_port, is_same_origin, is_tls
from everwork.server.http.ui.address import prefix_of
from everwork.server.http.ui.page import Done
from everwork.server.http.ui.visit import Visit
from everwork.service.access.principal import ANYBODY, Principal
from everwork.service.access.sessions import TOKEN_BYTES, Session, holder_of

FLASH_SECONDS: Final = 60
FLASH_CHARS_MAX: Final = 500


class LoggedOut(Unauthenticated):
    """There is no session, or it has expired."""


class Visitors(ABC):
    """Identifies visitors, and sets the cookies of flash messages."""

    has_login: ClassVar[bool]
    """Whether visitors log in and out on pages of the dashboard."""

    def __init__(self, context: AppContext) -> None:
        self._context = context

    @abstractmethod
    async def visit(self, request: Request, *, is_open: bool = False) -> Visit:
        """Identify the visitor; without permission, only open pages may be visited."""

    @abstractmethod
    def viewer(self, request: Request) -> str:
        """An identifier of the browser; empty if it is not known yet."""

    @abstractmethod
    def remember(self, visit: Visit, response: Response) -> None:
        """Set the cookie that the visitor's browser must send with its next form."""

    def set_session(self, request: Request, response: Response, session: Session) -> None:
        """Store a session's token in its cookie; an empty token expires the cookie."""
        self._set_cookie(
            request, response, (_cookie(request), session.token), SESSION_MS // 1000 if session.token else 0
        )

    def flash(self, request: Request) -> Mapping[str, Any] | None:
        """The message of the last action, to be shown once."""
        try:
            flash = orjson.loads(bytes.fromhex(request.cookies.get(_flash_cookie(request), "")))
            return {"text": str(flash["text"])[:FLASH_CHARS_MAX], "is_good": bool(flash["is_good"])}
        except (ValueError, KeyError, TypeError):
            return None

    def set_flash(self, request: Request, response: Response, done: Done) -> None:
        """Store the message of an action for the next page."""
        flash = orjson.dumps({"text": done.message[:FLASH_CHARS_MAX], "is_good": done.is_good}).hex()
        self._set_cookie(request, response, (_flash_cookie(request), flash), FLASH_SECONDS)

    def clear_flash(self, request: Request, response: Response) -> None:
        """Delete a message that has been shown."""
        response.delete_cookie(_flash_cookie(request), prefix_of(request.scope).cookie_path)

    def _set_cookie(self, request: Request, response: Response, cookie: tuple[str, str], seconds: int) -> None:
        is_secure = is_tls(request.scope, self._context.settings.trusted_proxies)
        path = prefix_of(request.scope).cookie_path
        response.set_cookie(*cookie, seconds, path=path, httponly=True, samesite="lax", secure=is_secure)


class LoggedInVisitors(Visitors):
    """Visitors with a session, started on the login page."""

    has_login = True

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self._sessions = context.service.sessions
        self._shared = Session(secrets.token_urlsafe(), ANYBODY.id)
        """The session of every visitor if authentication is off."""

    async def visit(self, request: Request, *, is_open: bool = False) -> Visit:
        """Identify the visitor; without a session, only open pages may be visited."""
        if not self._context.settings.has_auth:
            return Visit(self._context, request, ANYBODY, self._shared)
        token = self.viewer(request)
        session = await self._sessions.find(token)
        principal = None if session is None else holder_of(session, self._context.keys)
        if session is not None and principal is not None:
            return Visit(self._context, request, principal, session)
        if is_open:
            return Visit(self._context, request, ANONYMOUS, Session("", ""))
        raise LoggedOut("the session has expired" if token else "not logged in")

    def viewer(self, request: Request) -> str:
        """The session token in a request; empty if there is none."""
        return request.cookies.get(_cookie(request), "")

    def remember(self, visit: Visit, response: Response) -> None:
        """Do nothing: the session's cookie is enough."""


def require_token(visit: Visit) -> None:
    """Refuse a form that does not carry the session's CSRF token."""
    token = visit.form.get("csrf", [""])[-1]
    if not hmac.compare_digest(token.encode(), visit.session.csrf.encode()):
        raise PermissionDenied("this form is out of date; nothing was changed: reload the page and try again")


def require_same_origin(request: Request) -> None:
    """Refuse a form that another site has sent."""
    if not is_same_origin(request.scope):
        raise PermissionDenied("cross-origin requests are rejected; nothing was changed")


class CheckedVisitors(Visitors):
    """Visitors checked by the surrounding application, which has set `PRINCIPAL` in the scope.

    The token of their forms is derived from a random cookie: it is valid in every process of the application.
    """

    has_login = False

    async def visit(self, request: Request, *, is_open: bool = False) -> Visit:
        """Identify the visitor; without access, only open pages may be visited."""
        principal: Principal | None = request.scope.get(PRINCIPAL)
        if principal is not None:
            token = self.viewer(request) or secrets.token_urlsafe(TOKEN_BYTES)
            return Visit(self._context, request, principal, Session(token, principal.id))
        if is_open:
            return Visit(self._context, request, ANONYMOUS, Session("", ""))
        raise LoggedOut("access denied")

    def viewer(self, request: Request) -> str:
        """The random cookie of a browser."""
        return request.cookies.get(_form_cookie(request), "")

    def remember(self, visit: Visit, response: Response) -> None:
        """Give a browser its cookie."""
        if visit.session.token and not self.viewer(visit.request):
            cookie = (_form_cookie(visit.request), visit.session.token)
            self._set_cookie(visit.request, response, cookie, SESSION_MS // 1000)


def _cookie(request: Request) -> str:
    """The name of the session cookie, by port: servers on one host must not log out each other's visitors."""
    return f"everwork_{host_port(request.scope)}"


def _flash_cookie(request: Request) -> str:
    return f"{_cookie(request)}_said"


def _form_cookie(request: Request) -> str:
    return f"{_cookie(request)}_form"
