"""The circuit breaker by the names of the seed, and what it says about itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from everwork import BreakerState, CircuitBreaker, Everwork, RetryPolicy, State
from everwork.exceptions import InvalidInput
from tests.app.waiting import finished, working
from tests.stores import VirtualClock, url_of


def test_a_breaker_takes_failure_threshold_and_recovery_timeout() -> None:
    breaker = CircuitBreaker(failure_threshold=5, recovery_timeout=60)
    assert breaker == CircuitBreaker(failures=5, seconds=60)
    assert (breaker.failures, breaker.seconds) == (5, 60)
    assert CircuitBreaker() == CircuitBreaker(3, 60.0)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"failures": 3, "failure_threshold": 5}, "failure_threshold: is an alias of failures: pass only one of them"),
        ({"seconds": 60, "recovery_timeout": 60}, "recovery_timeout: is an alias of seconds: pass only one of them"),
        ({"failure_threshold": 0}, "breaker_failures: must be a whole number from 1"),
        ({"recovery_timeout": "soon"}, "breaker_seconds: must be a number from 1"),
    ],
)
def test_contradictions_and_wrong_values_are_refused_by_name(given: dict[str, int], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        CircuitBreaker(**given)


@pytest.mark.every_engine
async def test_state_and_should_fail_fast_are_answered_from_the_store(
    engine_name: str, tmp_path: Path, clock: VirtualClock
) -> None:
    app = Everwork(url_of(engine_name, tmp_path), clock=clock)
    probing, end_probe = asyncio.Event(), asyncio.Event()

    @app.job(
        "card-charge",
        retry=RetryPolicy(max_attempts=1),
        breaker=CircuitBreaker(failure_threshold=2, recovery_timeout=60),
    )
    async def charge(works: bool) -> None:
        if not works:
            raise ConnectionError("the bank is closed")
        probing.set()
        await end_probe.wait()

    async def seen() -> tuple[BreakerState, bool]:
        breaker = await app.breaker("card-charge")
        return breaker.state, breaker.should_fail_fast()

    async with app, working(app):
        assert await seen() == (BreakerState.CLOSED, False)
        assert (await app.breaker("unheard-of")).should_fail_fast() is False
        for _ in range(2):
            await finished(app, await app.enqueue("card-charge", works=False))
        assert await seen() == (BreakerState.OPEN, True)
        assert (await asyncio.to_thread(app.sync.breaker, "card-charge")).open_until_ms == clock.now_ms + 60_000
        clock.advance(seconds=61)
        assert await seen() == (BreakerState.HALF_OPEN, False)
        key = await app.enqueue("card-charge", works=True)
        await probing.wait()
        assert await seen() == (BreakerState.HALF_OPEN, True)
        end_probe.set()
        assert (await finished(app, key)).state is State.COMPLETED
        assert await seen() == (BreakerState.CLOSED, False)
