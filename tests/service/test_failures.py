"""Failed authentication: logged without flooding the log, throttled by address, remembered within bounds."""

from __future__ import annotations

import asyncio
import logging

import pytest

from everwork.core.limits import (
    AUTH_FAILURE_ADDRESSES_MAX,
    AUTH_FAILURE_LINES_PER_MINUTE,
    AUTH_FAILURES_BURST,
    AUTH_FAILURES_PER_SECOND,
)
from everwork.engines.contract import Engine
from everwork.exceptions import TooManyRequests, Unauthenticated
from everwork.service.access.failures import (
    ANSWERS_BURST,
    ANSWERS_PER_SECOND,
    HELD_MAX,
    HELD_SECONDS_MAX,
    AuthenticationFailures,
    Throttled,
)
from everwork.service.access.keys import KeyRing

UNKNOWN = Unauthenticated("unknown API key")


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def failures(clock: Clock) -> AuthenticationFailures:
    return AuthenticationFailures(clock=clock)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings so far."""
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_an_address_that_fails_too_often_is_told_when_to_come_again(
    failures: AuthenticationFailures, clock: Clock
) -> None:
    for _ in range(AUTH_FAILURES_BURST):
        assert failures.refusal(UNKNOWN, "203.0.113.9", "rest") is UNKNOWN
    refused = failures.refusal(UNKNOWN, "203.0.113.9", "rest")
    assert isinstance(refused, TooManyRequests)
    assert str(refused).startswith("unknown API key; too many failures from this address, retry in ")
    assert 0 < refused.retry_after_ms <= 1_000 / AUTH_FAILURES_PER_SECOND + 1
    assert failures.refusal(UNKNOWN, "203.0.113.10", "rest") is UNKNOWN
    clock.seconds += 1.01 / AUTH_FAILURES_PER_SECOND
    assert failures.refusal(UNKNOWN, "203.0.113.9", "rest") is UNKNOWN
    assert isinstance(failures.refusal(UNKNOWN, "203.0.113.9", "rest"), TooManyRequests)


def test_the_addresses_of_one_ipv6_network_are_one(failures: AuthenticationFailures) -> None:
    for number in range(AUTH_FAILURES_BURST):
        failures.refusal(UNKNOWN, f"2001:db8::{number:x}", "grpc")
    assert isinstance(failures.refusal(UNKNOWN, "2001:db8::ffff", "grpc"), TooManyRequests)
    assert failures.refusal(UNKNOWN, "2001:db8:0:1::1", "grpc") is UNKNOWN
    assert failures.refusal(UNKNOWN, "fe80::1%eth0", "grpc") is UNKNOWN
    assert failures.refusal(UNKNOWN, "unknown", "grpc") is UNKNOWN


def test_an_address_gets_a_line_at_first_when_it_is_throttled_and_then_each_minute(
    failures: AuthenticationFailures, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(1_000):
        failures.refusal(UNKNOWN, "203.0.113.9", "rest")
    first, throttled = lines(caplog)
    for told in ("authentication failed", "203.0.113.9", "rest", "unknown API key"):
        assert told in first
    assert ("throttled" in throttled, str(AUTH_FAILURES_BURST) in throttled) == (True, True)
    clock.seconds += 60
    failures.refusal(UNKNOWN, "203.0.113.9", "rest")
    assert len(lines(caplog)) == 3


def test_a_thousand_addresses_do_not_flood_the_log(
    failures: AuthenticationFailures, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1_000):
        failures.refusal(UNKNOWN, f"10.0.{number // 256}.{number % 256}", "rest")
    assert len(lines(caplog)) == AUTH_FAILURE_LINES_PER_MINUTE
    clock.seconds += 60
    failures.refusal(UNKNOWN, "192.0.2.1", "rest")
    assert f"failures_elsewhere={1_000 - AUTH_FAILURE_LINES_PER_MINUTE}" in lines(caplog)[-1].replace("'", "")


def test_only_so_many_addresses_are_remembered_the_last_ones(failures: AuthenticationFailures) -> None:
    for number in range(AUTH_FAILURE_ADDRESSES_MAX + 10):
        failures.refusal(UNKNOWN, f"10.{number // 65_536}.{number // 256 % 256}.{number % 256}", "rest")
    known = failures._addresses
    assert (len(known), "10.0.0.9" in known, "10.0.0.10" in known) == (AUTH_FAILURE_ADDRESSES_MAX, False, True)


def test_an_address_that_never_stops_failing_gets_two_lines_a_minute_at_most(
    failures: AuthenticationFailures, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(59 * AUTH_FAILURES_PER_SECOND):
        for _ in range(20):
            failures.refusal(UNKNOWN, "203.0.113.9", "rest")
        clock.seconds += 1.0 / AUTH_FAILURES_PER_SECOND
    assert len(lines(caplog)) == 2


def test_the_answers_to_an_address_that_fails_too_often_are_spaced(
    failures: AuthenticationFailures, clock: Clock
) -> None:
    for _ in range(AUTH_FAILURES_BURST):
        failures.refusal(UNKNOWN, "203.0.113.9", "rest")
    held = [failures.refusal(UNKNOWN, "203.0.113.9", "rest") for _ in range(1_000)]
    seconds = [one.held_seconds for one in held if isinstance(one, Throttled)]
    assert seconds[:3] == pytest.approx([1 / ANSWERS_PER_SECOND, 2 / ANSWERS_PER_SECOND, 3 / ANSWERS_PER_SECOND])
    assert len(seconds) == 1_000
    assert max(seconds) == pytest.approx(HELD_SECONDS_MAX)
    clock.seconds += 0.5 / AUTH_FAILURES_PER_SECOND
    later = failures.refusal(UNKNOWN, "203.0.113.9", "rest")
    assert isinstance(later, Throttled)
    assert later.held_seconds <= HELD_SECONDS_MAX + 1e-9


def test_a_key_that_ignores_its_refusals_is_answered_slowly_until_it_pauses(
    failures: AuthenticationFailures, clock: Clock
) -> None:
    def refused(key: str) -> float:
        return failures.throttled(TooManyRequests("too many", 1_000), key).held_seconds

    assert max(refused("noisy") for _ in range(ANSWERS_BURST)) <= 1e-9
    held = [refused("noisy") for _ in range(1_000)]
    assert held[:2] == pytest.approx([1 / ANSWERS_PER_SECOND, 2 / ANSWERS_PER_SECOND])
    assert max(held) == pytest.approx(HELD_SECONDS_MAX)
    assert refused("quiet") <= 0
    clock.seconds += HELD_SECONDS_MAX + ANSWERS_BURST / ANSWERS_PER_SECOND
    assert refused("noisy") <= 0


async def test_a_rate_limit_that_is_ignored_slows_the_answers_down(engine: Engine, clock: Clock) -> None:
    keys = KeyRing(engine, environment_key="x" * 32, rate_limit=1, rate_clock=clock)
    keys.admit("x" * 32)
    held = []
    for _ in range(ANSWERS_BURST + 1):
        with pytest.raises(Throttled) as refused:
            keys.admit("x" * 32)
        held.append(refused.value.held_seconds)
    assert max(held[:-1]) <= 1e-9
    assert held[-1] == pytest.approx(1 / ANSWERS_PER_SECOND)


async def test_only_so_many_answers_are_held_back_and_other_errors_not_at_all(failures: AuthenticationFailures) -> None:
    held = [asyncio.create_task(failures.hold_back(Throttled("throttled", 1, 3_600.0), "a")) for _ in range(HELD_MAX)]
    await asyncio.sleep(0)
    await failures.hold_back(Throttled("throttled", 1, 3_600.0), "a")
    for task in held:
        task.cancel()
    await asyncio.wait(held)
    await failures.hold_back(UNKNOWN, "a")
    assert failures._held == 0
