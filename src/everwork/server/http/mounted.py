"""The dashboard of an application, mounted in another ASGI application under any path.

Pages run in the event loop of the application's engine. Checking the visitor, receiving and sending happen in the web
server's loop, so each request crosses from one loop to the other and back.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everwork.app.access import Access
from everwork.app.engine_host import EngineHost
from everwork.core import checks
from everwork.exceptions import BadConfiguration, EngineError
from everwork.server.http.app import MOUNTED_PATHS, make_api, make_dashboard
from everwork.server.http.framework.body import BULK_BYTES_MAX
from everwork.server.http.framework.context import PRINCIPAL, AppContext
from everwork.server.http.framework.middleware import ResponseMiddleware
from everwork.server.http.framework.peer import is_same_origin
from everwork.server.http.framework.problems import problem
from everwork.server.http.ui import live
from everwork.server.http.ui.address import Prefix, below, mounted
from everwork.server.http.ui.dashboard import REFUSED
from everwork.server.http.ui.session import CheckedVisitors, LoggedInVisitors
from everwork.server.metrics import Metrics
from everwork.server.readiness import Readiness
from everwork.server.settings import MASKED, Settings
from everwork.service.access.keys import require_environment_key
from everwork.service.access.principal import ANYBODY, Principal
from everwork.service.service import JobService

KEY_VARIABLE: Final = "EVERWORK_API_KEY"
LIVE_SECONDS: Final = 15.0
"""How long one response streams a live page; after that, its visitor is checked again, and the web server can stop."""
UNAVAILABLE: Final = "the dashboard's engine is unavailable; retry later"

Verdict = Access | Response | None
Auth = Callable[[Request], Verdict | Awaitable[Verdict]]


class MountedDashboard:
    """The dashboard as an ASGI application. `auth` checks visitors; without it, they log in with an API key."""

    def __init__(
        self,
        host: EngineHost,
        close: Callable[[], Awaitable[None]],
        *,
        auth: Auth | None,
        public: bool,
        masked: Sequence[str],
        api: bool = False,
    ) -> None:
        if auth is not None and public:
            raise BadConfiguration("dashboard: pass either auth= or public=True, not both")
        if auth is not None and not callable(auth):
            raise BadConfiguration(
                f"dashboard: auth must be a function that takes the request, not {checks.shown(auth)}"
            )
        self._host = host
        self._close = close
        self._auth = auth
        self._is_public = public
        self._has_api = api
        key = os.environ.get(KEY_VARIABLE) or None
        self._key = None if key is None else require_environment_key(key)
        self._settings = Settings(masked_variables=(*MASKED, *(checks.name("masked_variables", one) for one in masked)))
        self._opened: tuple[JobService, asyncio.Task[ASGIApp]] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request; if served standalone, also open and close the application."""
        match scope["type"]:
            case "http":
                await self._respond(scope, receive, send)
            case "lifespan":
                await self._live(receive, send)
            case _:
                await send({"type": "websocket.close", "code": 1000})

    async def open(self) -> None:
        """Start sampling now, not with the first visitor, so that charts have data."""
        await self._host.call(self._application)

    # In the web server's loop ---------------------------------------------------------------------

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        inner = below(scope, *place_of(scope))
        if not inner["path"].startswith("/static/"):
            body = ReadAgain(receive)
            receive = body.receive
            verdict = await self._check(Request(scope, body.look), is_live=inner["path"] == live.PATH)
            if isinstance(verdict, Response):
                await verdict(scope, receive, send)
                return
            if not self._has_login:
                inner[PRINCIPAL] = verdict
        await self._hop(inner, receive, send)

    async def _check(self, request: Request, *, is_live: bool) -> Principal | Response | None:
        """Return the visitor, or the response that refuses the request; an open page is notified of the refusal."""
        if self._is_public:
            return ANYBODY
        if self._auth is None:
            return None
        try:
            verdict = await _called(self._auth, request)
        except HTTPException as error:
            if is_live:
                return None
            if "app" in request.scope:
                raise  # The surrounding application creates the response.
            return problem(error.status_code, "refused", str(error.detail), headers=error.headers)
        if isinstance(verdict, Response):
            return None if is_live else verdict
        if verdict is None or isinstance(verdict, Access):
            return None if verdict is None else verdict.principal
        raise BadConfiguration(f"dashboard: auth must return an Access or None, not {checks.shown(verdict)}")

    async def _hop(self, scope: Scope, receive: Receive, send: Send) -> None:
        web, has_started = asyncio.get_running_loop(), False

        def here(call: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
            return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, web))

        async def receive_here() -> Message:
            message: Message = await here(_awaited(receive()))
            return message

        async def send_here(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await here(_awaited(send(message)))

        async def serve(service: JobService) -> None:
            await (await self._application(service))(scope, receive_here, send_here)

        try:
            await self._host.call(serve)
        except EngineError:
            if not has_started:
                await problem(503, "engine_unavailable", UNAVAILABLE)(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """The lifespan protocol, for a dashboard that no other application mounts."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self._close()
                await send({"type": "lifespan.shutdown.complete"})
                return
            await self._host.open()
            await send({"type": "lifespan.startup.complete"})

    # In the engine's loop -------------------------------------------------------------------------

    async def _application(self, service: JobService) -> ASGIApp:
        """The dashboard of the current service; an application that was closed and reopened has a new one."""
        if self._opened is None or self._opened[0] is not service or _has_failed(self._opened[1]):
            self._opened = service, asyncio.create_task(self._open(service))
        return await asyncio.shield(self._opened[1])

    @property
    def _has_login(self) -> bool:
        return self._auth is None and not self._is_public

    async def _open(self, service: JobService) -> ASGIApp:
        has_login = self._has_login
        keys, sampler = service.key_ring(self._key if has_login else None), service.sampler()
        if has_login:
            await keys.open(is_store_open=service.is_connected)
        await sampler.open()
        context = AppContext(
            service, keys, self._settings, sampler, Readiness(service), Metrics(), asyncio.Event(), is_mounted=True
        )

        async def close() -> None:
            context.stopping.set()
            await sampler.close()
            await keys.close()

        self._host.portal.before_close(close)
        visitors = LoggedInVisitors(context) if has_login else CheckedVisitors(context)
        lasting = live.Lasting(LIVE_SECONDS, is_web_server_stopping)
        dashboard = make_dashboard(context, visitors, lasting)
        return ResponseMiddleware(WithApi(dashboard, make_api(context)) if self._has_api else dashboard, context)


class ReadAgain:
    """The body of a request, which a check may read before the page; no page accepts more than `BULK_BYTES_MAX`."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._seen: deque[Message] = deque()
        self._bytes = 0

    async def look(self) -> Message:
        """The next message, for the check."""
        message = await self._receive()
        self._bytes += len(message.get("body", b""))
        if self._bytes > BULK_BYTES_MAX:
            raise HTTPException(413, f"the body must be at most {BULK_BYTES_MAX // 1_048_576} MiB")
        self._seen.append(message)
        return message

    async def receive(self) -> Message:
        """The next message, for the page."""
        return self._seen.popleft() if self._seen else await self._receive()


class WithApi:
    """The dashboard and the REST API, behind the same check."""

    def __init__(self, dashboard: ASGIApp, api: ASGIApp) -> None:
        self._dashboard = dashboard
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request, whose path is relative to the mount."""
        is_api = scope["path"].startswith(MOUNTED_PATHS)
        if is_api and PRINCIPAL in scope and (refusal := _refusal(scope)) is not None:
            await problem(403, "permission_denied", refusal)(scope, receive, send)
            return
        await (self._api if is_api else self._dashboard)(scope, receive, send)


def _refusal(scope: Scope) -> str | None:
    """Why a call is refused, if it is; the check may rely on cookies, which browsers also send from other origins."""
    if scope[PRINCIPAL] is None:
        return REFUSED
    is_read = scope["method"] in ("GET", "HEAD")
    return None if is_read or is_same_origin(scope) else "cross-origin requests are refused"


def place_of(scope: Scope) -> tuple[Prefix, int]:
    """The prefix that browsers see, and how many segments of the path belong to it.

    `root_path` contains the prefix stripped by a proxy and the mount path; servers differ in whether the
    path still contains the stripped prefix.
    """
    root, path = scope.get("root_path", "").rstrip("/"), scope["path"]
    mount = root.removeprefix(scope.get("app_root_path", "").rstrip("/"))
    for start in (root, mount):
        if path == start or path.startswith(f"{start}/"):
            return mounted(root), start.count("/")
    return mounted(root), 0


def is_web_server_stopping() -> bool:
    """Whether uvicorn is stopping: it waits for open responses before it ends the application's lifespan."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True


async def _called(auth: Auth, request: Request) -> object:
    """The result of a check; a plain function can block, so it is called in a thread."""
    if iscoroutinefunction(auth) or iscoroutinefunction(getattr(auth, "__call__", None)):  # noqa: B004
        return await _awaited(auth(request))
    verdict = await asyncio.to_thread(auth, request)
    return await verdict if isawaitable(verdict) else verdict


def _has_failed(opening: asyncio.Task[ASGIApp]) -> bool:
    return opening.done() and (opening.cancelled() or opening.exception() is not None)


async def _awaited(call: Any) -> Any:
    return await call
