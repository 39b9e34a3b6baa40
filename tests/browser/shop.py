"""Workers of a shop, under a real manager: what the dashboard's tests and pictures show.

SHOP_STORE=sqlite:///shop.db everwork worker tests.browser.shop:make_manager
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final

from everwork import (
    AbstractWorker,
    Cron,
    Interval,
    Process,
    ProcessGroup,
    ProcessManager,
    SqliteBackend,
    SqliteBroker,
    Trigger,
    WorkerSettings,
)

STORE: Final = "SHOP_STORE"
FILM: Final = "video-transcode"


class Mailer(AbstractWorker):
    """Sends everything at once."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        digest = Trigger(
            title="weekly digest",
            description="What was new in the shop, every Monday morning",
            schedule=Cron(expression="0 9 * * 1", timezone="Europe/Berlin"),
            kwargs={"to": "all@example.org", "template": "digest"},
        )
        bounces = Trigger(title="collect bounces", schedule=Interval(minutes=15), is_catchup=False)
        return WorkerSettings(
            title="mailer",
            description="Sends mails through the relay of the data centre",
            sources={"email-send", "sms-send", "webhook-deliver"},
            concurrency=10,
            execution_timeout=60,
            triggers=[digest, bounces],
        )

    async def __call__(self, **_: Any) -> dict[str, bool]:
        return {"sent": True}


class Studio(AbstractWorker):
    """Works on one film for as long as anybody looks."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(
            title="studio",
            description="Turns uploaded films into the sizes that phones like",
            sources={FILM, "image-resize"},
            concurrency=2,
            execution_timeout=7_200,
        )

    async def __call__(self, **_: Any) -> None:
        await asyncio.Event().wait()


class Accountant(AbstractWorker):
    """Has schedules, and little to do."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        closing = Trigger(
            title="nightly closing",
            description="Books of the day, for the tax office",
            schedule=Cron(expression="30 2 * * *", timezone="Europe/Berlin"),
            kwargs={"ledger": "main"},
        )
        rates = Trigger(title="exchange rates", schedule=Interval(hours=1), kwargs={"currencies": ["EUR", "USD"]})
        return WorkerSettings(
            title="accountant", sources={"invoice-render", "payment-charge", "search-index"}, triggers=[closing, rates]
        )

    async def __call__(self, **_: Any) -> None:
        return None


class Printer(AbstractWorker):
    """Cannot even start."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="label printer", sources={"label-print"})

    async def startup(self) -> None:
        raise ConnectionError("no printer answers at lp.example.org:631")

    async def __call__(self, **_: Any) -> None:
        return None


def make_manager() -> ProcessManager:
    """A manager of the store that the environment names."""
    url = os.environ[STORE]
    return ProcessManager(
        uuid="shop-1",
        processes=[
            ProcessGroup(process=Process(workers=[Mailer, Accountant]), replicas=2),
            Process(workers=[Studio, Printer]),
        ],
        backend=SqliteBackend(url),
        broker=SqliteBroker(url),
    )
