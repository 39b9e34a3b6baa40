"""Health, readiness, metrics, and the API reference."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Final

from starlette.responses import RedirectResponse, Response

from everwork.exceptions import EngineError
from everwork.server.http.api.schemas import ref
from everwork.server.http.framework.context import AppContext
from everwork.server.http.framework.operations import Call, Operation, ResponseSpec, json_response
from everwork.server.http.framework.problems import problem
from everwork.server.metrics import CONTENT_TYPE, FleetState
from everwork.server.readiness import ENGINE_SECONDS
from everwork.service.access.principal import Permission
from everwork.service.verb import UNBOUND, Rule

_PAGE: Final = (Path(__file__).parent / "docs.html").read_bytes()


async def healthz(call: Call) -> Response:  # noqa: ARG001 - every handler takes the call
    """The process is alive."""
    return json_response({"status": "ok"})


async def readyz(call: Call) -> Response:
    """The engine is reachable and accepts writes, and maintenance is running."""
    if call.context.stopping.is_set():
        return problem(503, "stopping", "the server is stopping")
    if (unready := await call.context.readiness.check()) is not None:
        return problem(503, *unready)
    return json_response({"status": "ready"})


async def metrics(call: Call) -> Response:
    """Prometheus metrics; if the engine is unreachable, only the metrics of this process."""
    context = call.context
    service = context.service
    spool = await service.spool_status()
    text = context.metrics.text(await _sample(context), service.upkeep_age_s, spool, service.clock_jumps)
    return Response(text, headers={"Content-Type": CONTENT_TYPE})


async def _sample(context: AppContext) -> FleetState | None:
    try:
        async with asyncio.timeout(ENGINE_SECONDS):
            sample = await context.sampler.recent()
            managers, processes = await context.service.fleet.count_live()
    except (EngineError, TimeoutError):
        return None
    return FleetState(sample, context.sampler.totals, managers, processes)


async def docs(call: Call) -> Response:  # noqa: ARG001 - every handler takes the call
    """The API reference as a web page."""
    return Response(_PAGE, media_type="text/html", headers={"Content-Security-Policy": _POLICY})


async def home(call: Call) -> Response:  # noqa: ARG001 - every handler takes the call
    """Redirect to the dashboard."""
    return RedirectResponse("/ui", 307)


def _hash_of(tag: str) -> str:
    """The CSP hash of the page's own script or style."""
    content = _PAGE.partition(f"<{tag}>".encode())[2].partition(f"</{tag}>".encode())[0]
    return f"'sha256-{b64encode(sha256(content).digest()).decode()}'"


_POLICY: Final = (
    f"default-src 'none'; script-src {_hash_of('script')}; style-src {_hash_of('style')}; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_STATUS: Final = ref("Status")
_HTML: Final = ResponseSpec("The page.", {"type": "string"}, "text/html")

OPERATIONS: Final = (
    Operation(
        "healthz",
        "GET",
        "/healthz",
        healthz,
        "Check that the process is alive",
        {200: ResponseSpec("The process is alive.", _STATUS)},
    ),
    Operation(
        "readyz",
        "GET",
        "/readyz",
        readyz,
        "Check that the server is ready: the engine is reachable and accepts writes, and maintenance is running",
        {200: ResponseSpec("The server is ready.", _STATUS)},
        problems=(503,),
    ),
    Operation(
        "getMetrics",
        "GET",
        "/metrics",
        metrics,
        "Get metrics for Prometheus",
        {200: ResponseSpec("Metrics in the Prometheus text format.", {"type": "string"}, "text/plain")},
        Rule((Permission.JOBS_READ, Permission.ADMIN), UNBOUND),
    ),
    Operation(
        "getDocs",
        "GET",
        "/docs",
        docs,
        "Get this API reference as a page",
        {200: _HTML},
    ),
    Operation(
        "home",
        "GET",
        "/",
        home,
        "Go to the dashboard",
        {307: ResponseSpec("Redirect to /ui.")},
    ),
)
