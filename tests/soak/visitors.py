"""Callers that read, manage and misbehave: dashboards, scrapes, searches, keys, dead letters, and disconnects."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Final
from urllib.parse import quote

import httpx

from everwork.client import Client
from everwork.service.access.sessions import Session
from tests.soak.deployment import KEY
from tests.soak.kinds import DOOMED, NOBODY, QUICK, REST
from tests.soak.load import Load

PAGES: Final = ("/ui", "/ui/jobs", "/ui/dead", "/ui/types", "/ui/workers", "/ui/triggers", "/ui/settings")
LIVE: Final = 6
"""How many live pages are open at a time, each for a few seconds to a minute."""
_READS: Final = (
    "/metrics",
    "/api/v1/stats?hours=24",
    "/api/v1/types",
    "/api/v1/workers",
    "/api/v1/processes",
    "/api/v1/triggers",
    "/api/v1/dead",
    "/api/v1/audit?limit=20",
    "/api/v1/keys",
)
_SEARCHES: Final = (
    {"variables": "person-7@example.org"},
    {"error": "declined", "state": "failed"},
    {"type": QUICK, "state": "completed", "limit": "100"},
    {"order": "due"},
    {"correlation_id": "order-1000"},
    {"tenant": "tenant-3", "limit": "200"},
)
_BAD: Final = (
    ("POST", "/api/v1/jobs", b'{"type": 7}'),
    ("POST", "/api/v1/jobs", b"{"),
    ("GET", "/api/v1/jobs/999999999999", b""),
    ("PUT", "/api/v1/jobs/1/complete", b'{"attempt": 99}'),
    ("GET", "/nowhere", b""),
)


class Visitors:
    """Starts visitors of every kind."""

    def __init__(self, load: Load) -> None:
        self._load = load

    def begin(self) -> None:
        """Start all visitors."""
        load = self._load
        load.repeat("read", 1.5, self._read)
        load.repeat("search", 4, self._search)
        load.repeat("look at the dashboard", 10, self._look)
        for _ in range(LIVE):
            load.repeat("watch a live page", 1, self._watch)
        load.repeat("create, use and revoke a key", 30, self._use_a_key)
        load.repeat("requeue dead letters", 45, self._requeue)
        load.repeat("purge dead letters", 400, self._purge)
        load.repeat("stream and vanish", 8, self._vanish)
        load.repeat("abandon a long poll", 2, self._abandon)
        load.repeat("send nonsense", 5, self._nonsense)
        load.repeat("leave half a request", 10, self._half)

    async def _read(self) -> None:
        http = self._load.https[self._load.any_server()]
        self._check(await http.get(self._load.rng.choice(_READS)))

    async def _search(self) -> None:
        http = self._load.https[self._load.any_server()]
        self._check(await http.get("/api/v1/jobs", params=self._load.rng.choice(_SEARCHES)))

    async def _look(self) -> None:
        """Log in, open every page, log out."""
        async with self._visitor() as browser:
            for page in PAGES:
                self._check(await browser.get(page))
            await self._leave(browser)

    async def _watch(self) -> None:
        """Keep a live page open for a while; most then just close the connection."""
        path = self._load.rng.choice(PAGES)
        async with self._visitor() as browser:
            with suppress(TimeoutError):
                async with (
                    asyncio.timeout(self._load.rng.uniform(3, 60)),
                    browser.stream("GET", f"/ui/live?path={quote(path)}") as answer,
                ):
                    async for _ in answer.aiter_bytes():
                        pass
            await self._leave(browser)

    def _visitor(self) -> _Visitor:
        return _Visitor(self._load)

    async def _leave(self, browser: httpx.AsyncClient) -> None:
        [token] = [value for name, value in browser.cookies.items() if not name.endswith("_said")]
        self._check(await browser.post("/ui/logout", data={"csrf": Session(token, "").csrf}))

    async def _use_a_key(self) -> None:
        """Create a key, use it over both protocols, and revoke it."""
        http = self._load.https[self._load.any_server()]
        body = {"name": "soak", "permissions": ["jobs"], "tenants": ["tenant-1"]}
        made = (await http.post("/api/v1/keys", json=body)).raise_for_status().json()
        headers = {"X-API-Key": made["key"]}
        self._check(await http.get("/api/v1/jobs?limit=5", headers=headers))
        self._check(await http.delete(f"/api/v1/keys/{made['id']}"))
        self._check(await http.get("/api/v1/jobs?limit=5", headers=headers))

    async def _requeue(self) -> None:
        http = self._load.https[self._load.any_server()]
        self._check(await http.post("/api/v1/dead/requeue", json={"type": DOOMED}))

    async def _purge(self) -> None:
        http = self._load.https[self._load.any_server()]
        self._check(await http.post("/api/v1/dead/purge", json={"type": DOOMED}))

    async def _vanish(self) -> None:
        """Request jobs over a new stream, and disconnect without running them."""
        client = Client(self._load.deployment.grpc(self._load.any_server()), key=KEY, timeout=10)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._load.rng.uniform(0.2, 4)), client.stream(lease=2) as stream:
                    stream.grant(QUICK, 2)
                    async for _ in stream:
                        break
        finally:
            await client.close()

    async def _abandon(self) -> None:
        """Poll for jobs, usually of a type that has none, and disconnect."""
        type = self._load.rng.choice((NOBODY, NOBODY, NOBODY, REST))
        ask = {"type": type, "worker": "impatient", "max_jobs": 1, "timeout_ms": 2_000, "wait": 20}
        async with self._load.new_http(self._load.any_server()) as http:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._load.rng.uniform(0.05, 3)):
                    await http.post("/api/v1/jobs/activate", json=ask)

    async def _nonsense(self) -> None:
        method, path, body = self._load.rng.choice(_BAD)
        key = self._load.rng.choice((KEY, "not-a-key-at-all"))
        headers = {"X-API-Key": key, "Content-Type": "application/json"}
        self._check(
            await self._load.https[self._load.any_server()].request(method, path, content=body, headers=headers)
        )

    async def _half(self) -> None:
        """Send half a request and reset the connection."""
        port = self._load.deployment.ports[self._load.any_server()]["http_port"]
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /api/v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        await asyncio.sleep(self._load.rng.uniform(0, 2))
        link = writer.get_extra_info("socket")
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.close()

    def _check(self, answer: httpx.Response) -> None:
        """Count unexpected statuses; 503 is expected while the engine is unavailable."""
        if answer.status_code >= 500:
            self._load.problems[f"status {answer.status_code}"] += 1


class _Visitor:
    """A browser that has logged in."""

    def __init__(self, load: Load) -> None:
        self._browser = load.new_http(load.any_server())

    async def __aenter__(self) -> httpx.AsyncClient:
        await self._browser.__aenter__()
        del self._browser.headers["X-API-Key"]
        answer = await self._browser.post("/ui/login", data={"key": KEY})
        if answer.status_code >= 400:
            await self._browser.aclose()
            answer.raise_for_status()
        return self._browser

    async def __aexit__(self, *_: object) -> None:
        await self._browser.aclose()
