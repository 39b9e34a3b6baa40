"""The rate limit: of the whole key, in bounded memory, with a hint when to come again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.core.limits import RATE_BUCKETS_MAX
from everwork.exceptions import TooManyRequests
from everwork.service.access.keys import KeyRing, RateLimiter

if TYPE_CHECKING:
    from everwork.engines.contract import Engine


class Seconds:
    """A clock that moves only when a test moves it."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def seconds() -> Seconds:
    """The limiter's clock."""
    return Seconds()


def spent(limiter: RateLimiter, id: str, most: int, rate: float | None = None) -> int:
    """How many requests pass at once."""
    for done in range(most):
        try:
            limiter.spend(id, rate)
        except TooManyRequests:
            return done
    return most


def test_a_second_s_worth_passes_at_once_and_then_as_much_as_time_brings(seconds: Seconds) -> None:
    limiter = RateLimiter(10, seconds)
    assert spent(limiter, "a", 100) == 10
    seconds.now += 0.3
    assert spent(limiter, "a", 100) == 3
    seconds.now += 3_600
    assert spent(limiter, "a", 100) == 10


def test_in_the_long_run_no_more_than_the_rate_passes(seconds: Seconds) -> None:
    limiter = RateLimiter(7, seconds)
    passed = 0
    for _ in range(1_000):
        passed += spent(limiter, "a", 3)
        seconds.now += 0.1
    assert 700 <= passed <= 707


def test_whoever_comes_back_when_told_is_admitted_and_not_a_moment_earlier(seconds: Seconds) -> None:
    limiter = RateLimiter(0.5, seconds)
    limiter.spend("a")
    with pytest.raises(TooManyRequests, match=r"allows 0\.5 requests per second; retry in 2000 ms") as caught:
        limiter.spend("a")
    assert caught.value.retry_after_ms == 2_000
    seconds.now += 1.99
    assert spent(limiter, "a", 1) == 0
    seconds.now += 0.01
    assert spent(limiter, "a", 2) == 1


def test_without_a_limit_everything_passes_and_nothing_is_kept(seconds: Seconds) -> None:
    limiter = RateLimiter(0, seconds)
    assert spent(limiter, "a", 10_000) == 10_000
    assert limiter._full_at == {}


def test_the_key_s_own_rate_goes_before_the_server_s(seconds: Seconds) -> None:
    assert spent(RateLimiter(5, seconds), "a", 100, rate=50) == 50
    assert spent(RateLimiter(50, seconds), "a", 100, rate=5) == 5
    assert spent(RateLimiter(0, seconds), "a", 100, rate=5) == 5


def test_keys_do_not_share_a_bucket_whatever_they_begin_with(seconds: Seconds) -> None:
    limiter = RateLimiter(3, seconds)
    assert [spent(limiter, id, 10) for id in ("abc", "abcd", "ab", "")] == [3, 3, 3, 3]


def test_memory_is_bounded_and_whoever_was_refused_stays_refused(seconds: Seconds) -> None:
    limiter = RateLimiter(1, seconds)
    for number in range(RATE_BUCKETS_MAX + 100):
        limiter.spend(f"key-{number}")
    assert len(limiter._full_at) == RATE_BUCKETS_MAX
    assert spent(limiter, f"key-{RATE_BUCKETS_MAX + 99}", 1) == 0
    seconds.now += 2
    limiter.spend("another")
    assert len(limiter._full_at) == 1


async def test_a_ring_counts_the_requests_of_each_key(engine: Engine, seconds: Seconds) -> None:
    ring = KeyRing(engine, environment_key="0123456789ab", rate_limit=2, rate_clock=seconds)
    slow, usual = await ring.create("slow", ["jobs"], rate_per_second=1), await ring.create("usual", ["jobs"])
    for text, most in ((slow.text, 1), (usual.text, 2), ("0123456789ab", 2)):
        for _ in range(most):
            ring.admit(text)
        with pytest.raises(TooManyRequests):
            ring.admit(text)
        ring.authenticate(text)  # Which counts nothing: a stream asks again and again whether its key is good.


def test_a_message_of_a_stream_waits_for_its_turn_and_delays_the_calls_of_its_key(seconds: Seconds) -> None:
    limiter = RateLimiter(10, seconds)
    assert [limiter.pace("a") for _ in range(10)] == [0.0] * 10
    assert [limiter.pace("a") for _ in range(2)] == pytest.approx([0.1, 0.2])
    assert spent(limiter, "a", 1) == 0
    assert limiter.pace("b") == 0.0
    seconds.now += 0.3
    assert spent(limiter, "a", 2) == 1
    assert RateLimiter(0, seconds).pace("a") == 0.0
