"""A real REST server in the test's own event loop, and a caller with a key."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx

from everwork.engines.contract import Engine
from everwork.engines.open import open_engine
from everwork.server.http.framework.server import HttpServer
from everwork.server.settings import Settings
from everwork.service.access.keys import KeyRing, NoAuthentication
from everwork.service.service import JobService

ROOT_KEY: Final = "root-root-root-root"
"""The key that the server was started with: it may do everything."""
JOBS: Final = "/api/v1/jobs"
DEADLINE_S: Final = 45.0


@dataclass(frozen=True)
class Rest:
    """A server, and somebody who calls it with the root key unless told otherwise."""

    server: HttpServer
    engine: Engine
    service: JobService
    keys: KeyRing
    url: str
    client: httpx.AsyncClient

    async def __call__(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        if body is not None:
            more["json"] = body
        return await self.client.request(method, path, **more)

    async def ok(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """The JSON of an answer that must be good; None if it is empty."""
        answer = await self(method, path, body, **more)
        assert answer.is_success, f"{answer.status_code}: {answer.text}"
        return answer.json() if answer.content else None

    async def refused(self, status: int, method: str, path: str, body: Any = None, **more: Any) -> dict[str, Any]:
        """The problem document of an answer that must be one."""
        return problem(await self(method, path, body, **more), status)

    async def job(self, **fields: Any) -> dict[str, Any]:
        """A job that was just created."""
        return dict(await self.ok("POST", JOBS, {"type": "email-send", **fields}))

    async def leased(self, **fields: Any) -> dict[str, Any]:
        """A job that a worker holds; no other job of its type may be due."""
        job = await self.job(**fields)
        asked = {"type": job["type"], "worker": "w1", "max_jobs": 1, "tenants": [job["tenant"]]}
        [leased] = (await self.ok("POST", f"{JOBS}/activate", asked))["jobs"]
        assert leased["key"] == job["key"]
        return dict(leased)

    async def dead_letter(self, error: str = "no such address", **fields: Any) -> dict[str, Any]:
        """A job that has failed for good."""
        job = await self.leased(**fields)
        failed = await self.ok("PUT", f"{JOBS}/{job['key']}/fail", {"retries": 0, "error_message": error})
        assert failed["state"] == "failed"
        return dict(failed)

    async def key(self, *permissions: str, tenants: tuple[str, ...] = (), **more: Any) -> dict[str, str]:
        """The header of a new key."""
        made = await self.keys.create("somebody", permissions, tenants=tenants, **more)
        return {"X-API-Key": made.text}


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The problem document of a refusal; every refusal is one."""
    assert answer.status_code == status, f"{answer.status_code}: {answer.text}"
    assert answer.headers["content-type"] == "application/problem+json"
    found = dict(answer.json())
    assert found["status"] == status
    assert {"type", "title", "status", "detail", "code"} <= found.keys()
    return found


@asynccontextmanager
async def serving(
    url: str, *, is_open: bool = False, tls: ssl.SSLContext | None = None, **settings: Any
) -> AsyncIterator[Rest]:
    """A server on a free port, until the end of the block."""
    engine = open_engine(url)
    service = JobService(engine, "test")
    await service.open()
    keys = NoAuthentication(engine) if is_open else KeyRing(engine, environment_key=ROOT_KEY)
    await keys.open()
    server = HttpServer(service, keys, Settings(http_port=0, auth="off" if is_open else "on", **settings))
    port = await server.start()
    place = f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"
    header = {} if is_open else {"X-API-Key": ROOT_KEY}
    try:
        async with httpx.AsyncClient(base_url=place, headers=header, timeout=DEADLINE_S, verify=tls or False) as client:
            yield Rest(server, engine, service, keys, place, client)
    finally:
        await server.stop(5)
        await keys.close()
        await service.close()
