"""Which keys a caller may create and revoke: no key can grant what it lacks, or revoke a stronger one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from everwork.core.instants import utc_text
from everwork.exceptions import PermissionDenied
from everwork.service.access.api_key import ApiKey
from everwork.service.access.principal import Permission, Principal


def granted(creator: Principal, wished: ApiKey, rate_max: float | None) -> ApiKey:
    """The key that a creator may create; it inherits the creator's expiry and rate unless it has its own.

    `rate_max` is the rate that applies to the creator, or None if it is not limited.
    """
    creator.require(Permission.ADMIN)
    creator.require_unbound()
    _require_permissions(creator, wished.permissions)
    _require_expiry(creator, wished.expires_at_ms)
    _require_rate(creator, wished.rate_per_second, rate_max)
    return replace(
        wished,
        expires_at_ms=wished.expires_at_ms or creator.expires_at_ms,
        rate_per_second=wished.rate_per_second or creator.rate_per_second,
    )


def grantable(principal: Principal) -> frozenset[Permission]:
    """The permissions that a caller may give to a key."""
    return frozenset(one for one in Permission if principal.allows(one))


def outranks(permissions: Iterable[Permission], tenants: tuple[str, ...], principal: Principal) -> bool:
    """Whether a key can administer the store and has a permission that the caller lacks.

    No other key outranks an administrator, who has to be able to revoke a leaked one. Expiry and rate do not matter: a
    key that expires must be able to revoke one that does not.
    """
    held = frozenset(permissions)
    is_administrator = not tenants and not held.isdisjoint((Permission.ALL, Permission.ADMIN))
    return is_administrator and not held <= grantable(principal)


def require_may_revoke(principal: Principal, key: ApiKey) -> None:
    """Refuse to revoke a key that is stronger than the caller's."""
    if outranks(key.permissions, key.tenants, principal):
        raise PermissionDenied(
            f"key '{principal.name}' cannot revoke key '{key.name}', an administrator key "
            f"with more permissions: {_lacking(principal, key.permissions)}"
        )


def _require_permissions(creator: Principal, permissions: Iterable[Permission]) -> None:
    if lacking := _lacking(creator, permissions):
        raise PermissionDenied(f"key '{creator.name}' lacks the permission {lacking}, and cannot grant it")


def _require_expiry(creator: Principal, expires_at_ms: int | None) -> None:
    if creator.expires_at_ms is not None and (expires_at_ms or 0) > creator.expires_at_ms:
        until = utc_text(creator.expires_at_ms)
        raise PermissionDenied(f"key '{creator.name}' expires at {until}, and cannot create a key that expires later")


def _require_rate(creator: Principal, rate: float | None, rate_max: float | None) -> None:
    if rate is not None and rate_max is not None and rate > rate_max:
        raise PermissionDenied(
            f"key '{creator.name}' is limited to {rate_max:g} requests per second, and cannot grant {rate:g}"
        )


def _lacking(principal: Principal, permissions: Iterable[Permission]) -> str:
    return ", ".join(repr(one.value) for one in permissions if not principal.allows(one))
