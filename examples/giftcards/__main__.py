"""python -m giftcards: a demonstration, or `order`, `jobs`, `work` and `serve`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import Any, Final

from everwork import logs
from everwork.exceptions import EverworkError
from everwork.testing import FailTypes
from giftcards.app import EMAIL, GiftCards
from giftcards.settings import Settings

CUSTOMERS: Final = (
    ("Kate Rodgers", "kate@example.com"),
    ("Omar Haddad", "omar@example.com"),
    ("Kateryna Bondar", "kateryna@example.com"),
)
QUEUED: Final = """SELECT id, correlation_id, stage, attempts, status, scheduled_at, last_error
    FROM giftcard_jobs WHERE status = 'queued' ORDER BY scheduled_at ASC"""
DEAD: Final = """SELECT id, correlation_id, stage, attempts, status, scheduled_at, last_error
    FROM giftcard_jobs WHERE status = 'error' ORDER BY updated_at DESC"""


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(prog="python -m giftcards", description="Gift cards in three stages.")
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("demo", help="order three cards and process them (the default)")
    order = commands.add_parser("order", help="order a card")
    order.add_argument("customer")
    order.add_argument("email")
    commands.add_parser("jobs", help="show queued jobs and dead letters")
    commands.add_parser("work", help="process jobs until stopped")
    serve = commands.add_parser("serve", help="serve orders and the cron route; needs CRON_SECRET")
    serve.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    try:
        settings = Settings.from_environment(os.environ)
        match given.command:
            case "order":
                asyncio.run(_order(settings, given.customer, given.email))
            case "jobs":
                asyncio.run(_jobs(settings))
            case "work":
                GiftCards(settings).app.run()
            case "serve":
                _serve(settings, given.port)
            case _:
                asyncio.run(_demo(settings))
    except EverworkError as error:
        sys.exit(f"giftcards: {error}")


async def _order(settings: Settings, customer: str, email: str) -> None:
    async with GiftCards(settings) as cards:
        print(await cards.order(customer, email))


async def _jobs(settings: Settings) -> None:
    async with GiftCards(settings) as cards:
        await _print_jobs(cards, "queued", QUEUED)
        await _print_jobs(cards, "dead letters", DEAD)


async def _print_jobs(cards: GiftCards, title: str, statement: str) -> None:
    rows = await cards.query(statement)
    print(f"{title}: {len(rows)}")
    for row in rows:
        print("  " + " | ".join("" if value is None else str(value) for value in row))


def _serve(settings: Settings, port: int) -> None:
    import uvicorn  # noqa: PLC0415 - not needed by the other commands

    from giftcards.web import web_application  # noqa: PLC0415

    uvicorn.run(web_application(GiftCards(settings)), host="127.0.0.1", port=port)


async def _demo(settings: Settings) -> None:
    """Process cards as a cron service would, one run per second; the first e-mail fails and is retried after 5 s."""
    logs.configure("console", "CRITICAL")
    async with GiftCards(settings, middleware=[FailTypes({EMAIL: 1})]) as cards:
        ordered = [await cards.order(*customer) for customer in CUSTOMERS]
        while not all(one["sent_at"] for one in await _all(cards, ordered)):
            result = await cards.app.run_once(settings.jobs_per_cron_run)
            if result.ran:
                print(f"cron run: {result.ran} ran, {result.completed} completed, {result.retried} will be retried")
                await _print_jobs(cards, "queued", QUEUED)
            await asyncio.sleep(1)
        for one in await _all(cards, ordered):
            print(f"{one['customer']}: {one['personal_code']}, {one['card_number']}, sent to {one['email']}")


async def _all(cards: GiftCards, ordered: list[str]) -> list[dict[str, Any]]:
    found = [await cards.card(one) for one in ordered]
    return [one for one in found if one is not None]


if __name__ == "__main__":
    main()
