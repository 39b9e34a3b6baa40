"""The shop's jobs. Run them with: everwork worker webshop.jobs"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import gettempdir

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from everwork import Depends, Everwork, JobContext, RetryPolicy, TypePolicy
from webshop.database import URL, Order, create_tables, session


@dataclass
class Payment:
    order: int
    amount: Decimal
    fee: Decimal


class CardDeclined(Exception):
    """The card was declined; a later attempt can succeed."""


class Bank:
    """Stands in for an external service that sometimes fails."""

    def __init__(self) -> None:
        self.declines = 0
        """The number of upcoming charges that fail."""

    async def charge(self, amount: Decimal) -> Decimal:
        if self.declines:
            self.declines -= 1
            raise CardDeclined("declined by the bank, try again later")
        return amount * Decimal("0.02")


def get_bank() -> Bank:
    """Shared by all jobs of a process; replaced in tests."""
    return Bank()


@asynccontextmanager
async def lifespan(_app: Everwork) -> AsyncIterator[None]:
    """Once per worker process."""
    await create_tables()
    yield


app = Everwork(URL, lifespan=lifespan)


@app.job("order-pay", retry=RetryPolicy(max_attempts=4, base=2), concurrency=10)
async def pay(
    order: int, db: AsyncSession = Depends(session), bank: Bank = Depends(get_bank, scope="process")
) -> Payment:
    """An async handler: its changes and follow-up jobs are committed together."""
    found = await db.get_one(Order, order)
    payment = Payment(order, found.total, await bank.charge(found.total))
    found.status = "paid"
    await print_invoice.using(tx=db, priority=10).enqueue(order=order, total=found.total)
    await ask_for_review.using(tx=db, delay=timedelta(days=7).total_seconds()).enqueue(order)
    return payment


@app.job("invoice-print")
def print_invoice(order: int, total: Decimal) -> Path:
    """A plain handler: it runs in a thread, so it can block."""
    file = Path(gettempdir(), f"invoice-{order}.txt")
    file.write_text(f"Order {order}: {total}\n")
    return file


@app.job("review-ask")
async def ask_for_review(order: int) -> None:
    """Seven days later."""


@app.job("letter-send", concurrency=100)
async def send_letter(customer: str, issue: int) -> None:
    """One of ten thousand."""


@app.job("customer-refresh", concurrency=10, policy=TypePolicy(max_running_per_key=1))
async def refresh(customer: str, db: AsyncSession = Depends(session)) -> Decimal:
    """One running job per customer: callers pass the customer as `limit_key`."""
    cents = await db.scalar(select(func.sum(Order.cents)).where(Order.customer == customer))
    return Decimal(cents or 0) / 100


@app.job("export-write", timeout=3600)
def write_export(ctx: JobContext, rows: int) -> int:
    """A long-running handler that stops when its job is cancelled."""
    for row in range(rows):
        if ctx.cancelled:
            return row
    return rows


@app.job("report-mail", cron="0 6 * * 1", cron_arguments={"days": 7}, is_catchup=False)
async def mail_report(days: int, db: AsyncSession = Depends(session)) -> dict[str, int]:
    """Runs every Monday at 6:00."""
    orders = await db.scalar(select(func.count()).select_from(Order))
    return {"days": days, "orders": orders or 0}
