"""An API key as stored: name, permissions, tenants, expiry, and a hash of the key's text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple

import orjson

from everwork.core import checks
from everwork.core.limits import API_KEYS_TENANTS_MAX, INSTANT_MS_MAX, RATE_PER_SECOND_MAX
from everwork.exceptions import InvalidInput
from everwork.logs import get_logger
from everwork.service.access.principal import Permission, Principal

KEY_KIND: Final = "api_key"
RATE_PER_SECOND_MIN: Final = 0.001

log = get_logger("everwork")


class KeyState(Enum):
    """Whether a key is accepted."""

    LIVE = "live"
    EXPIRED = "expired"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key without its secret. An empty `tenants` means all tenants."""

    id: str
    name: str
    permissions: tuple[Permission, ...]
    tenants: tuple[str, ...]
    created_at_ms: int
    expires_at_ms: int | None = None
    revoked_at_ms: int | None = None
    rate_per_second: float | None = None

    def state(self, now_ms: int) -> KeyState:
        """The state at a given time; a revoked key stays revoked after its expiry."""
        if self.revoked_at_ms is not None:
            return KeyState.REVOKED
        return KeyState.EXPIRED if self.expires_at_ms is not None and self.expires_at_ms <= now_ms else KeyState.LIVE


class NewKey(NamedTuple):
    """A key that was just created: `text` is shown once."""

    text: str
    key: ApiKey

    def __repr__(self) -> str:
        return f"NewKey(text='***', key={self.key!r})"


@dataclass(frozen=True)
class StoredKey:
    """A key with the hash of its text."""

    key: ApiKey
    digest: bytes

    @cached_property
    def principal(self) -> Principal:
        """The key's holder; cached, because every call needs it."""
        key = self.key
        allowed = frozenset(key.permissions)
        return Principal(key.id, key.name, allowed, key.tenants, key.expires_at_ms, key.rate_per_second)

    def state(self, now_ms: int) -> KeyState:
        """The state of the key at a given time."""
        return self.key.state(now_ms)

    def revoked(self, now_ms: int) -> StoredKey:
        """A revoked copy of the key; a key that was already revoked keeps its original revocation time."""
        since = now_ms if self.key.revoked_at_ms is None else self.key.revoked_at_ms
        return StoredKey(replace(self.key, revoked_at_ms=since), self.digest)

    def body(self) -> str:
        """The body of the registry entry."""
        key = self.key
        return orjson.dumps(
            {
                "name": key.name,
                "sha256": self.digest.hex(),
                "permissions": [permission.value for permission in key.permissions],
                "tenants": key.tenants,
                "created_at_ms": key.created_at_ms,
                "expires_at_ms": key.expires_at_ms,
                "revoked_at_ms": key.revoked_at_ms,
                "rate_per_second": key.rate_per_second,
            }
        ).decode()


def new_key(id: str, now_ms: int, given: Mapping[str, Any]) -> ApiKey:
    """Validate the arguments and build a key; errors name the field and the allowed values."""
    expires_at_ms = given["expires_at_ms"]
    return ApiKey(
        id,
        checks.name("name", given["name"]),
        _permissions(given["permissions"]),
        _tenants(given["tenants"]),
        now_ms,
        None if expires_at_ms is None else _expiry(expires_at_ms, now_ms),
        None,
        _rate(given["rate_per_second"]),
    )


@lru_cache(maxsize=10_000)
def stored_key(id: str, body: str) -> StoredKey | None:
    """The key stored in a registry entry; None if it cannot be read, which is logged once."""
    try:
        stored = orjson.loads(body)
        key = ApiKey(
            id,
            checks.name("name", stored["name"]),
            _permissions(stored["permissions"]),
            _tenants(stored["tenants"]),
            _instant("created_at_ms", stored["created_at_ms"]) or 0,
            _instant("expires_at_ms", stored["expires_at_ms"]),
            _instant("revoked_at_ms", stored["revoked_at_ms"]),
            _rate(stored["rate_per_second"]),
        )
        return StoredKey(key, bytes.fromhex(stored["sha256"]))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        # The body is not logged: it holds a hash.
        log.error("a stored API key cannot be read and is refused", id=id, error=type(error).__name__)
        return None


def _permissions(values: object) -> tuple[Permission, ...]:
    allowed = ", ".join(permission.value for permission in Permission)
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise InvalidInput("permissions", f"must be a list of at least one of {allowed}, not {checks.shown(values)}")
    known = {permission.value: permission for permission in Permission}
    for value in values:
        if not isinstance(value, str) or value not in known:
            raise InvalidInput("permissions", f"must be one of {allowed}, not {checks.shown(value)}")
    return tuple(dict.fromkeys(known[value] for value in values))


def _tenants(values: object) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence) or len(values) > API_KEYS_TENANTS_MAX:
        raise InvalidInput("tenants", f"must be a list of at most {API_KEYS_TENANTS_MAX:,} names")
    return tuple(dict.fromkeys(checks.name("tenants", value) for value in values))


def _expiry(instant_ms: object, now_ms: int) -> int:
    checked = checks.whole_number("expires_at", instant_ms, 0, INSTANT_MS_MAX)
    if checked <= now_ms:
        raise InvalidInput("expires_at", "must be in the future")
    return checked


def _rate(value: object) -> float | None:
    if value is None:
        return None
    return checks.number("rate_per_second", value, RATE_PER_SECOND_MIN, RATE_PER_SECOND_MAX)


def _instant(field: str, value: object) -> int | None:
    return None if value is None else checks.whole_number(field, value, 0, INSTANT_MS_MAX)
