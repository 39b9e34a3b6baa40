"""Where a request goes: its path is matched as it was sent, segment by segment, so that names may hold anything."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send


class SegmentRoute(BaseRoute):
    """A path like `/types/{type}/pause`. A name is one segment; a slash inside it is sent as %2F."""

    def __init__(self, path: str, app: ASGIApp) -> None:
        self.path = path
        self.app = app
        self._segments = path.split("/")

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether a request is for this path, and which names stand in it."""
        found = self._names(scope) if scope["type"] == "http" else None
        return (Match.NONE, {}) if found is None else (Match.FULL, {"path_params": found})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self.app(scope, receive, send)

    def _names(self, scope: Scope) -> dict[str, Any] | None:
        sent = scope["raw_path"].split(b"/")
        if len(sent) != len(self._segments):
            return None
        names: dict[str, Any] = {}
        for expected, raw in zip(self._segments, sent, strict=True):
            segment = _decoded(raw)
            if expected.startswith("{") and segment:
                names[expected[1:-1]] = segment
            elif segment != expected:
                return None
        return names


def _decoded(raw: bytes) -> str | None:
    """A segment as a text; none if it is not one in UTF-8."""
    try:
        return unquote(raw.decode("ascii"), errors="strict")
    except UnicodeDecodeError:
        return None
