"""Failed authentication: logged without flooding the log, and throttled by address.

A valid key is always accepted: callers share addresses behind a NAT or a proxy, and one with an invalid key must not
lock out the others. Only the responses to invalid keys are throttled, and the log lines about them.

Responses to keys above their limits are held back, too, if they retry immediately: a refusal costs the server nearly as
much time as a request.
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
"""The prefix length of an IPv6 network; one host can have all addresses in it."""

ANSWERS_PER_SECOND: Final = 50
"""How many responses per second a throttled address, or a key above its limits, gets; the others are held back."""
ANSWERS_BURST: Final = 100
"""How many refusals of one key are sent immediately, if there were none before."""
HELD_SECONDS_MAX: Final = 2.0
HELD_MAX: Final = 1_000
"""How many responses are held back at a time; further ones are sent immediately."""

log = get_logger("everwork")


class Throttled(TooManyRequests):
    """A caller is refused too often. The response is held back for `held_seconds`: retries then cost others little."""

    def __init__(self, message: str, retry_after_ms: int, held_seconds: float) -> None:
        super().__init__(message, retry_after_ms)
        self.held_seconds = held_seconds


@dataclass(slots=True)
class _Address:
    """The failures of one address. `full_at` is when its bucket will be full again."""

    full_at: float
    logged_at: float = -math.inf
    unlogged: int = 0
    is_throttled: bool = False


class AuthenticationFailures:
    """The recent failures of all addresses; if there are too many addresses, the oldest are forgotten."""

    def __init__(self, burst: int = AUTH_FAILURES_BURST, clock: Seconds = time.monotonic) -> None:
        self._burst = burst
        self._clock = clock
        self._addresses: dict[str, _Address] = {}
        self._lines_from = -math.inf
        self._lines = 0
        self._unlogged = 0
        self._held = 0
        self._answer_at: dict[str, float] = {}
        """When the last response to a caller is sent; the oldest callers are forgotten, as with addresses."""

    def refusal(
        self, error: Unauthenticated, origin: str, api: str, event: str = "authentication failed"
    ) -> Unauthenticated | TooManyRequests:
        """The error for a caller whose key was refused; it is logged, and throttled if the address fails too often."""
        now = self._clock()
        network = _network(origin)
        address = self._address(network, now)
        wait = address.full_at - now + (1 - self._burst) / AUTH_FAILURES_PER_SECOND
        is_over = wait > 1e-9  # Floating-point sums are not exact.
        self._log(address, is_over, now, event, {"origin": origin, "api": api, "error": str(error)})
        if is_over:
            retry_after_ms = max(1, math.ceil(wait * 1000))
            text = f"{error}; too many failures from this address, retry in {retry_after_ms} ms"
            return Throttled(text, retry_after_ms, self._held_seconds(network))
        address.full_at += 1.0 / AUTH_FAILURES_PER_SECOND
        return error

    def throttled(self, error: TooManyRequests, caller: str) -> Throttled:
        """The same refusal of a caller; its response is held back if there are too many."""
        return Throttled(str(error), error.retry_after_ms, self._held_seconds(caller, ANSWERS_BURST))

    async def hold_back(self, error: Exception, caller: str) -> None:
        """Hold back the response to a caller that is refused too often; does nothing for other errors."""
        if not isinstance(error, TooManyRequests):
            return
        refusal = error if isinstance(error, Throttled) else self.throttled(error, caller)
        if refusal.held_seconds > 0 and self._held < HELD_MAX:
            self._held += 1
            try:
                await asyncio.sleep(refusal.held_seconds)
            finally:
                self._held -= 1

    def _held_seconds(self, caller: str, burst: int = 0) -> float:
        """How long the next response to a caller is held back."""
        now = self._clock()
        last = max(self._answer_at.pop(caller, -math.inf), now - burst / ANSWERS_PER_SECOND)
        if len(self._answer_at) >= AUTH_FAILURE_ADDRESSES_MAX:
            del self._answer_at[next(iter(self._answer_at))]
        self._answer_at[caller] = at = min(last + 1.0 / ANSWERS_PER_SECOND, now + HELD_SECONDS_MAX)
        return at - now

    def _address(self, name: str, now: float) -> _Address:
        """The entry of an address, moved to the end, so that the entries are ordered by their last failures."""
        found = self._addresses.pop(name, None) or _Address(now)
        found.full_at = max(found.full_at, now)
        if len(self._addresses) >= AUTH_FAILURE_ADDRESSES_MAX:
            del self._addresses[next(iter(self._addresses))]
        self._addresses[name] = found
        return found

    def _log(self, address: _Address, is_over: bool, now: float, event: str, facts: dict[str, str]) -> None:
        """Log the first failure of an address, the first that is throttled, and then one line per minute."""
        is_new = now - address.logged_at >= LINE_SECONDS or (is_over and not address.is_throttled)
        # An address that keeps failing gets a normal error now and then, but is still throttled.
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


def _network(origin: str) -> str:
    """The unit of throttling: an IPv4 address, or the network of an IPv6 address."""
    try:
        address = ip_address(origin.partition("%")[0])
    except ValueError:
        return origin
    return origin if address.version == 4 else str(IPv6Network((int(address), NETWORK_BITS), strict=False))
