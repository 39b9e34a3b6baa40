"""Live pages: the changing part of an open page is rendered repeatedly and sent as server-sent events."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from everwork.aio.loops import first_of
from everwork.core.limits import LIVE_PAGES_EACH_MAX, LIVE_PAGES_KEY_MAX, LIVE_PAGES_MAX
from everwork.exceptions import EverworkError
from everwork.logs import get_logger
from everwork.server.http.framework.in_flight import HOLD
from everwork.server.http.framework.problems import problem
from everwork.server.http.ui.address import HOME, inner_path
from everwork.server.http.ui.dashboard import Dashboard, detail_of
from everwork.server.http.ui.page import Download, Page
from everwork.server.http.ui.session import LoggedOut
from everwork.server.http.ui.visit import Visit
from everwork.service.access.budgets import decrement

log = get_logger("everwork")

PATH: Final = "/live"
EVENTS: Final = "text/event-stream"
TOO_MANY_PAGES: Final = "Too many live pages are open, so this one is not updated. Close some, or reload it."
STALE: Final = (
    "The engine is unreachable or does not respond. This page shows the last known data and retries automatically."
)
SEND_SECONDS: Final = 30.0
"""The time a viewer has to read an event."""
REFRESH_SECONDS: Final = 1.0
COST_FACTOR: Final = 20
"""The pause after rendering, as a multiple of the render time: slow pages are rendered less often."""
KEEP_ALIVE_SECONDS: Final = 15.0
"""The longest silence, so that no proxy mistakes the connection for dead."""


class Lasting(NamedTuple):
    """When a stream ends: after `seconds_max` (then the page reconnects), or once `is_over` (the web server stops)."""

    seconds_max: float = math.inf
    is_over: Callable[[], bool] = bool
    """Always false by default: only the stop of our own server counts."""


class Viewer(NamedTuple):
    """Who watches live pages, and so whose pages are counted together."""

    session: str
    key: str


UNCHECKED: Final = Viewer("", "")


class Live:
    """The ASGI application of `live?path=...`, which streams the page of that address.

    `lasting`: how long a stream lasts.
    """

    def __init__(self, dashboard: Dashboard, lasting: Lasting | None = None) -> None:
        self._dashboard = dashboard
        self._lasting = lasting or Lasting()
        self._open = 0
        self._open_by_session: Counter[str] = Counter()
        self._open_by_key: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream one page until the viewer disconnects or stops reading."""
        scope["everwork.operation"] = "ui.live"

        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(SEND_SECONDS):
                await send(message)

        response, viewer = await self._respond(Request(scope, receive))
        with suppress(TimeoutError), self._counted(viewer):
            await response(scope, receive, send_in_time)

    async def _respond(self, request: Request) -> tuple[Response, Viewer | None]:
        """The response, and who watches it if it lasts."""
        found = self._page(inner_path(request.query_params.get("path", "")) or HOME, request.scope)
        if request.method != "GET" or found is None:
            return problem(404, "not_found", "page not found"), None
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        try:
            viewer = await self._viewer(found[1])
        except LoggedOut as error:
            return Response(_event("ended", str(error)), media_type=EVENTS, headers=headers), None
        if self._is_crowded(viewer):
            return Response(_event("crowded", TOO_MANY_PAGES), media_type=EVENTS, headers=headers), None
        return StreamingResponse(self._events(*found), media_type=EVENTS, headers=headers), viewer

    async def _viewer(self, page_request: Request) -> Viewer:
        """Who watches; only visitors with a checked session are counted separately."""
        try:
            visit: Visit = await self._dashboard.visitors.visit(page_request)
        except LoggedOut:
            raise
        except EverworkError:
            return UNCHECKED  # The store is unavailable, so the session cannot be read; the page says so.
        page_request.scope[HOLD].owner = visit.principal.id
        return Viewer(visit.session.token, visit.principal.id)

    def _is_crowded(self, viewer: Viewer) -> bool:
        return (
            self._open >= LIVE_PAGES_MAX
            or self._open_by_session[viewer.session] >= LIVE_PAGES_EACH_MAX
            or self._open_by_key[viewer.key] >= LIVE_PAGES_KEY_MAX
        )

    @contextmanager
    def _counted(self, viewer: Viewer | None) -> Iterator[None]:
        if viewer is None:
            yield
            return
        self._open += 1
        self._open_by_session[viewer.session] += 1
        self._open_by_key[viewer.key] += 1
        try:
            yield
        finally:
            self._open -= 1
            decrement(self._open_by_session, viewer.session)
            decrement(self._open_by_key, viewer.key)

    def _page(self, path: str, scope: Scope) -> tuple[Page, Request] | None:
        """The page of a path, and a request for it."""
        raw, _, query = path.partition("?")
        page_scope = {**scope, "raw_path": raw.encode(), "path": raw, "query_string": query.encode()}
        for route in self._dashboard.routes():
            match, more = route.matches(page_scope)
            page = self._dashboard.pages.get(route.path)
            if match.value and page is not None and not page.is_open:
                return page, Request({**page_scope, **more})
        return None

    async def _events(self, page: Page, page_request: Request) -> AsyncIterator[bytes]:
        try:
            async for event in self._follow(page, page_request):
                yield event
        except Exception:  # the last resort: aborting a started response would look like a lost server
            log.exception("internal error in a live page", page=page.path)
            yield _event("trouble", "Internal error; see the server log. This page is no longer updated.")

    async def _follow(self, page: Page, page_request: Request) -> AsyncIterator[bytes]:
        loop, stopping = asyncio.get_running_loop(), self._dashboard.context.stopping
        last, sent_at, ends = b"", loop.time(), loop.time() + self._lasting.seconds_max
        yield b"retry: 2000\n\n"
        # After a restart, all pages have just been rendered and reconnect at the same time.
        await first_of(stopping, seconds=random.uniform(0, REFRESH_SECONDS / 2))  # noqa: S311 - jitter, not a secret
        while not (stopping.is_set() or self._lasting.is_over()):
            started = loop.time()
            event, is_over = await self._event(page, page_request)
            if event != last or loop.time() - sent_at > KEEP_ALIVE_SECONDS:
                yield event if event != last else b": still here\n\n"
                last, sent_at = event, loop.time()
            if is_over:
                return
            if loop.time() > ends:
                yield _event("again", "")
                return
            await first_of(stopping, seconds=max(REFRESH_SECONDS, COST_FACTOR * (loop.time() - started)))

    async def _event(self, page: Page, page_request: Request) -> tuple[bytes, bool]:
        """The event with the current state of the page, and whether it is the last event."""
        try:
            visit: Visit = await self._dashboard.visitors.visit(page_request)
            async with visit.turn:
                view = await page.show(visit)
            if isinstance(view, Download):
                return _event("trouble", "this address is a file, not a page"), True
            html = self._dashboard.live_html(visit, view)
        except LoggedOut as error:
            return _event("ended", str(error)), True
        except EverworkError as error:
            return _event("trouble", detail_of(error, STALE)), False
        return _event("page", html), False


def _event(name: str, data: str) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(data) + b"\n\n"
