"""A gift-card shop end to end: stages as types, one tick of ten jobs a minute, an issuer that fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Final

import pytest

from everwork import CircuitBreaker, Everwork, JobContext, JobKey
from everwork.core.breaker import BreakerState
from everwork.core.states import State
from everwork.engines.contract import Engine
from everwork.engines.open import open_engine
from tests.stores import VirtualClock

pytestmark = pytest.mark.every_engine

CODE, ISSUE, MAIL = STAGES = ("giftcard-code", "giftcard-issue", "giftcard-mail")
JOBS_PER_TICK: Final = 10
KATE: Final = "KATE1520"


class Shop:
    """Each order passes three stages; a stage that has ended well asks for the next, under a name of its own."""

    def __init__(self, app: Everwork, clock: VirtualClock, engine: Engine) -> None:
        self.app, self.clock, self.engine = app, clock, engine
        self.ran: list[tuple[str, str]] = []
        self.refused: set[str] = set()
        self.is_issuer_up = True
        for stage in STAGES:
            app.job(stage, breaker=CircuitBreaker(failures=3, seconds=60))(self.pass_stage)

    async def order(self, order: str, stage: str = CODE) -> JobKey:
        """Ask for a stage of an order: once, however often it is asked for."""
        return await self.app.using(correlation_id=order, dedupe_key=f"{order}:{stage}").enqueue(stage, order=order)

    async def pass_stage(self, order: str, ctx: JobContext) -> None:
        assert ctx.correlation_id == order
        self.ran.append((ctx.type, order))
        if ctx.type == ISSUE and not self.is_issuer_up:
            raise RuntimeError("the issuer does not answer")
        if ctx.type == ISSUE and order in self.refused:
            raise RuntimeError(f"the personal code of {order} exists already")
        if ctx.type != MAIL:
            await self.order(order, STAGES[STAGES.index(ctx.type) + 1])

    async def next_minute(self) -> list[tuple[str, str]]:
        """A minute later: one tick, and what ran in it."""
        self.clock.advance(seconds=60)
        before = len(self.ran)
        await self.app.run_once(max_jobs=JOBS_PER_TICK)
        assert len(self.ran) - before <= JOBS_PER_TICK
        return self.ran[before:]

    async def breaker(self) -> BreakerState:
        return next(known.breaker for known in await self.engine.types() if known.type == ISSUE)

    async def job(self, stage: str, order: str) -> JobKey:
        """The one job of a stage of an order: asked for once more, it is the same."""
        key = await self.order(order, stage)
        assert key.deduplicated
        return key


@pytest.fixture
async def shop(app: Everwork, url: str, clock: VirtualClock) -> AsyncIterator[Shop]:
    engine = open_engine(url, clock=clock)
    made = Shop(app, clock, engine)
    async with app:
        await engine.open()
        yield made
        await engine.close()


async def test_an_issuer_that_is_away_costs_one_attempt_a_minute_and_no_order(shop: Shop) -> None:
    orders = [f"order-{number:02}" for number in range(12)]
    for order in orders * 2:  # The shop's web hook is called twice.
        await shop.order(order)
    shop.is_issuer_up = False
    ran = await shop.next_minute()
    wasted = Counter(stage for stage, _ in ran)[ISSUE]
    assert wasted in (3, 4)  # One may have been fetched ahead when the breaker opened.
    assert await shop.breaker() is BreakerState.OPEN

    ran += [one for _ in range(5) for one in await shop.next_minute()]
    assert Counter(stage for stage, _ in ran) == {CODE: 12, ISSUE: wasted + 5}
    waiting = [await shop.app.get(await shop.job(ISSUE, order)) for order in orders]
    assert (sum(job.attempts for job in waiting), {job.state for job in waiting}) == (wasted + 5, {State.PENDING})

    shop.is_issuer_up = True
    while await shop.next_minute():
        pass
    assert await shop.breaker() is BreakerState.CLOSED
    jobs = [await shop.app.get(await shop.job(stage, order)) for order in orders for stage in STAGES]
    assert {job.state for job in jobs} == {State.COMPLETED}
    assert sorted(order for stage, order in shop.ran if stage == MAIL) == orders


async def test_an_order_that_cannot_be_issued_fails_after_five_attempts_and_is_requeued_by_hand(shop: Shop) -> None:
    shop.refused.add(KATE)
    await shop.order(KATE)
    assert await shop.next_minute() == [(CODE, KATE), (ISSUE, KATE)]
    assert [await shop.next_minute() for _ in range(5)] == [*[[(ISSUE, KATE)]] * 4, []]
    key = await shop.job(ISSUE, KATE)
    history = await shop.app.history(key)
    assert [entry.retry_at_ms and entry.retry_at_ms - entry.at_ms for entry in history] == [
        5_000, 10_000, 20_000, 40_000, None
    ]  # fmt: skip
    dead = await shop.app.get(key)
    assert (dead.state, dead.attempts, dead.last_error) == (
        State.FAILED, 5, f"RuntimeError: the personal code of {KATE} exists already"
    )  # fmt: skip

    await shop.order("ORDER-2")
    assert await shop.next_minute() == [(stage, "ORDER-2") for stage in STAGES]
    assert await shop.breaker() is BreakerState.CLOSED

    shop.refused.clear()
    await shop.app.requeue(key)
    assert await shop.next_minute() == [(ISSUE, KATE), (MAIL, KATE)]
    assert [entry.kind for entry in await shop.app.history(key)] == ["fail"] * 5 + ["requeue", "complete"]
