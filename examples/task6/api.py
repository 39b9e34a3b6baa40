"""The REST API, which creates and shows jobs. It has no rules about states: if the engine refuses, it returns 409."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from json import JSONDecodeError
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from everwork import Everwork, Job
from everwork.client import Client
from everwork.exceptions import EverworkError, InvalidInput, JobNotFound, WrongState
from task6.jobs import MAX_RETRIES, MAX_RETRIES_LIMIT, TYPES

FIELDS = frozenset(["type", "payload", "max_retries"])
STATUS: dict[type[Exception], int] = {InvalidInput: 422, JobNotFound: 404, WrongState: 409}


def web_application(app: Everwork, client: Client) -> Starlette:
    """The API of a store, with its worker in the same process."""

    @asynccontextmanager
    async def working(_: Starlette) -> AsyncIterator[None]:
        async with client, app:
            worker = asyncio.create_task(app.work())
            try:
                yield
            finally:
                app.stop()
                await worker

    async def create(request: Request) -> Response:
        type, payload, max_retries = _checked(await _json(request))
        created = await client.create(type, payload, max_attempts=max_retries)
        return JSONResponse(shown(await client.get(created.key)), 201)

    async def find(request: Request) -> Response:
        state = request.query_params.get("state")
        wanted: dict[str, Any] = {} if state is None else {"state": state}
        page = await client.page(limit=100, **wanted)
        return JSONResponse({"jobs": [shown(job) for job in page.jobs]})

    async def get(request: Request) -> Response:
        return JSONResponse(shown(await client.get(request.path_params["id"])))

    async def retry(request: Request) -> Response:
        """failed -> pending, on request; a job that has never failed is refused."""
        await client.requeue(request.path_params["id"])
        return JSONResponse(shown(await client.get(request.path_params["id"])))

    return Starlette(
        lifespan=working,
        exception_handlers={EverworkError: _refused},
        routes=[
            Route("/jobs", create, methods=["POST"]),
            Route("/jobs", find, methods=["GET"]),
            Route("/jobs/{id}", get, methods=["GET"]),
            Route("/jobs/{id}/retry", retry, methods=["POST"]),
        ],
    )


def shown(job: Job) -> dict[str, Any]:
    """A job as the API shows it."""
    return {
        "id": str(job.key),
        "type": job.type,
        "state": job.state.label,
        "attempts": job.attempts,
        "max_retries": job.max_attempts,
        "last_error": job.last_error,
        "payload": job.variables,
        "result": job.result,
    }


async def _json(request: Request) -> object:
    try:
        return await request.json()
    except (JSONDecodeError, UnicodeDecodeError):
        raise InvalidInput("body", "must be a JSON object") from None


def _checked(sent: object) -> tuple[str, dict[str, Any], int]:
    if not isinstance(sent, dict):
        raise InvalidInput("body", "must be a JSON object")
    if unknown := sent.keys() - FIELDS:
        raise InvalidInput(min(unknown), f"is unknown; allowed: {', '.join(sorted(FIELDS))}")
    if sent.get("type") not in TYPES:
        raise InvalidInput("type", f"must be one of {', '.join(TYPES)}")
    payload = sent.get("payload", {})
    if not isinstance(payload, dict):
        raise InvalidInput("payload", "must be a JSON object")
    max_retries = sent.get("max_retries", MAX_RETRIES)
    if type(max_retries) is not int or not 1 <= max_retries <= MAX_RETRIES_LIMIT:
        raise InvalidInput("max_retries", f"must be a whole number from 1 to {MAX_RETRIES_LIMIT}")
    return sent["type"], payload, max_retries


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, InvalidInput) and error.field == "key":  # No job has an id of this form.
        return JSONResponse({"error": f"Job '{request.path_params['id']}' not found"}, 404)
    status = next((status for kind, status in STATUS.items() if isinstance(error, kind)), 503)
    return JSONResponse({"error": str(error)}, status)
