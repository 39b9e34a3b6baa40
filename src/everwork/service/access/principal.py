"""The caller and what its key allows: permissions, and the tenants it is restricted to (G13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from everwork.core import checks
from everwork.core.limits import DEFAULT_TENANT
from everwork.exceptions import InvalidInput, PermissionDenied


class Permission(Enum):
    """The permissions of keys."""

    ALL = "*"
    JOBS = "jobs"
    JOBS_READ = "jobs:read"
    ADMIN = "admin"
    TICK = "tick"


_GRANTED_BY: Final = {
    Permission.ALL: frozenset([Permission.ALL]),
    Permission.JOBS: frozenset([Permission.ALL, Permission.JOBS]),
    Permission.JOBS_READ: frozenset([Permission.ALL, Permission.JOBS, Permission.JOBS_READ]),
    Permission.ADMIN: frozenset([Permission.ALL, Permission.ADMIN]),
    Permission.TICK: frozenset([Permission.ALL, Permission.ADMIN, Permission.TICK]),
}


def sufficient_for(*permissions: Permission) -> frozenset[Permission]:
    """Every permission that grants at least one of these."""
    return frozenset().union(*(_GRANTED_BY[one] for one in permissions))


Party = frozenset[str] | str
"""Keys that are restricted to the same tenants are one party; a key that is not restricted is a party of its own."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The holder of a key. An empty `tenants` means all tenants."""

    id: str
    name: str
    permissions: frozenset[Permission]
    tenants: tuple[str, ...] = ()
    expires_at_ms: int | None = None
    rate_per_second: float | None = None
    party: Party = field(init=False, repr=False, compare=False)
    """The owner of the shared budget: the tenants that the key is restricted to, or the key itself."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "party", frozenset(self.tenants) or self.id)

    def allows(self, permission: Permission) -> bool:
        """Whether the key has a permission, directly or through one that includes it."""
        return not self.permissions.isdisjoint(_GRANTED_BY[permission])

    def require(self, *permissions: Permission) -> None:
        """Refuse a caller that has none of these permissions."""
        self.require_any(sufficient_for(*permissions))

    def require_any(self, sufficient: frozenset[Permission]) -> None:
        """Like `require`, with the result of `sufficient_for`, computed in advance."""
        if self.permissions.isdisjoint(sufficient):
            needed = sorted(repr(one.value) for one in sufficient)
            raise PermissionDenied(f"key '{self.name}' lacks the permission {' or '.join(needed)}")

    def require_tenant(self, tenant: str) -> None:
        """Refuse a caller whose key is restricted to other tenants."""
        if self.tenants and tenant not in self.tenants:
            raise PermissionDenied(f"key '{self.name}' is not allowed to act for tenant {checks.shown(tenant)}")

    def require_unbound(self) -> None:
        """Refuse keys that are restricted to tenants: the call affects all tenants."""
        if self.tenants:
            raise PermissionDenied(
                f"key '{self.name}' is restricted to certain tenants, but this call affects all tenants"
            )

    def tenant_for_create(self, requested: str | None) -> str:
        """The tenant of a new job: the requested one, or the default, or the key's only tenant."""
        if requested:
            self.require_tenant(requested)
            return requested
        if not self.tenants or DEFAULT_TENANT in self.tenants:
            return DEFAULT_TENANT
        if len(self.tenants) == 1:
            return self.tenants[0]
        raise InvalidInput("tenant", f"is required: key '{self.name}' has {len(self.tenants)} tenants")

    def tenants_for(self, requested: Sequence[str] = ()) -> tuple[str, ...]:
        """The tenants that a search or an activation is restricted to; empty means all."""
        for tenant in requested:
            self.require_tenant(tenant)
        return tuple(requested) or self.tenants


ANYBODY: Final = Principal("anybody", "anybody", frozenset([Permission.ALL]))
"""The principal of callers on a server without authentication, and of programs that use the engine directly."""
