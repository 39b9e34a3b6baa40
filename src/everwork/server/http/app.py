"""The ASGI application: the REST API and the dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Router
from starlette.types import Receive, Scope, Send

from everwork.exceptions import EverworkError
from everwork.server.http.api import activate, admin, changes, dead_letters, fleet, jobs, outcomes, policies, probes
from everwork.server.http.framework.context import PRINCIPAL, AppContext
from everwork.server.http.framework.middleware import ResponseMiddleware
from everwork.server.http.framework.openapi import describe
from everwork.server.http.framework.operations import (
    Call,
    Operation,
    PathHandler,
    ResponseSpec,
    SegmentRoute,
    json_response,
)
from everwork.server.http.framework.problems import Refusal, problem, problem_of
from everwork.server.http.ui import live
from everwork.server.http.ui.address import SERVER, below, prefix_of
from everwork.server.http.ui.dashboard import Dashboard
from everwork.server.http.ui.pages import ACTIONS, PAGES
from everwork.server.http.ui.session import LoggedInVisitors, Visitors

NOTHING_HERE: Final = "no such path"
_ROWS: Final = (
    *jobs.OPERATIONS,
    *activate.OPERATIONS,
    *outcomes.OPERATIONS,
    *changes.OPERATIONS,
    *dead_letters.OPERATIONS,
    *policies.OPERATIONS,
    *admin.OPERATIONS,
    *fleet.OPERATIONS,
    *probes.OPERATIONS,
)


def make_app(context: AppContext) -> Starlette:
    """Build the application: all operations, the dashboard, and problem documents for errors."""
    app = Starlette()
    app.router.redirect_slashes = False
    for path, operations in _by_path(OPERATIONS).items():
        app.router.routes.append(SegmentRoute(path, PathHandler(context, operations)))
    app.router.routes.append(DashboardRoute(make_dashboard(context, LoggedInVisitors(context))))
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(EverworkError, _everwork_problem)
    app.add_middleware(ResponseMiddleware, context=context)
    return app


def make_api(context: AppContext) -> Router:
    """Build the REST API of a mounted dashboard, which has no prefix, health checks or metrics."""
    routes = [SegmentRoute(path, PathHandler(context, found)) for path, found in _by_path(MOUNTED).items()]
    return Router(routes, redirect_slashes=False, default=_nothing)


def make_dashboard(context: AppContext, visitors: Visitors, lasting: live.Lasting | None = None) -> Dashboard:
    """Build the dashboard, without a prefix."""
    dashboard = Dashboard(context, visitors, PAGES, ACTIONS)
    dashboard.add_route(SegmentRoute(live.PATH, live.Live(dashboard, lasting)))
    return dashboard


class DashboardRoute(BaseRoute):
    """Everything under /ui."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether a request is for the dashboard."""
        path: str = scope.get("path", "")
        is_own = scope["type"] == "http" and (path == SERVER.path or path.startswith(f"{SERVER.path}/"))
        return (Match.FULL if is_own else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; the operation's name is stored in the scope, for metrics."""
        inner = below(scope, SERVER, 1)
        try:
            await self._dashboard(inner, receive, send)
        finally:
            scope["everwork.operation"] = inner.get("everwork.operation", "ui")


async def openapi(call: Call) -> Response:
    """The OpenAPI document."""
    scope = call.request.scope
    if not call.context.is_mounted:
        return Response(_DOCUMENT_JSON, media_type="application/json")
    return json_response(
        {**_mounted_document(PRINCIPAL not in scope), "servers": [{"url": prefix_of(scope).path or "/"}]}
    )


OPERATIONS: Final = (
    *_ROWS,
    Operation(
        "getOpenApi",
        "GET",
        "/openapi.json",
        openapi,
        "Get this OpenAPI document",
        {200: ResponseSpec("The OpenAPI 3.1 document.", {"type": "object"})},
    ),
)
"""Every operation of the REST API."""
DOCUMENT: Final = describe(OPERATIONS)
_DOCUMENT_JSON: Final = orjson.dumps(DOCUMENT)
MOUNTED_PATHS: Final = ("/api/", "/docs", "/openapi.json")
MOUNTED: Final = tuple(one for one in OPERATIONS if one.path.startswith(MOUNTED_PATHS))
"""The operations that are also served below a mounted dashboard."""


@cache
def _mounted_document(has_keys: bool) -> dict[str, Any]:
    return describe(MOUNTED, has_keys=has_keys)


def _by_path(operations: tuple[Operation, ...]) -> Mapping[str, dict[str, Operation]]:
    """Group operations by path, fixed paths first, so that a fixed segment is never matched as a path parameter."""
    found: dict[str, dict[str, Operation]] = {}
    for operation in sorted(operations, key=lambda one: "{" in one.path):
        found.setdefault(operation.path, {})[operation.method] = operation
    return found


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    await problem(404, "not_found", NOTHING_HERE)(scope, receive, send)


async def _http_problem(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for nothing else
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "refused")
    detail = NOTHING_HERE if error.status_code == 404 else str(error.detail)
    return problem(error.status_code, code, detail, headers=error.headers)


async def _everwork_problem(_request: Request, error: Exception) -> Response:
    assert isinstance(error, EverworkError | Refusal)  # noqa: S101 - it is registered for nothing else
    return problem_of(error)
