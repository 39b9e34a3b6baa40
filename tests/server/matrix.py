"""Who may call what: the same table for every door, whose rows come from the list of its calls."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from everwork.service.access.keys import KeyRing
from everwork.service.access.principal import Permission
from tests.app.waiting import until

TENANT: Final = "acme"
"""The owner of the jobs that calls name."""
OTHER_TENANT: Final = "umbrella"
SOON_MS: Final = 300
WRONG_KEY: Final = "ew_0123456789_never-made-by-anybody"


class Holder(Enum):
    """Who calls: the state of the key, or what it allows."""

    NONE = "without a key"
    WRONG = "with a wrong key"
    REVOKED = "with a revoked key"
    EXPIRED = "with an expired key"
    READ_ONLY = "with a key for reading"
    ADMIN = "with a key for administration"
    OTHER_TENANT = "with the key of another tenant"
    OWN_TENANT = "with the key of the tenant"
    JOBS = "with a key for jobs"
    ALL = "with a key for everything"


class Scope(Enum):
    """What a call is about."""

    NOTHING = "no job at all"
    OWN = "jobs of the caller's tenants only"
    JOB = "a job that the call names"
    TENANT = "a tenant that the call names"
    STORE = "the whole store: not for keys that are bound to tenants"


class Row(NamedTuple):
    """A call: what it needs and what it is about. Without permission it needs no key."""

    permission: Permission | None
    scope: Scope


class Expected(Enum):
    """How a call must end."""

    ANSWERED = "answered"
    UNAUTHENTICATED = "unauthenticated"
    DENIED = "denied"
    MISSING = "not found: a job of another tenant is none"


_GRANTED: Final = {
    Holder.READ_ONLY: frozenset([Permission.JOBS_READ]),
    Holder.ADMIN: frozenset([Permission.ADMIN]),
    Holder.OTHER_TENANT: frozenset([Permission.JOBS, Permission.JOBS_READ]),
    Holder.OWN_TENANT: frozenset([Permission.JOBS, Permission.JOBS_READ]),
    Holder.JOBS: frozenset([Permission.JOBS, Permission.JOBS_READ]),
    Holder.ALL: frozenset(Permission),
}


def expected(row: Row, holder: Holder) -> Expected:
    """What the rules say of one cell of the table."""
    if row.permission is None:
        return Expected.ANSWERED
    if holder not in _GRANTED:
        return Expected.UNAUTHENTICATED
    if row.permission not in _GRANTED[holder]:
        return Expected.DENIED
    if holder is Holder.OTHER_TENANT and row.scope is Scope.JOB:
        return Expected.MISSING
    is_foreign = holder is Holder.OTHER_TENANT and row.scope is Scope.TENANT
    is_bound = holder in (Holder.OTHER_TENANT, Holder.OWN_TENANT) and row.scope is Scope.STORE
    return Expected.DENIED if is_foreign or is_bound else Expected.ANSWERED


async def texts_of_keys(keys: KeyRing) -> dict[Holder, str | None]:
    """A key of each kind, once the one that must expire has expired."""
    revoked = await keys.create("revoked", ["*"])
    await keys.revoke(revoked.key.id)
    ends_ms = keys._clock() + SOON_MS
    expired = await keys.create("expired", ["*"], expires_at_ms=ends_ms)
    await until(lambda: keys._clock() > ends_ms)
    return {
        Holder.NONE: None,
        Holder.WRONG: WRONG_KEY,
        Holder.REVOKED: revoked.text,
        Holder.EXPIRED: expired.text,
        Holder.READ_ONLY: (await keys.create("reads", ["jobs:read"])).text,
        Holder.ADMIN: (await keys.create("admin", ["admin"])).text,
        Holder.OTHER_TENANT: (await keys.create("other", ["jobs"], tenants=[OTHER_TENANT])).text,
        Holder.OWN_TENANT: (await keys.create("own", ["jobs"], tenants=[TENANT])).text,
        Holder.JOBS: (await keys.create("jobs", ["jobs"])).text,
        Holder.ALL: (await keys.create("all", ["*"])).text,
    }
