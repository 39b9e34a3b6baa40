"""The access that the `auth` function of a mounted dashboard gives to a user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from everwork.core import checks
from everwork.exceptions import InvalidInput
from everwork.service.access.principal import Permission, Principal

GRANTABLE = (Permission.JOBS_READ, Permission.JOBS, Permission.ADMIN, Permission.ALL)


@dataclass(frozen=True, slots=True)
class Access:
    """A dashboard user and their permissions; returned by the `auth` function of `Everwork.dashboard`.

    Args:
        name: Who the user is; recorded in the audit log.
        permissions: The permissions of API keys: `jobs:read` (default), `jobs` (also change jobs), `admin` (policies,
            pauses, breakers, workers, triggers, keys and the audit log), `*` (everything).
        tenants: The tenants that the user has access to. Default: all.
    """

    name: str
    permissions: Sequence[str] = (Permission.JOBS_READ.value,)
    tenants: Sequence[str] = ()

    def __post_init__(self) -> None:
        checks.name("name", self.name)
        for field, given in (("permissions", self.permissions), ("tenants", self.tenants)):
            if isinstance(given, str) or not isinstance(given, Sequence):
                raise InvalidInput(field, f"must be a list of strings, not {checks.shown(given)}")
        if not self.permissions:
            raise InvalidInput("permissions", "must not be empty; return None to deny access")
        allowed = [one.value for one in GRANTABLE]
        for one in self.permissions:
            if one not in allowed:
                raise InvalidInput("permissions", f"must be among {', '.join(allowed)}, not {checks.shown(one)}")
        for tenant in self.tenants:
            checks.name("tenants", tenant)

    @property
    def principal(self) -> Principal:
        """The caller that the service checks and records."""
        permissions = frozenset(map(Permission, self.permissions))
        return Principal(f"dashboard:{self.name}", self.name, permissions, tuple(self.tenants))
