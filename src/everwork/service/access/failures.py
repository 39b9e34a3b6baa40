"""Failed authentication: logged without flooding the log, and throttled by address.

A valid key is always accepted: callers share addresses behind a NAT or a proxy, and one with a bad key must not lock
out the others. Only the answers to bad keys are throttled, and the log lines about them.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from ipaddress import IPv6Network, ip_address
from typing import Final

from everwork.aio.clocks import Seconds
from everwork.core.limits import (
    AUTH_FAILURE_ADDRESSES_MAX,
    AUTH_FAILURE_LINES_PER_MINUTE,
    AUTH_FAILURES_BURST,
    AUTH_FAILURES_PER_SECOND,
)
from everwork.exceptions import TooManyRequests, Unauthenticated
from everwork.logs import get_logger

LINE_SECONDS: Final = 60.0
"""How often failures of one address are logged."""
NETWORK_BITS: Final = 64
"""One IPv6 host can have all addresses of such a network."""

ANSWERS_PER_SECOND: Final = 50
"""How often an address is answered while it is throttled; the other answers are held back."""
HELD_SECONDS_MAX: Final = 2.0
HELD_MAX: Final = 1_000
"""How many answers are held back at a time; further ones are given immediately."""

log = get_logger("everwork")


class Throttled(TooManyRequests):
    """An address fails too often. The answer is held back for `held_seconds`, so that retries cost others little."""

    def __init__(self, message: str, retry_after_ms: int, held_seconds: float) -> None:
        super().__init__(message, retry_after_ms)
        self.held_seconds = held_seconds


@dataclass(slots=True)
class _Address:
    """The failures of one address. `full_at` is when its bucket will be full again."""

    full_at: float
    answer_at: float = -math.inf
    """When the last answer that is held back is given."""
    logged_at: float = -math.inf
    unlogged: int = 0
    is_throttled: bool = False


class AuthenticationFailures:
    """The recent failures of all addresses; the oldest are forgotten when there are too many."""

    def __init__(self, burst: int = AUTH_FAILURES_BURST, clock: Seconds = time.monotonic) -> None:
        self._burst = burst
        self._clock = clock
        self._addresses: dict[str, _Address] = {}
        self._lines_from = -math.inf
        self._lines = 0
        self._unlogged = 0
        self._held = 0

    def refusal(
        self, error: Unauthenticated, origin: str, api: str, event: str = "authentication failed"
    ) -> Unauthenticated | TooManyRequests:
        """The error for a caller whose key was refused; it is logged, and throttled if the address fails too often."""
        now = self._clock()
        address = self._address(_network(origin), now)
        wait = address.full_at - now + (1 - self._burst) / AUTH_FAILURES_PER_SECOND
        is_over = wait > 1e-9  # Floating-point sums are not exact.
        self._log(address, is_over, now, event, {"origin": origin, "api": api, "error": str(error)})
        if is_over:
            retry_after_ms = max(1, math.ceil(wait * 1000))
            text = f"{error}; too many failures from this address, retry in {retry_after_ms} ms"
            return Throttled(text, retry_after_ms, _held_seconds(address, now))
        address.full_at += 1.0 / AUTH_FAILURES_PER_SECOND
        return error

    async def hold_back(self, error: Exception) -> None:
        """Wait before an address that fails too often gets its answer; other errors are answered immediately."""
        if isinstance(error, Throttled) and self._held < HELD_MAX:
            self._held += 1
            try:
                await asyncio.sleep(error.held_seconds)
            finally:
                self._held -= 1

    def _address(self, name: str, now: float) -> _Address:
        """The entry of an address, moved to the end: the entries are in the order of their last failures."""
        found = self._addresses.pop(name, None) or _Address(now)
        found.full_at = max(found.full_at, now)
        if len(self._addresses) >= AUTH_FAILURE_ADDRESSES_MAX:
            del self._addresses[next(iter(self._addresses))]
        self._addresses[name] = found
        return found

    def _log(self, address: _Address, is_over: bool, now: float, event: str, facts: dict[str, str]) -> None:
        """Log the first failure of an address, the first that is throttled, and then one line per minute."""
        is_new = now - address.logged_at >= LINE_SECONDS or (is_over and not address.is_throttled)
        # An address that goes on failing is answered now and then, and still throttled.
        address.is_throttled = is_over or (address.is_throttled and not is_new)
        address.unlogged += 1
        if not is_new:
            return
        address.logged_at = now
        if now - self._lines_from >= LINE_SECONDS:
            self._lines_from, self._lines = now, 0
        if self._lines >= AUTH_FAILURE_LINES_PER_MINUTE:
            self._unlogged += address.unlogged
        else:
            self._lines += 1
            more = {"failures_elsewhere": self._unlogged} if self._unlogged else {}
            log.warning(event, **facts, failures=address.unlogged, throttled=is_over, **more)
            self._unlogged = 0
        address.unlogged = 0


def _held_seconds(address: _Address, now: float) -> float:
    address.answer_at = max(address.answer_at, now) + 1.0 / ANSWERS_PER_SECOND
    address.answer_at = min(address.answer_at, now + HELD_SECONDS_MAX)
    return address.answer_at - now


def _network(origin: str) -> str:
    """What is throttled together: an IPv4 address, or the network of an IPv6 address."""
    try:
        address = ip_address(origin.partition("%")[0])
    except ValueError:
        return origin
    return origin if address.version == 4 else str(IPv6Network((int(address), NETWORK_BITS), strict=False))
