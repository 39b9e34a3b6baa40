"""Lanes as they are stored: '' for the default tenant without limit key, else the tenant and the limit key."""

from __future__ import annotations

from everwork.core.limits import DEFAULT_TENANT

LANE_SEPARATOR = "\x1f"


def lane_of(tenant: str, limit_key: str | None) -> str:
    """The lane of a tenant and limit key, as it is stored."""
    if limit_key is None and tenant == DEFAULT_TENANT:
        return ""
    return f"{tenant}{LANE_SEPARATOR}{limit_key or ''}"


def tenant_of(lane: str) -> str:
    """The tenant of a stored lane."""
    return lane.partition(LANE_SEPARATOR)[0] if lane else DEFAULT_TENANT


def limit_key_of(lane: str) -> str | None:
    """The limit key of a stored lane."""
    return lane.partition(LANE_SEPARATOR)[2] or None if lane else None
