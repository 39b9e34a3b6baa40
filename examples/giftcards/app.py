"""The application: orders, and the three stages that each of them goes through."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self

from everwork import (
    CircuitBreaker,
    Event,
    EventCollector,
    Everwork,
    JobContext,
    Middleware,
    RetryPolicy,
    TypePolicy,
)
from everwork.exceptions import InvalidInput
from giftcards.codes import Digits, generate_unique_personal_code, random_digits
from giftcards.database import Row, Transaction, database_of
from giftcards.settings import Settings

PERSONAL_CODE: Final = "giftcard.personal_code"
CARD: Final = "giftcard.card"
EMAIL: Final = "giftcard.email"
STAGES: Final = (PERSONAL_CODE, CARD, EMAIL)

RETRY: Final = RetryPolicy(max_attempts=5, base=5.0, factor=2.0, cap=300.0, jitter=0.0)
"""Waits 5, 10, 20 and 40 seconds (at most five minutes); after the fifth attempt, the job is a dead letter."""
BREAKER: Final = CircuitBreaker(failures=3, seconds=60)
"""Three failures in a row stop a stage for a minute; the other stages continue."""
ROUNDS: Final = 7
"""How often a dead letter is requeued automatically."""

ORDER_COLUMNS: Final = ("correlation_id", "customer", "email", "personal_code", "card_number", "sent_at")
ORDER: Final = """SELECT correlation_id, customer, email, personal_code, card_number, sent_at
    FROM giftcards WHERE correlation_id = $1"""
JOB_COLUMNS: Final = ("stage", "status", "attempts", "last_error")
JOBS: Final = "SELECT stage, status, attempts, last_error FROM giftcard_jobs WHERE correlation_id = $1 ORDER BY id"


class GiftCards:
    """Gift cards on one store. `async with` opens it."""

    def __init__(
        self,
        settings: Settings,
        *,
        digits: Digits = random_digits,
        clock: Any = None,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self.settings = settings
        self.app = Everwork(settings.url, clock=clock, middleware=middleware)
        self._database = database_of(settings.url)
        self._digits = digits
        policy = TypePolicy(failed_job_retry_hours=settings.failed_job_retry_hours, failed_job_retry_rounds=ROUNDS)
        handlers: tuple[Callable[..., Any], ...] = (self.give_personal_code, self.issue_card, self.send_email)
        for type, handler in zip(STAGES, handlers, strict=True):
            self.app.job(type, retry=RETRY, breaker=BREAKER, policy=policy, concurrency=5)(handler)

    async def __aenter__(self) -> Self:
        await self.app.open()
        await self._database.set_up()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.app.close()

    # Orders -------------------------------------------------------------------------------------

    async def order(self, customer: str, email: str) -> str:
        """Order a card: the order and its first job are stored together, or neither. Returns its correlation id."""
        for field, text in (("customer", customer), ("email", email)):
            if not text.strip() or len(text) > 200:
                raise InvalidInput(field, "must be a text of 1 to 200 characters")
        if "@" not in email:
            raise InvalidInput("email", "must be an e-mail address")
        correlation_id = f"giftcard-{secrets.token_hex(4)}"
        async with self._database.transaction() as tx:
            await tx.execute(
                "INSERT INTO giftcards (correlation_id, customer, email) VALUES ($1, $2, $3)",
                correlation_id,
                customer.strip(),
                email.strip(),
            )
            await self.app.using(correlation_id=correlation_id, tx=tx.connection).enqueue(PERSONAL_CODE)
        return correlation_id

    async def card(self, correlation_id: str) -> dict[str, Any] | None:
        """An order and its jobs; None if there is no such order."""
        rows = await self.query(ORDER, correlation_id)
        if not rows:
            return None
        jobs = [dict(zip(JOB_COLUMNS, row, strict=True)) for row in await self.query(JOBS, correlation_id)]
        return {**dict(zip(ORDER_COLUMNS, rows[0], strict=True)), "jobs": jobs}

    async def query(self, statement: str, *values: object) -> list[Row]:
        """The rows of a query."""
        async with self._database.transaction() as tx:
            return await tx.fetch(statement, *values)

    # Stages. A stage that runs again after a crash finds its earlier results and does nothing twice. ---------------

    async def give_personal_code(self, ctx: JobContext, events: EventCollector) -> str:
        """Give the customer a unique code."""
        async with self._database.transaction() as tx:
            order = await _order(tx, ctx)
            code = order["personal_code"]
            if code is None:

                async def claim(code: str) -> bool:
                    statement = "INSERT INTO personal_codes VALUES ($1, $2) ON CONFLICT DO NOTHING"
                    return bool(await tx.execute(statement, code, ctx.correlation_id))

                code = await generate_unique_personal_code(order["customer"], claim, self._digits)
                statement = "UPDATE giftcards SET personal_code = $1 WHERE correlation_id = $2"
                await tx.execute(statement, code, ctx.correlation_id)
        events.emit(_next(CARD, ctx))
        return str(code)

    async def issue_card(self, ctx: JobContext, events: EventCollector) -> str:
        """Issue the card."""
        async with self._database.transaction() as tx:
            number = (await _order(tx, ctx))["card_number"]
            if number is None:
                number = f"GC-{secrets.token_hex(6).upper()}"
                statement = "UPDATE giftcards SET card_number = $1 WHERE correlation_id = $2"
                await tx.execute(statement, number, ctx.correlation_id)
        events.emit(_next(EMAIL, ctx))
        return str(number)

    async def send_email(self, ctx: JobContext) -> str:
        """Send the card. A real stage would pass the correlation id to the mail service as an idempotency key."""
        async with self._database.transaction() as tx:
            order = await _order(tx, ctx)
            sent_at = datetime.now(UTC).isoformat(timespec="seconds")
            statement = "UPDATE giftcards SET sent_at = $1 WHERE correlation_id = $2 AND sent_at IS NULL"
            await tx.execute(statement, sent_at, ctx.correlation_id)
        return str(order["email"])


async def _order(tx: Transaction, ctx: JobContext) -> dict[str, Any]:
    [row] = await tx.fetch(ORDER, ctx.correlation_id)
    return dict(zip(ORDER_COLUMNS, row, strict=True))


def _next(stage: str, ctx: JobContext) -> Event:
    """The job of the next stage, created with the completion of this one."""
    return Event(source=stage, correlation_id=ctx.correlation_id, dedupe_key=f"{ctx.correlation_id}:{stage}")


def make_app() -> Everwork:
    """For the command line: `everwork worker giftcards.app:make_app`, `everwork tick giftcards.app:make_app`."""
    return GiftCards(Settings.from_environment(os.environ)).app
