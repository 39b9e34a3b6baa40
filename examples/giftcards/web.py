"""The web application: routes to order a card and to look it up, and one for a cron service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from json import JSONDecodeError

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from everwork.exceptions import InvalidInput
from giftcards.app import GiftCards


def web_application(cards: GiftCards, *, secret: str | None = None) -> Starlette:
    """The application; the cron route's secret defaults to CRON_SECRET in the environment."""

    @asynccontextmanager
    async def opened(_: Starlette) -> AsyncIterator[None]:
        async with cards:
            yield

    async def order(request: Request) -> JSONResponse:
        try:
            sent = await request.json()
            customer, email = str(sent["customer"]), str(sent["email"])
            correlation_id = await cards.order(customer, email)
        except (JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
            return JSONResponse({"error": "send a JSON object with customer and email"}, 422)
        except InvalidInput as error:
            return JSONResponse({"error": str(error)}, 422)
        return JSONResponse({"correlation_id": correlation_id}, 202)

    async def look(request: Request) -> JSONResponse:
        found = await cards.card(request.path_params["correlation_id"])
        return JSONResponse({"error": "order not found"}, 404) if found is None else JSONResponse(found)

    cron = cards.app.tick_route(secret=secret, max_jobs=cards.settings.jobs_per_cron_run)
    return Starlette(
        lifespan=opened,
        routes=[
            Route("/giftcards", order, methods=["POST"]),
            Route("/giftcards/{correlation_id}", look),
            Route("/api/cron", cron),
        ],
    )
