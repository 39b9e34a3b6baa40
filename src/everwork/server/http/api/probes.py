"""What programs that watch the server ask for, and the API's description."""

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
from everwork.server.http.framework.operations import Answer, Call, Operation, answer
from everwork.server.http.framework.problems import problem
from everwork.server.metrics import CONTENT_TYPE, Seen
from everwork.server.readiness import ENGINE_SECONDS
from everwork.service.access.principal import Permission

_PAGE: Final = (Path(__file__).parent / "docs.html").read_bytes()


async def healthz(call: Call) -> Response:  # noqa: ARG001 - every handler takes the call
    """The process is alive."""
    return answer({"status": "ok"})


async def readyz(call: Call) -> Response:
    """The engine can be reached, and the server does its upkeep."""
    if call.parts.stopping.is_set():
        return problem(503, "stopping", "the server is stopping")
    if (unready := await call.parts.readiness.judge()) is not None:
        return problem(503, *unready)
    return answer({"status": "ready"})


async def metrics(call: Call) -> Response:
    """Figures for Prometheus; without an engine those of this process."""
    parts = call.parts
    text = parts.metrics.text(await _seen(parts), parts.service.upkeep_age_s)
    return Response(text, headers={"Content-Type": CONTENT_TYPE})


async def _seen(parts: AppContext) -> Seen | None:
    try:
        async with asyncio.timeout(ENGINE_SECONDS):
            reading = await parts.sampler.recent()
            managers, processes = await parts.service.fleet.count_live()
    except (EngineError, TimeoutError):
        return None
    return Seen(reading, parts.sampler.totals, managers, processes)


async def docs(call: Call) -> Response:  # noqa: ARG001 - every handler takes the call
    """The API's description for people."""
    return Response(_PAGE, media_type="text/html", headers={"Content-Security-Policy": _POLICY})


async def home(call: Call) -> Response:  # noqa: ARG001 - every handler takes the call
    """Whoever comes by is led to the dashboard."""
    return RedirectResponse("/ui", 307)


def _hash_of(tag: str) -> str:
    """The page's own script and style, and nothing else, may act on it."""
    inside = _PAGE.partition(f"<{tag}>".encode())[2].partition(f"</{tag}>".encode())[0]
    return f"'sha256-{b64encode(sha256(inside).digest()).decode()}'"


_POLICY: Final = (
    f"default-src 'none'; script-src {_hash_of('script')}; style-src {_hash_of('style')}; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_STATUS: Final = ref("Status")
_HTML: Final = Answer("The page.", {"type": "string"}, "text/html")

OPERATIONS: Final = (
    Operation("healthz", "GET", "/healthz", healthz, "Alive?", {200: Answer("Yes.", _STATUS)}, tag="server"),
    Operation(
        "readyz",
        "GET",
        "/readyz",
        readyz,
        "Can the engine be reached, and is upkeep done?",
        {200: Answer("Yes.", _STATUS)},
        problems=(503,),
        tag="server",
    ),
    Operation(
        "getMetrics",
        "GET",
        "/metrics",
        metrics,
        "Figures for Prometheus",
        {200: Answer("The figures.", {"type": "string"}, "text/plain")},
        (Permission.JOBS_READ, Permission.ADMIN),
        is_unbound=True,
        tag="server",
    ),
    Operation("getDocs", "GET", "/docs", docs, "This description, for people", {200: _HTML}, tag="server"),
    Operation("home", "GET", "/", home, "Leads to the dashboard", {307: Answer("To /ui.")}, tag="server"),
)
