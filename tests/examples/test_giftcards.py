"""examples/giftcards: the stages, their retries, breakers and dead letters, by a clock that the test moves."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from everwork.exceptions import BadConfiguration, InvalidInput
from everwork.testing import FailTypes
from giftcards.app import CARD, EMAIL, PERSONAL_CODE, GiftCards
from giftcards.codes import DuplicatePersonalCode, generate_unique_personal_code
from giftcards.settings import Settings
from tests.stores import HOUR_MS, VirtualClock

QUEUED = """
SELECT id, correlation_id, stage, attempts, status, scheduled_at, last_error
FROM giftcard_jobs
WHERE status = 'queued'
ORDER BY scheduled_at ASC;
"""
DEAD = """
SELECT id, correlation_id, stage, attempts, status, scheduled_at, last_error
FROM giftcard_jobs
WHERE status = 'error'
ORDER BY updated_at DESC;
"""
KATE = ("Kate Rodgers", "kate@example.com")


class Digits:
    """The digits of the next codes; the last ones are given for ever."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)

    def __call__(self) -> int:
        return self.numbers.pop(0) if len(self.numbers) > 1 else self.numbers[0]


@pytest.fixture
def digits() -> Digits:
    return Digits(1520)


@pytest.fixture
async def cards(url: str, clock: VirtualClock, digits: Digits) -> AsyncIterator[GiftCards]:
    async with GiftCards(Settings(url), clock=clock, digits=digits) as made:
        yield made


def asked(url: str, statement: str) -> list[tuple[Any, ...]]:
    """What a stranger with an SQL client sees."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            return connection.execute(statement).fetchall()
    with psycopg.connect(url) as connection:
        return connection.execute(statement).fetchall()


async def waits(cards: GiftCards, clock: VirtualClock) -> list[tuple[int, float]]:
    """The attempts of queued jobs, and for how many seconds they wait."""
    rows = await cards.query("SELECT id, attempts FROM giftcard_jobs WHERE status = 'queued' ORDER BY id")
    jobs = [(await cards.app.get(key), attempts) for key, attempts in rows]
    return [(attempts, (job.run_at_ms - clock()) / 1000) for job, attempts in jobs]


async def test_an_order_passes_its_stages_under_one_correlation_id(cards: GiftCards, url: str) -> None:
    ordered = await cards.order(*KATE)
    assert (await cards.app.run_once()).completed == 3
    card = await cards.card(ordered)
    assert card is not None
    assert (card["customer"], card["personal_code"]) == ("Kate Rodgers", "KATE1520")
    assert card["card_number"].startswith("GC-")
    assert card["sent_at"]
    stages = [(job["stage"], job["status"], job["attempts"]) for job in card["jobs"]]
    assert stages == [("personal_code", "completed", 1), ("card", "completed", 1), ("email", "completed", 1)]
    counted = asked(url, f"SELECT count(*) FROM giftcard_jobs WHERE correlation_id = '{ordered}'")
    assert counted == [(3,)]


async def test_a_duplicate_code_is_replaced_within_three_tries(cards: GiftCards, digits: Digits) -> None:
    digits.numbers = [1520, 1520, 1520, 7]
    first, second = await cards.order(*KATE), await cards.order("Kate Rodgers the younger", "k@example.com")
    await cards.app.run_once()
    codes = [card["personal_code"] for one in (first, second) if (card := await cards.card(one)) is not None]
    assert sorted(codes) == ["KATE0007", "KATE1520"]


async def test_duplicates_are_retried_after_5_10_20_and_40_seconds_beside_a_breaker_and_then_are_a_dead_letter(
    cards: GiftCards, clock: VirtualClock, url: str
) -> None:
    await cards.order(*KATE)
    await cards.app.run_once()
    ordered = await cards.order(*KATE)
    for attempt, seconds in ((1, 5), (2, 10), (3, 20)):
        assert (await cards.app.run_once()).retried == 1
        assert await waits(cards, clock) == [(attempt, seconds)]
        clock.advance(seconds=seconds)
    assert (await cards.app.run_once()).ran == 0  # The third failure has opened the breaker for a minute.
    clock.advance(seconds=40)
    assert (await cards.app.run_once()).retried == 1
    assert await waits(cards, clock) == [(4, 40)]
    clock.advance(seconds=60)
    assert (await cards.app.run_once()).failed == 1
    [(_, correlation_id, stage, attempts, status, _, error)] = asked(url, DEAD)
    assert (correlation_id, stage, attempts, status) == (ordered, "personal_code", 5, "error")
    taken = "KATE1520, KATE1520, KATE1520 are already taken"
    assert error == f"DuplicatePersonalCode: duplicate personal_code: {taken}"
    assert asked(url, QUEUED) == []


async def test_a_dead_letter_comes_back_after_24_hours_and_is_processed(
    cards: GiftCards, clock: VirtualClock, digits: Digits, url: str
) -> None:
    await cards.order(*KATE)
    await cards.app.run_once()
    ordered = await cards.order(*KATE)
    for _ in range(5):
        await cards.app.run_once()
        clock.advance(seconds=100)
    assert len(asked(url, DEAD)) == 1
    digits.numbers = [2024]
    clock.advance(ms=24 * HOUR_MS - 100_001)
    assert (await cards.app.run_once()).ran == 0
    clock.advance(ms=1)
    assert (await cards.app.run_once()).completed == 3
    card = await cards.card(ordered)
    assert card is not None
    assert (card["personal_code"], asked(url, DEAD)) == ("KATE2024", [])


async def test_the_printed_queries_show_the_queue_by_time_and_dead_letters_by_their_failure(
    url: str, clock: VirtualClock
) -> None:
    fails = FailTypes({EMAIL: KeyError("mailbox"), CARD: 2})
    async with GiftCards(Settings(url), clock=clock, middleware=[fails], digits=iter(range(10)).__next__) as cards:
        ordered = [await cards.order(f"Customer {number}", "c@example.com") for number in range(4)]
        await cards.app.run_once()
        waiting = asked(url, QUEUED)
        assert {(row[2], row[4]) for row in waiting} >= {("card", "queued"), ("email", "queued")}
        assert [row[5] for row in waiting] == sorted(row[5] for row in waiting)
        assert {row[1] for row in waiting} <= set(ordered)
        for _ in range(20):
            clock.advance(seconds=61)
            await cards.app.run_once()
        dead = asked(url, DEAD)
        assert [(row[2], row[3], row[4], row[6]) for row in dead] == [("email", 5, "error", "KeyError: 'mailbox'")] * 4
        ended = {job.key: job.finished_at_ms or 0 for job in [await cards.app.get(row[0]) for row in dead]}
        assert [ended[row[0]] for row in dead] == sorted(ended.values(), reverse=True)


async def test_three_failures_stop_one_stage_for_a_minute_and_the_others_go_on(url: str, clock: VirtualClock) -> None:
    fails = FailTypes({EMAIL: OSError("the mail server is down")})
    async with GiftCards(Settings(url), clock=clock, middleware=[fails], digits=iter(range(99)).__next__) as cards:
        for number in range(3):
            await cards.order(f"Customer {number}", "c@example.com")
        assert (await cards.app.run_once()).retried == 3
        clock.advance(seconds=59)
        await cards.order("Customer 3", "c@example.com")
        assert (await cards.app.run_once()).completed == 2  # Its code and its card; its e-mail waits.
        clock.advance(seconds=1)
        assert (await cards.app.run_once()).ran == 1  # The probe.


async def test_a_stage_that_runs_again_finds_what_it_did_before(cards: GiftCards) -> None:
    ordered = await cards.order(*KATE)
    await cards.app.run_once()
    once = await cards.card(ordered)
    for type in (PERSONAL_CODE, CARD, EMAIL):
        await cards.app.using(correlation_id=ordered).enqueue(type)
    await cards.app.run_once()
    again = await cards.card(ordered)
    assert once is not None
    assert again is not None
    assert [job["status"] for job in again["jobs"]] == ["completed"] * 6
    assert {**once, "jobs": None} == {**again, "jobs": None}


async def test_a_code_is_letters_of_the_name_and_four_digits_and_gives_up_after_three() -> None:
    async def free(_: str) -> bool:
        return True

    async def taken(code: str) -> bool:
        tried.append(code)
        return False

    tried: list[str] = []
    made = [await generate_unique_personal_code(name, free, lambda: 7) for name in ("Kate Rodgers", "Åsa", "Зоя")]
    assert made == ["KATE0007", "ASA0007", "GIFT0007"]
    numbers: Iterator[int] = iter(range(10))
    with pytest.raises(DuplicatePersonalCode):
        await generate_unique_personal_code("Kate", taken, numbers.__next__)
    assert tried == ["KATE0000", "KATE0001", "KATE0002"]


async def test_a_bad_order_is_refused_and_leaves_nothing(cards: GiftCards) -> None:
    for customer, email, field in (("", "k@example.com", "customer"), ("Kate", "nowhere", "email")):
        with pytest.raises(InvalidInput) as refused:
            await cards.order(customer, email)
        assert refused.value.field == field
    assert await cards.query("SELECT count(*) FROM giftcards") == [(0,)]


def test_the_environment_says_when_dead_letters_come_back_and_how_many_jobs_a_cron_run_takes() -> None:
    assert Settings.from_environment({}) == Settings("sqlite:///everwork.db", 24.0, 10)
    given = {"GIFTCARD_FAILED_JOB_RETRY_HOURS": "6", "GIFTCARD_JOBS_PER_CRON_RUN": "25"}
    assert Settings.from_environment(given) == Settings("sqlite:///everwork.db", 6.0, 25)
    for name, wrong in (("FAILED_JOB_RETRY_HOURS", "soon"), ("JOBS_PER_CRON_RUN", "1.5"), ("JOBS_PER_CRON_RUN", "0")):
        with pytest.raises(BadConfiguration, match=f"GIFTCARD_{name}: must be a"):
            Settings.from_environment({f"GIFTCARD_{name}": wrong})
    with pytest.raises(BadConfiguration, match="must be a SQLite or PostgreSQL URL"):
        GiftCards(Settings("redis://127.0.0.1:6379"))
