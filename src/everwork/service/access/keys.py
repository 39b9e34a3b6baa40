"""API keys: stored as hashes in the registry, known to every server within a second, checked on every call."""

from __future__ import annotations

import asyncio
import hmac
import math
import secrets
import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from everwork.aio.clocks import Seconds, host_clock_ms
from everwork.aio.loops import BackgroundLoop
from everwork.core import checks
from everwork.core.limits import (
    API_KEY_CHARS_MAX,
    API_KEY_CHARS_MIN,
    API_KEY_KEEP_MS,
    RATE_BUCKETS_MAX,
    SWEEP_STEP_MAX,
)
from everwork.engines.contract import Clock, Engine
from everwork.exceptions import (
    BadConfiguration,
    EngineUnavailable,
    NotFound,
    TooManyRequests,
    Unauthenticated,
)
from everwork.logs import get_logger
from everwork.service.access.api_key import KEY_KIND, ApiKey, KeyState, NewKey, StoredKey, new_key, stored_key
from everwork.service.access.failures import AuthenticationFailures
from everwork.service.access.grants import granted, require_may_revoke
from everwork.service.access.principal import ANYBODY, Permission, Principal

log = get_logger("everwork")

REFRESH_SECONDS: Final = 0.8
STALE_SECONDS: Final = 5.0
"""If the keys could not be reloaded for this long, an unknown key may be new, so its validity cannot be decided."""
TRUSTED_SECONDS: Final = 3_600.0
"""How long known keys are accepted while the engine is unavailable: a revocation can take this long to be noticed."""
SECRET_BYTES: Final = 32
ENVIRONMENT_ID: Final = "environment"

MISSING: Final = "no API key: send it in the x-api-key metadata/header"
UNKNOWN: Final = "unknown API key"
UNCHECKED: Final = "the API key cannot be checked: the engine is unavailable"
_REFUSALS: Final = {
    KeyState.EXPIRED: "the API key has expired",
    KeyState.REVOKED: "the API key was revoked",
}


class KeyRing:
    """The keys of a store. `authenticate` does not wait for the store: its copy is at most a second old.

    Keys expire by the host's clock, not the store's: users set expiry times by their own clocks.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        environment_key: str | None = None,
        rate_limit: float = 0.0,
        clock: Clock = host_clock_ms,
        rate_clock: Seconds = time.monotonic,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._limiter = RateLimiter(rate_limit, rate_clock)
        self.failures = AuthenticationFailures(clock=rate_clock)
        self._elapsed = rate_clock
        self._read_at = -math.inf
        """When the keys were last read."""
        self._environment = None if environment_key is None else _digest(require_environment_key(environment_key))
        self._known: dict[str, StoredKey] = {}
        self._changing = asyncio.Lock()
        self._refreshing: BackgroundLoop | None = None

    async def open(self, *, is_store_open: bool = True) -> None:
        """Load the keys, unless the engine is unavailable, and refresh them in the background."""
        if is_store_open:
            await self._refresh()
        self._refreshing = BackgroundLoop("everwork-keys", self._refresh, REFRESH_SECONDS)
        self._refreshing.start()

    async def close(self) -> None:
        """Stop refreshing. Closing twice is harmless."""
        if self._refreshing is not None:
            await self._refreshing.abort()
            self._refreshing = None

    # Every call ---------------------------------------------------------------------------------

    def admit(self, text: str | None) -> Principal:
        """Authenticate a key and count the request against its rate limit; returns the key's holder."""
        principal = self.authenticate(text)
        try:
            self.spend(principal)
        except TooManyRequests as error:
            raise self.failures.throttled(error, principal.id) from None
        return principal

    def authenticate(self, text: str | None) -> Principal:
        """The holder of a key. Only callers that know the secret learn why the key is refused."""
        if not text:
            raise Unauthenticated(MISSING)
        if len(text) > API_KEY_CHARS_MAX:
            raise Unauthenticated(UNKNOWN)
        digest = _digest(text)
        if self._environment is not None and hmac.compare_digest(self._environment, digest):
            return ENVIRONMENT
        key = self._known.get(_id_in(text))
        if key is None or not hmac.compare_digest(key.digest, digest):
            self._require_read_within(STALE_SECONDS)
            raise Unauthenticated(UNKNOWN)
        self._require_read_within(TRUSTED_SECONDS)
        state = key.state(self._clock())
        if state is not KeyState.LIVE:
            raise Unauthenticated(_REFUSALS[state])
        return key.principal

    def _require_read_within(self, seconds: float) -> None:
        if self._refreshing is not None and self._elapsed() - self._read_at > seconds:
            raise EngineUnavailable(UNCHECKED)

    def is_live(self, principal: Principal) -> bool:
        """Whether a key is still valid; used by long-running calls."""
        if principal is ENVIRONMENT:
            return self._environment is not None
        return self._live(principal.id) is not None

    def badge(self, principal: Principal, token: str) -> str:
        """What a session stores to identify the key that started it; the key in the environment can change.

        A person has often chosen that key. It is stored as an HMAC with the session's random token, which is not in the
        store, so that guesses of the key cannot be checked against the store.
        """
        return self._environment_badge(token) if principal is ENVIRONMENT else principal.id

    def holder(self, badge: str, token: str) -> Principal | None:
        """The holder of the key that started a session, if the key is still valid."""
        if badge.startswith(f"{ENVIRONMENT_ID}-"):
            is_same = hmac.compare_digest(badge.encode(), self._environment_badge(token).encode())
            return ENVIRONMENT if self._environment is not None and is_same else None
        return self._live(badge)

    def _live(self, id: str) -> Principal | None:
        key = self._known.get(id)
        return key.principal if key is not None and key.state(self._clock()) is KeyState.LIVE else None

    def _environment_badge(self, token: str) -> str:
        mark = hmac.new(token.encode("utf-8", "surrogatepass"), self._environment or b"", sha256)
        return f"{ENVIRONMENT_ID}-{mark.hexdigest()}"

    def spend(self, principal: Principal) -> None:
        """Count one request of a key; its own rate overrides the server's."""
        self._limiter.spend(principal.id, principal.rate_per_second)

    def _rate_of(self, principal: Principal) -> float | None:
        """The rate that applies to a principal; None if it is not limited, for example because it has no key."""
        if principal.rate_per_second is not None:
            return principal.rate_per_second
        has_key = principal is ENVIRONMENT or principal.id in self._known
        return self._limiter.per_second or None if has_key else None

    def pace(self, principal: Principal) -> float:
        """Count one message of a stream; returns in how many seconds the key's rate allows it."""
        return self._limiter.pace(principal.id, principal.rate_per_second)

    # Administration -----------------------------------------------------------------------------

    async def create(
        self,
        name: str,
        permissions: Sequence[str],
        *,
        tenants: Sequence[str] = (),
        expires_at_ms: int | None = None,
        rate_per_second: float | None = None,
        creator: Principal = ANYBODY,
    ) -> NewKey:
        """Create a key. Its text is returned once and never stored."""
        id = secrets.token_hex(6)
        text = f"ew_{id}_{secrets.token_urlsafe(SECRET_BYTES)}"
        given = {"name": name, "permissions": permissions, "tenants": tenants}
        limits = {"expires_at_ms": expires_at_ms, "rate_per_second": rate_per_second}
        key = granted(creator, new_key(id, self._clock(), given | limits), self._rate_of(creator))
        await self._write(StoredKey(key, _digest(text)))
        return NewKey(text, key)

    async def revoke(self, id: str, revoker: Principal = ANYBODY) -> ApiKey:
        """Revoke a key: on this server immediately, on others within a second. It is still listed for a while."""
        checks.name("id", id)
        for stored in await self._stored():
            if stored.key.id == id:
                require_may_revoke(revoker, stored.key)
                revoked = stored.revoked(self._clock())
                await self._write(revoked)
                return revoked.key
        raise NotFound("API key", id)

    async def _write(self, stored: StoredKey) -> None:
        # A refresh that started before this change must not finish after it and drop the key.
        async with self._changing:
            await self._engine.register(KEY_KIND, stored.key.id, stored.body())
            self._known = self._known | {stored.key.id: stored}

    async def _refresh(self) -> bool:
        async with self._changing:
            self._known = {stored.key.id: stored for stored in await self._stored()}
            self._read_at = self._elapsed()
        return False

    async def _stored(self) -> Sequence[StoredKey]:
        """The stored keys, except those that cannot be read."""
        entries = await self._engine.registered(KEY_KIND)
        found = [stored_key(entry.name, entry.body) for entry in entries]
        return [stored for stored in found if stored is not None]

    # Last in the class, because its name shadows the builtin in the annotations below it.

    async def list(self) -> Sequence[ApiKey]:
        """Every key, oldest first, without secrets."""
        return sorted((stored.key for stored in await self._stored()), key=lambda key: (key.created_at_ms, key.id))


class NoAuthentication(KeyRing):
    """The keys of a server without authentication."""

    async def open(self, *, is_store_open: bool = True) -> None:
        """Nothing to load."""

    def authenticate(self, text: str | None) -> Principal:  # noqa: ARG002 - the signature is the key ring's
        """Accept every caller, with or without a key."""
        return ANYBODY

    def is_live(self, principal: Principal) -> bool:  # noqa: ARG002 - the signature is the key ring's
        """Always."""
        return True

    def holder(self, badge: str, token: str) -> Principal | None:  # noqa: ARG002 - the signature is the key ring's
        """Always the anonymous principal."""
        return ANYBODY

    def spend(self, principal: Principal) -> None:
        """No limit."""

    def pace(self, principal: Principal) -> float:  # noqa: ARG002 - the signature is the key ring's
        """No limit."""
        return 0.0


async def forget_keys(engine: Engine, clock: Clock = host_clock_ms) -> int:
    """Delete keys that expired or were revoked long ago by both the store's and the host's clock: one may be wrong."""
    now_ms = min(await engine.now(), clock())
    found = [stored_key(entry.name, entry.body) for entry in await engine.registered(KEY_KIND)]
    ended = [
        stored.key.id for stored in found if stored is not None and _ended_ms(stored.key) + API_KEY_KEEP_MS <= now_ms
    ]
    for id in ended[:SWEEP_STEP_MAX]:
        await engine.unregister(KEY_KIND, id)
        log.info("deleted an API key that expired or was revoked long ago", id=id)
    return len(ended[:SWEEP_STEP_MAX])


def _ended_ms(key: ApiKey) -> float:
    """When a key expired or was revoked, whichever came first."""
    return min((at_ms for at_ms in (key.expires_at_ms, key.revoked_at_ms) if at_ms is not None), default=math.inf)


ENVIRONMENT: Final = Principal(ENVIRONMENT_ID, "EVERWORK_API_KEY", frozenset([Permission.ALL]))
"""The holder of the key that the server was started with."""


def require_environment_key(text: str) -> str:
    """Check that EVERWORK_API_KEY is long enough to be a secret and is valid in a header."""
    if not API_KEY_CHARS_MIN <= len(text) <= API_KEY_CHARS_MAX:
        allowed = f"{API_KEY_CHARS_MIN} to {API_KEY_CHARS_MAX} characters, not {len(text):,}"
        raise BadConfiguration(f"EVERWORK_API_KEY (environment): must have {allowed}")
    if not (text.isascii() and text.isprintable() and " " not in text):
        raise BadConfiguration(
            "EVERWORK_API_KEY (environment): must consist of printable ASCII characters without spaces, "
            "because it is sent in a header"
        )
    return text


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def _id_in(text: str) -> str:
    """The id contained in a key's text (the id is not secret); empty if there is none."""
    return text[3:].partition("_")[0] if text.startswith("ew_") else ""


class RateLimiter:
    """Token buckets that hold one second's worth of requests, and at least one.

    A bucket is stored as the time at which it will be full again; a full bucket needs no entry.
    """

    __slots__ = ("_clock", "_full_at", "per_second")

    def __init__(self, per_second: float = 0.0, clock: Seconds = time.monotonic) -> None:
        self.per_second = per_second
        self._clock = clock
        self._full_at: dict[str, float] = {}

    def spend(self, id: str, per_second: float | None = None) -> None:
        """Take one token at the key's own rate or the default rate; 0 means unlimited."""
        rate = self.per_second if per_second is None else per_second
        if rate <= 0:
            return
        now = self._clock()
        full_at = max(self._full_at.get(id, now), now)
        wait = full_at - now - (max(rate, 1.0) - 1.0) / rate
        if wait > 1e-9:  # Floating-point sums are not exact.
            raise _refused(rate, wait)
        if id not in self._full_at and len(self._full_at) >= RATE_BUCKETS_MAX:
            self._evict(now)
        self._full_at[id] = full_at + 1.0 / rate

    def pace(self, id: str, per_second: float | None = None) -> float:
        """Take one token, in advance if there is none; returns the seconds until it is available."""
        try:
            self.spend(id, per_second)
        except TooManyRequests:
            return self._borrow(id, self.per_second if per_second is None else per_second)
        return 0.0

    def _borrow(self, id: str, rate: float) -> float:
        full_at = self._full_at[id]
        self._full_at[id] = full_at + 1.0 / rate
        return max(full_at - self._clock() - (max(rate, 1.0) - 1.0) / rate, 0.0)

    def _evict(self, now: float) -> None:
        """Drop full buckets, or the oldest one if all are in use."""
        self._full_at = {id: full_at for id, full_at in self._full_at.items() if full_at > now}
        if len(self._full_at) >= RATE_BUCKETS_MAX:
            del self._full_at[next(iter(self._full_at))]


def _refused(rate: float, wait: float) -> TooManyRequests:
    retry_after_ms = max(1, math.ceil(wait * 1000))
    return TooManyRequests(
        f"rate limit exceeded: the API key allows {rate:g} requests per second; retry in {retry_after_ms} ms",
        retry_after_ms,
    )
