"""The dashboard: dispatches requests to pages and actions, and shows errors as pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from everwork.aio.clocks import host_clock_ms
from everwork.codec.json import in_json_words
from everwork.exceptions import EngineError, EverworkError, PermissionDenied
from everwork.server.errors import public_text, wire
from everwork.server.http.framework.context import AppContext
from everwork.server.http.framework.in_flight import HOLD
from everwork.server.http.framework.operations import SegmentRoute
from everwork.server.http.framework.problems import Refusal
from everwork.server.http.ui.address import HOME, SERVER, address, local_address, prefix_of, under
from everwork.server.http.ui.page import Action, Done, Download, Page, View
from everwork.server.http.ui.render import ASSET_PATH, asset, render, render_live
from everwork.server.http.ui.session import LoggedOut, Visitors, require_same_origin, require_token
from everwork.server.http.ui.visit import Visit

LOGIN: Final = "/login"
REFUSED: Final = "you do not have access to this dashboard"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
UNAVAILABLE: Final = "The engine is unreachable or does not respond. No data is lost. This page retries automatically."
NOT_DONE: Final = "The engine is unreachable or does not respond. Nothing was changed. Try again when it is back."
OUTCOME_UNKNOWN: Final = (
    "The engine did not respond, so the change may or may not have been made. Check, and repeat it if needed."
)
CONFIRMATION_FIELDS: Final = frozenset({"csrf", "back", "sure", "question", "label"})
"""Fields of a form that belong to its confirmation, not to its action."""
DEFAULT_QUESTION: Final = "Are you sure?"
DEFAULT_LABEL: Final = "Confirm"
THEMES: Final = ("light", "dark")
OF_LOGIN: Final = ("/login", "/logout")
"""The paths of sessions."""


class Dashboard:
    """The pages and actions of one dashboard, as an ASGI application; addresses start with the request's prefix.

    Without a login page of its own, it has no pages or actions for visitors who are not logged in.
    """

    def __init__(
        self, context: AppContext, visitors: Visitors, pages: Sequence[Page], actions: Sequence[Action]
    ) -> None:
        self.context = context
        self.visitors = visitors
        self.pages = {one.path: one for one in pages if visitors.has_login or one.path not in OF_LOGIN}
        self._actions = {one.path: one for one in actions if visitors.has_login or one.path not in OF_LOGIN}
        self._routes = list(self.routes())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request, whose path is the one inside the dashboard (`address.below`)."""
        prefix = prefix_of(scope)
        with under(prefix):
            if scope["path"] == HOME and prefix.home == prefix.path:
                await RedirectResponse(prefix.home, 308)(scope, receive, send)
                return
            if scope["path"] == "":
                scope.update(path=HOME, raw_path=HOME.encode())
            for route in self._routes:
                match, found = route.matches(scope)
                if match.value:
                    scope.update(found)
                    await route.handle(scope, receive, send)
                    return
            response = await self._not_found(Request(scope, receive))
            await response(scope, receive, send)

    def add_route(self, route: SegmentRoute) -> None:
        """Add a path that is neither page nor action."""
        self._routes.insert(0, route)

    def routes(self) -> Iterator[SegmentRoute]:
        """The routes; fixed paths first."""
        yield SegmentRoute(ASSET_PATH, _Static())
        for path in sorted({*self.pages, *self._actions}, key=lambda one: "{" in one):
            targets = {"GET": self.pages.get(path), "POST": self._actions.get(path)}
            yield SegmentRoute(path, _PageHandler(self, {method: one for method, one in targets.items() if one}))

    def page(self, visit: Visit, view: View, flash: Mapping[str, Any] | None = None) -> Response:
        """A whole page, with the message of the last action."""
        html = render(view.template, {**self._layout(visit), **view.context, "flash": flash})
        response = Response(html, view.status, media_type="text/html", headers={"Content-Security-Policy": POLICY})
        if flash is not None:
            self.visitors.clear_flash(visit.request, response)
        self.visitors.remember(visit, response)
        return response

    def live_html(self, visit: Visit, view: View) -> str:
        """The live part of a page."""
        return render_live(view.template, {**self._layout(visit), **view.context, "flash": None})

    def redirect(self, request: Request, to: str, done: Done | None = None) -> Response:
        """Redirect to another page, which shows the message of the action."""
        response = RedirectResponse(to, 303)
        if done is not None:
            self.visitors.set_flash(request, response, done)
        return response

    def error_page(self, visit: Visit | None, request: Request, error: EverworkError | Refusal) -> Response:
        """A page that describes an error."""
        status = error.status if isinstance(error, Refusal) else wire(error).http
        layout = self._layout(visit) if visit is not None else _bare_layout(request) | {"login_url": self._login_url}
        is_read = request.method in ("GET", "HEAD")
        flash = self.visitors.flash(request) if is_read else None
        detail = detail_of(error, UNAVAILABLE if is_read else NOT_DONE)
        # Never after a form: a browser that reloads the response sends the form again.
        about = {"status": status, "detail": detail, "title": title_of(status), "is_retried": is_read, "flash": flash}
        headers = {"Content-Security-Policy": POLICY, **(error.headers if isinstance(error, Refusal) else {})}
        response = Response(render("error.html", {**layout, **about}), status, headers, "text/html")
        if flash is not None:
            self.visitors.clear_flash(request, response)
        return response

    async def _not_found(self, request: Request) -> Response:
        """The error page of an unknown path."""
        request.scope["everwork.operation"] = "ui"
        error = Refusal(404, "not_found", "no page at this address")
        try:
            return self.error_page(await self.visitors.visit(request, is_open=True), request, error)
        except EverworkError as failure:
            return self.error_page(None, request, failure)

    @property
    def has_login(self) -> bool:
        """Whether visitors can log in and out here."""
        return self.visitors.has_login and self.context.settings.has_auth

    @property
    def _login_url(self) -> str:
        """The login page; empty without one."""
        return address(LOGIN) if self.visitors.has_login else ""

    def _layout(self, visit: Visit) -> dict[str, Any]:
        """The template context that every page needs."""
        bare = _bare_layout(visit.request) | {"path": visit.path, "login_url": self._login_url}
        if not visit.session.token:
            return bare
        more = {"has_login": self.has_login, "csrf": visit.session.csrf, "here": visit.url()}
        return {**bare, "visit": visit, **more}


class _Static:
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["everwork.operation"] = "ui.static"
        found = asset(**scope["path_params"])
        if scope["method"] not in ("GET", "HEAD"):
            found = Response("read-only", 405, {"Allow": "GET, HEAD"}, "text/plain")
        response = found or Response("file not found", 404, media_type="text/plain")
        await response(scope, receive, send)


class _PageHandler:
    """The page and the action on one path, as an ASGI application."""

    def __init__(self, dashboard: Dashboard, targets: Mapping[str, Page | Action]) -> None:
        self._dashboard = dashboard
        self._targets = targets
        self._allowed = ", ".join(sorted([*targets, *(["HEAD"] if "GET" in targets else [])]))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        target = self._targets.get("GET" if request.method == "HEAD" else request.method)
        scope["everwork.operation"] = operation_name(target)
        response = await self._respond(request, target)
        await response(scope, receive, send)

    async def _respond(self, request: Request, target: Page | Action | None) -> Response:
        visit: Visit | None = None
        try:
            if target is None:
                raise Refusal(405, "method_not_allowed", f"allowed methods: {self._allowed}", {"Allow": self._allowed})
            visit = await self._dashboard.visitors.visit(request, is_open=target.is_open)
            if visit.session.token:
                request.scope[HOLD].owner = visit.principal.id
                self._dashboard.context.keys.spend(visit.principal)
            return await (self._show(visit, target) if isinstance(target, Page) else self._act(visit, target))
        except LoggedOut as error:
            return self._to_login(request, error)
        except (EverworkError, Refusal) as error:
            return self._dashboard.error_page(visit, request, error)

    async def _show(self, visit: Visit, page: Page) -> Response:
        async with visit.turn:
            view = await page.show(visit)
        if isinstance(view, Download):
            return download_response(view)
        return self._dashboard.page(visit, view, self._dashboard.visitors.flash(visit.request))

    async def _act(self, visit: Visit, action: Action) -> Response:
        require_same_origin(visit.request)
        await visit.read_form()
        if not action.is_open:
            require_token(visit)
        if action.rule is not None:
            action.rule.admit(visit.caller.principal)
        if action.confirms and visit.optional("sure") is None:
            return self._dashboard.page(visit, confirmation(visit))
        try:
            async with visit.turn:
                done = await action.act(visit)
        except PermissionDenied:
            raise
        except EverworkError as error:
            done = Done(detail_of(error, OUTCOME_UNKNOWN), is_good=False)
        return self._dashboard.page(visit, done) if isinstance(done, View) else self._redirect(visit, done)

    def _redirect(self, visit: Visit, done: Done) -> Response:
        target = done.redirect_to or visit.back
        response = self._dashboard.redirect(visit.request, target, done if done.message else None)
        if done.session is not None:
            self._dashboard.visitors.set_session(visit.request, response, done.session)
        return response

    def _to_login(self, request: Request, error: LoggedOut) -> Response:
        if not self._dashboard.visitors.has_login:
            return self._dashboard.error_page(None, request, PermissionDenied(REFUSED))
        if request.method not in ("GET", "HEAD"):
            over = LoggedOut(f"{error}; nothing was changed: log in and try again")
            return self._dashboard.error_page(None, request, over)
        query = request.scope["query_string"].decode("latin-1")
        wanted = address(request.scope["path"]) + (f"?{query}" if query else "")
        return self._dashboard.redirect(request, address(LOGIN, next=local_address(wanted)))


def operation_name(target: Page | Action | None) -> str:
    """The name of a page or action in metrics: its path on a server, wherever it is mounted."""
    return "ui" if target is None else f"ui {SERVER.at(target.path)}"


def download_response(download: Download) -> Response:
    """A file of untrusted text; the browser must never display it or guess its content type."""
    headers = {"Content-Disposition": f'attachment; filename="{download.name}"', "Content-Security-Policy": POLICY}
    return Response(download.text, media_type="text/plain", headers=headers)


def confirmation(visit: Visit) -> View:
    """A page that asks the form's own question, and sends the form again once confirmed."""
    fields = [
        (name, value) for name, values in visit.form.items() if name not in CONFIRMATION_FIELDS for value in values
    ]
    question, label = visit.optional("question") or DEFAULT_QUESTION, visit.optional("label") or DEFAULT_LABEL
    return View("sure.html", {"question": question, "label": label, "fields": fields, "back": visit.back})


def detail_of(error: EverworkError | Refusal, unavailable: str = UNAVAILABLE) -> str:
    """An error message for the page; `unavailable` replaces the engine's own message, which may name hosts."""
    if isinstance(error, Refusal):
        return in_json_words(str(error))
    text = public_text(error)
    return unavailable if isinstance(error, EngineError) else in_json_words(text)


def title_of(status: int) -> str:
    """The title of an error page."""
    return {
        401: "Session expired",
        403: "Not allowed",
        404: "Not found",
        408: "Too slow",
        409: "Not possible in this state",
        413: "Too large",
        415: "Not a form",
        422: "Invalid input",
        429: "Too many requests",
        503: "Engine unavailable",
    }.get(status, "Something went wrong")


def _bare_layout(request: Request) -> dict[str, Any]:
    """The template context of a page without a visitor."""
    theme = request.cookies.get("everwork_theme", "")
    theme = theme if theme in THEMES else ""
    return {"visit": None, "flash": None, "theme": theme, "path": request.scope["path"], "now_ms": host_clock_ms()}
