"""Somebody at the dashboard: logged in with a key, following no redirect, as a browser without script."""

from __future__ import annotations

import html
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson

from everwork.service.access.sessions import Session
from tests.server.http.serving import DEADLINE_S, ROOT_KEY, Rest


class Visitor:
    """Looks at pages and sends forms."""

    def __init__(self, rest: Rest, client: httpx.AsyncClient) -> None:
        self.rest = rest
        self.client = client

    async def get(self, path: str, **query: str) -> httpx.Response:
        """An answer, whatever it is."""
        return await self.client.get(path, params=query or None)

    async def page(self, path: str, status: int = 200, **query: str) -> str:
        """The text of a page, as a browser would show its entities."""
        answer = await self.get(path, **query)
        assert answer.status_code == status, f"{answer.status_code}: {answer.text[:2000]}"
        assert answer.headers["content-type"].startswith("text/html")
        return html.unescape(answer.text)

    async def post(self, path: str, back: str = "/ui", **fields: str | Sequence[str]) -> httpx.Response:
        """Send a form as a page of this session would."""
        return await self.client.post(path, data={"csrf": self.csrf, "back": back, **fields})

    async def done(self, path: str, back: str = "/ui", **fields: str | Sequence[str]) -> dict[str, Any]:
        """What the dashboard says after a form that was meant, and where it leads to: `text`, `is_good`, `to`."""
        answer = await self.post(path, back, **{"sure": "yes", **fields})
        assert answer.status_code == 303, f"{answer.status_code}: {answer.text[:2000]}"
        said = [answer.cookies[name] for name in answer.cookies if name.endswith("_said")]
        told = orjson.loads(bytes.fromhex(said[0])) if said else {"text": "", "is_good": True}
        return {**told, "to": answer.headers["location"]}

    @property
    def csrf(self) -> str:
        """What every form of this session brings."""
        [token] = [value for name, value in self.client.cookies.items() if not name.endswith("_said")]
        return Session(token, "").csrf

    async def audit(self) -> list[tuple[str, str, dict[str, Any]]]:
        """What the audit log says of jobs and the rest, without logins: action, target, detail; newest first."""
        told = await self.rest.ok("GET", "/api/v1/audit")
        entries = [(one["action"], one["target"], one["detail"]) for one in told["entries"]]
        return [entry for entry in entries if not entry[0].startswith("ui.")]


@asynccontextmanager
async def visiting(
    rest: Rest, *permissions: str, tenants: tuple[str, ...] = (), **limits: Any
) -> AsyncIterator[Visitor]:
    """Somebody with a key that allows this; without any, with the root key."""
    key = (await rest.key(*permissions, tenants=tenants, **limits))["X-API-Key"] if permissions else ROOT_KEY
    async with httpx.AsyncClient(base_url=rest.url, timeout=DEADLINE_S) as client:
        answer = await client.post("/ui/login", data={"key": key})
        assert answer.status_code == 303, answer.text
        yield Visitor(rest, client)
