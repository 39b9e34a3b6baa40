"""The way into the dashboard: sessions, forms, and problems that are shown as pages."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from everwork.codec.json import as_written
from everwork.core.limits import SESSION_MS
from everwork.exceptions import EverworkError, PermissionDenied, Unauthenticated
from everwork.server.errors import wire
from everwork.server.http.framework.context import AppContext
from everwork.server.http.framework.operations import NOBODY, SegmentRoute
from everwork.server.http.framework.origin import is_encrypted, port_said
from everwork.server.http.framework.problems import Refusal
from everwork.server.http.ui.page import Action, Done, Download, Page, View
from everwork.server.http.ui.render import ASSET_PATH, address, asset, render, render_live
from everwork.server.http.ui.visit import HOME, Visit, own_path
from everwork.service.access.keys import host_clock
from everwork.service.access.principal import ANYBODY, Permission
from everwork.service.access.sessions import Session, holder_of

LOGIN: Final = "/ui/login"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
SAID_SECONDS: Final = 60
SAID_CHARS_MAX: Final = 500
AWAY: Final = "The engine cannot be reached, or does not answer. Nothing is lost: this page tries again by itself."
UNDONE: Final = "The engine cannot be reached, or does not answer. Nothing was done: repeat it when it is back."
UNKNOWN: Final = "The engine did not answer. Whether this was done is not known: look, and repeat it if need be."
ASKING: Final = frozenset({"csrf", "back", "sure", "question", "deed"})
"""Fields of a form that say nothing about the deed itself."""
DOUBT: Final = "Is this meant?"
THEMES: Final = ("light", "dark")


class LoggedOut(Unauthenticated):
    """Nobody has logged in, or the session is over."""


class Dashboard:
    """The pages and actions of one server."""

    def __init__(self, parts: AppContext, pages: Sequence[Page], actions: Sequence[Action]) -> None:
        self.parts = parts
        self.sessions = parts.service.sessions
        self.pages = {page.path: page for page in pages}
        self._actions = actions
        self._anybody = Session(secrets.token_urlsafe(), ANYBODY.id)
        """The session of all who come to a server that asks nobody for a key."""

    def routes(self) -> Iterator[SegmentRoute]:
        """What answers under /ui; fixed paths first."""
        yield SegmentRoute(ASSET_PATH, _Static())
        yield SegmentRoute(f"{HOME}/", RedirectResponse(HOME, 308))
        for path in sorted({*self.pages, *(action.path for action in self._actions)}, key=lambda one: "{" in one):
            found = {"GET": self.pages.get(path), "POST": self._action(path)}
            yield SegmentRoute(path, _PageHandler(self, {method: one for method, one in found.items() if one}))

    def cookie(self, request: Request) -> str:
        """The name of a session's cookie: servers on several ports of a host do not log each other's visitors out."""
        return f"everwork_{port_said(request.scope)}"

    async def visit(self, request: Request, *, is_open: bool = False) -> Visit:
        """Who comes. Without a session, only what is open may be seen."""
        if not self.parts.settings.has_auth:
            return Visit(self.parts, request, ANYBODY, self._anybody)
        session = await self.sessions.find(request.cookies.get(self.cookie(request), ""))
        principal = None if session is None else holder_of(session, self.parts.keys)
        if session is not None and principal is not None:
            return Visit(self.parts, request, principal, session)
        if is_open:
            return Visit(self.parts, request, NOBODY, Session("", ""))
        raise LoggedOut("the session is over" if request.cookies.get(self.cookie(request)) else "nobody is logged in")

    def page(self, visit: Visit, view: View, said: Mapping[str, Any] | None = None) -> Response:
        """A whole page, with what the last action has to say."""
        html = render(view.template, {**self._frame(visit), **view.context, "said": said})
        response = Response(html, view.status, media_type="text/html", headers={"Content-Security-Policy": POLICY})
        if said is not None:
            response.delete_cookie(self._said_cookie(visit.request), HOME)
        return response

    def live(self, visit: Visit, view: View) -> str:
        """The part of a page that changes."""
        return render_live(view.template, {**self._frame(visit), **view.context, "said": None})

    def said(self, request: Request) -> Mapping[str, Any] | None:
        """What the last action has to say, once."""
        try:
            told = orjson.loads(bytes.fromhex(request.cookies.get(self._said_cookie(request), "")))
            return {"text": str(told["text"])[:SAID_CHARS_MAX], "is_good": bool(told["is_good"])}
        except (ValueError, KeyError, TypeError):
            return None

    def redirect(self, request: Request, to: str, done: Done | None = None) -> Response:
        """To another page, which says what was done."""
        response = RedirectResponse(to, 303)
        if done is not None:
            told = orjson.dumps({"text": done.said[:SAID_CHARS_MAX], "is_good": done.is_good}).hex()
            self.set_cookie(request, response, (self._said_cookie(request), told), SAID_SECONDS)
        return response

    def set_cookie(self, request: Request, response: Response, cookie: tuple[str, str], seconds: int) -> None:
        """A cookie that no script can read, and that goes nowhere else."""
        is_secure = is_encrypted(request.scope, self.parts.settings.trusted_proxies)
        response.set_cookie(*cookie, seconds, path=HOME, httponly=True, samesite="lax", secure=is_secure)

    def trouble(self, visit: Visit | None, request: Request, error: EverworkError | Refusal) -> Response:
        """A page that says what went wrong."""
        status = error.status if isinstance(error, Refusal) else wire(error).http
        frame = self._frame(visit) if visit is not None else _bare(request)
        is_look = request.method in ("GET", "HEAD")
        said = self.said(request) if is_look else None
        detail = detail_of(error, AWAY if is_look else UNDONE)
        # Never after a form: a browser that loads its answer again sends the form again.
        about = {"status": status, "detail": detail, "title": title_of(status), "is_retried": is_look, "said": said}
        headers = {"Content-Security-Policy": POLICY, **(error.headers if isinstance(error, Refusal) else {})}
        response = Response(render("error.html", {**frame, **about}), status, headers, "text/html")
        if said is not None:
            response.delete_cookie(self._said_cookie(request), HOME)
        return response

    async def missing(self, request: Request) -> Response:
        """The page of an address under which there is none."""
        request.scope["everwork.operation"] = "ui"
        nothing = Refusal(404, "not_found", "there is no page at this address")
        try:
            return self.trouble(await self.visit(request, is_open=True), request, nothing)
        except EverworkError as error:
            return self.trouble(None, request, error)

    def _action(self, path: str) -> Action | None:
        return next((action for action in self._actions if action.path == path), None)

    def _said_cookie(self, request: Request) -> str:
        return f"{self.cookie(request)}_said"

    def _frame(self, visit: Visit) -> dict[str, Any]:
        """What every page shows around its own."""
        bare = _bare(visit.request) | {"path": visit.path}
        if not visit.session.token:
            return bare
        more = {"has_auth": self.parts.settings.has_auth, "csrf": visit.session.csrf, "here": visit.here()}
        return {**bare, "visit": visit, **more}


class _Static:
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["everwork.operation"] = "ui.static"
        found = asset(**scope["path_params"])
        if scope["method"] not in ("GET", "HEAD"):
            found = Response("this can only be read", 405, {"Allow": "GET, HEAD"}, "text/plain")
        response = found or Response("there is no such file", 404, media_type="text/plain")
        await response(scope, receive, send)


class _PageHandler:
    """What can be done on one path of the dashboard, as an ASGI application."""

    def __init__(self, dashboard: Dashboard, found: Mapping[str, Page | Action]) -> None:
        self._dashboard = dashboard
        self._found = found
        self._allowed = ", ".join(sorted([*found, *(["HEAD"] if "GET" in found else [])]))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        asked = self._found.get("GET" if request.method == "HEAD" else request.method)
        scope["everwork.operation"] = "ui" if asked is None else f"ui {asked.path}"
        response = await self._answer(request, asked)
        await response(scope, receive, send)

    async def _answer(self, request: Request, asked: Page | Action | None) -> Response:
        visit: Visit | None = None
        try:
            if asked is None:
                raise Refusal(405, "method_not_allowed", f"allowed here: {self._allowed}", {"Allow": self._allowed})
            visit = await self._dashboard.visit(request, is_open=asked.is_open)
            if visit.session.token:
                self._dashboard.parts.keys.spend(visit.principal)
            if isinstance(asked, Page):
                view = await asked.show(visit)
                if isinstance(view, Download):
                    return saved(view)
                return self._dashboard.page(visit, view, self._dashboard.said(request))
            return await self._act(visit, asked)
        except LoggedOut as error:
            return self._to_login(request, error)
        except (EverworkError, Refusal) as error:
            return self._dashboard.trouble(visit, request, error)

    async def _act(self, visit: Visit, action: Action) -> Response:
        require_own_site(visit.request)
        await visit.read_form()
        if not action.is_open:
            require_token(visit)
        if action.needs is not None:
            require_allowed(visit, action.needs)
        if action.asks and visit.optional("sure") is None:
            return self._dashboard.page(visit, question(visit))
        try:
            done = await action.act(visit)
        except PermissionDenied:
            raise
        except EverworkError as error:
            done = Done(detail_of(error, UNKNOWN), is_good=False)
        if isinstance(done, View):
            return self._dashboard.page(visit, done)
        response = self._dashboard.redirect(visit.request, done.to or visit.back, done if done.said else None)
        if done.session is not None:
            seconds = SESSION_MS // 1000 if done.session.token else 0
            cookie = (self._dashboard.cookie(visit.request), done.session.token)
            self._dashboard.set_cookie(visit.request, response, cookie, seconds)
        return response

    def _to_login(self, request: Request, error: LoggedOut) -> Response:
        if request.method not in ("GET", "HEAD"):
            over = LoggedOut(f"{error}; nothing was done: log in, and repeat")
            return self._dashboard.trouble(None, request, over)
        asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return self._dashboard.redirect(request, login_url(asked))


def is_under(path: str) -> bool:
    """Whether an address is one of the dashboard's."""
    return path == HOME or path.startswith(f"{HOME}/")


def login_url(asked: str) -> str:
    """The page to log in, and then to go on where somebody wanted to go."""
    return address(LOGIN, next=own_path(asked))


def saved(download: Download) -> Response:
    """A text of strangers as a file: never shown, never guessed to be anything else."""
    headers = {"Content-Disposition": f'attachment; filename="{download.name}"', "Content-Security-Policy": POLICY}
    return Response(download.text, media_type="text/plain", headers=headers)


def require_token(visit: Visit) -> None:
    """Refuse a form that no page of this session has shown."""
    token = visit.form.get("csrf", [""])[-1]
    if not hmac.compare_digest(token.encode(), visit.session.csrf.encode()):
        raise PermissionDenied("this form is out of date; nothing was done: load the page again, and repeat")


def require_allowed(visit: Visit, needed: Permission) -> None:
    """Refuse whoever's key does not allow an action. What administrators do concerns all tenants."""
    visit.principal.require(needed)
    if needed is Permission.ADMIN:
        visit.principal.require_unbound()


def question(visit: Visit) -> View:
    """What a form wants to do, as it says itself, to be sent once more by whoever means it."""
    fields = [(name, value) for name, values in visit.form.items() if name not in ASKING for value in values]
    said = {"question": visit.optional("question") or DOUBT, "deed": visit.optional("deed") or "Do it"}
    return View("sure.html", {**said, "fields": fields, "back": visit.back})


def require_own_site(request: Request) -> None:
    """Refuse a form that another site has sent."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None:
        is_own = site in ("same-origin", "none")
    else:
        is_own = origin is None or origin.partition("://")[2].lower() == request.headers.get("host", "").lower()
    if not is_own:
        raise PermissionDenied("forms of other sites are not taken; nothing was done")


def detail_of(error: EverworkError | Refusal, away: str = AWAY) -> str:
    """What went wrong, for people at the dashboard; `away` if it is the engine, whose words may name hosts."""
    is_away = isinstance(error, EverworkError) and wire(error).http == 503
    return away if is_away else as_written(str(error))


def title_of(status: int) -> str:
    """A status in a few words."""
    return {
        401: "The session is over",
        403: "Not allowed",
        404: "There is no such thing",
        409: "Not in this state",
        422: "That cannot be read",
        503: "The engine is away",
    }.get(status, "That did not work")


def _bare(request: Request) -> dict[str, Any]:
    """What even a page without visitor needs."""
    theme = request.cookies.get("everwork_theme", "")
    theme = theme if theme in THEMES else ""
    return {"visit": None, "said": None, "theme": theme, "path": request.scope["path"], "now_ms": host_clock()}
