"""Live pages: what changes on a page is rendered again while it is looked at, and sent as server-sent events."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from everwork.aio.loops import first_of
from everwork.core.limits import LIVE_PAGES_EACH_MAX, LIVE_PAGES_MAX
from everwork.exceptions import EverworkError
from everwork.logs import get_logger
from everwork.server.http.framework.problems import problem
from everwork.server.http.ui.dashboard import Dashboard, LoggedOut, detail_of
from everwork.server.http.ui.page import Download, Page
from everwork.server.http.ui.visit import Visit, own_path

log = get_logger("everwork")

PATH: Final = "/ui/live"
EVENTS: Final = "text/event-stream"
CROWDED: Final = "Too many pages are followed at once; this one is not kept up to date. Close some, or load it again."
SEND_SECONDS: Final = 30.0
"""So long a viewer may take to read what was sent."""
LOOK_SECONDS: Final = 1.0
SHARE: Final = 20
"""A page that takes long to make is made less often: at most this part of the time is spent on one."""
KEEP_SECONDS: Final = 15.0
"""Something is sent at least so often, so that nobody on the way takes the connection for dead."""


class Live:
    """An ASGI application: `/ui/live?path=/ui/jobs?state=failed` follows that page."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        self._open: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Follow one page for as long as somebody looks; whoever does not read what he is sent is left."""
        scope["everwork.operation"] = "ui.live"

        async def timely(message: Message) -> None:
            async with asyncio.timeout(SEND_SECONDS):
                await send(message)

        response = self._answer(Request(scope, receive))
        with suppress(TimeoutError):
            await response(scope, receive, timely)

    def _answer(self, request: Request) -> Response:
        found = self._page(own_path(request.query_params.get("path", "")), request.scope)
        if request.method != "GET" or found is None:
            return problem(404, "not_found", "there is no such page")
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        who = request.cookies.get(self._dashboard.cookie(request), "")
        if self._open[who] >= LIVE_PAGES_EACH_MAX or self._open.total() >= LIVE_PAGES_MAX:
            return Response(_event("crowded", CROWDED), media_type=EVENTS, headers=headers)
        return StreamingResponse(self._events(who, *found), media_type=EVENTS, headers=headers)

    def _page(self, path: str, scope: Scope) -> tuple[Page, Request] | None:
        """The page that a path names, and the request for it that nobody has sent."""
        raw, _, query = path.partition("?")
        asked = {**scope, "raw_path": raw.encode(), "path": raw, "query_string": query.encode()}
        for route in self._dashboard.routes():
            match, more = route.matches(asked)
            page = self._dashboard.pages.get(route.path)
            if match.value and page is not None and not page.is_open:
                return page, Request({**asked, **more})
        return None

    async def _events(self, who: str, page: Page, asked: Request) -> AsyncIterator[bytes]:
        self._open[who] += 1
        try:
            async for event in self._followed(page, asked):
                yield event
        except Exception:  # the last resort of an answer that has begun: broken off, it would look like a lost server
            log.exception("a live page met a defect", page=page.path)
            yield _event("trouble", "The server met a defect; its log says more. This page is not kept up to date.")
        finally:
            self._open[who] -= 1
            self._open += Counter()  # Forgets those who have none.

    async def _followed(self, page: Page, asked: Request) -> AsyncIterator[bytes]:
        loop, stopping = asyncio.get_running_loop(), self._dashboard.parts.stopping
        last, sent_at = b"", loop.time()
        yield b"retry: 2000\n\n"
        # After a restart all pages come back at once, and have just been shown.
        await first_of(stopping, seconds=random.uniform(0, LOOK_SECONDS / 2))  # noqa: S311 - jitter, not a secret
        while not stopping.is_set():
            begun = loop.time()
            event, is_over = await self._event(page, asked)
            if event != last or loop.time() - sent_at > KEEP_SECONDS:
                yield event if event != last else b": still here\n\n"
                last, sent_at = event, loop.time()
            if is_over:
                return
            await first_of(stopping, seconds=max(LOOK_SECONDS, SHARE * (loop.time() - begun)))

    async def _event(self, page: Page, asked: Request) -> tuple[bytes, bool]:
        """What there is to see now; whether it was the last of it."""
        try:
            visit: Visit = await self._dashboard.visit(asked)
            view = await page.show(visit)
            if isinstance(view, Download):
                return _event("trouble", "this is a file, and no page"), True
            html = self._dashboard.live(visit, view)
        except LoggedOut as error:
            return _event("ended", str(error)), True
        except EverworkError as error:
            return _event("trouble", detail_of(error)), False
        return _event("page", html), False


def _event(name: str, said: str) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(said) + b"\n\n"
