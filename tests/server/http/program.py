"""A REST server as a process of its own: prints its address, and stops when its standard input ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from starlette.middleware.base import RequestResponseEndpoint
from starlette.responses import Response

from everwork import Access, Everwork
from tests.server.http.serving import ROOT_KEY, serving

POLL_SECONDS = 0.05


@contextlib.asynccontextmanager
async def mounting(url: str) -> AsyncIterator[str]:
    """The API below /a/b of a web application, which counts its answers by status at /calls."""
    app = Everwork(url)
    dashboard = app.dashboard(auth=_check, api=True)
    dashboard._settings = replace(dashboard._settings, long_poll_seconds=POLL_SECONDS)
    api, answered = FastAPI(lifespan=app.lifespan()), Counter[str]()
    api.mount("/a/b", dashboard)
    api.get("/calls")(lambda: dict(answered))

    @api.middleware("http")
    async def count(request: Request, call_next: RequestResponseEndpoint) -> Response:
        answer = await call_next(request)
        answered[str(answer.status_code)] += 1
        return answer

    server = uvicorn.Server(uvicorn.Config(api, log_level="warning", lifespan="on"))
    with socket.create_server(("127.0.0.1", 0)) as listener:  # Callers wait in its queue until the server has started.
        serving = asyncio.create_task(server.serve([listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/a/b"
        server.should_exit = True
        await serving


def _check(request: Request) -> Access | None:
    return Access("ada", ["*"]) if request.headers.get("x-api-key") == ROOT_KEY else None


async def main(url: str, way: str) -> None:
    """Serve until told to stop."""
    server: Any = mounting(url) if way == "mounted" else serving(url, long_poll_seconds=POLL_SECONDS)
    async with server as rest:
        print(rest if isinstance(rest, str) else rest.url, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
