"""Keys, types, groups, policies and the audit log as JSON objects: one shape for the command line and REST."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from everwork.core.instants import utc_text
from everwork.core.states import State
from everwork.engines.codec import decode_policy
from everwork.service.administration import GroupView, PolicyView, TypeView
from everwork.service.api_key import ApiKey
from everwork.service.audit import AuditEntry


def key_report(key: ApiKey, now_ms: int) -> dict[str, Any]:
    """An API key, without anything secret."""
    return {
        "id": key.id,
        "name": key.name,
        "state": key.state(now_ms).value,
        "permissions": [permission.value for permission in key.permissions],
        "tenants": list(key.tenants),
        "created_at": utc_text(key.created_at_ms),
        "expires_at": _time(key.expires_at_ms),
        "revoked_at": _time(key.revoked_at_ms),
        "rate_per_second": key.rate_per_second,
    }


def type_report(view: TypeView) -> dict[str, Any]:
    """A type with its counts."""
    info = view.info
    return {
        "type": info.type,
        "paused": info.paused,
        "policy": None if info.policy is None else asdict(decode_policy(info.policy)),
        "groups": list(info.groups),
        "last_asked": _time(info.last_asked_ms),
        "breaker_open_until": _time(info.breaker_open_until_ms),
        "jobs": _counts(view.counts),
    }


def policy_report(type: str, view: PolicyView) -> dict[str, Any]:
    """The retry policy in force for a type; `default` says that the type has none of its own."""
    return {"type": type, "default": not view.is_own, "policy": asdict(view.policy)}


def group_report(view: GroupView) -> dict[str, Any]:
    """A group with its counts."""
    return {
        "type": view.type,
        "group": view.group,
        "last_asked": _time(view.last_asked_ms),
        "jobs": _counts(view.counts),
    }


def audit_report(entry: AuditEntry) -> dict[str, Any]:
    """One entry of the audit log."""
    return {
        "name": entry.name,
        "at": utc_text(entry.at_ms),
        "key_id": entry.key_id,
        "who": entry.who,
        "action": entry.action,
        "target": entry.target,
        "origin": entry.origin,
        "detail": dict(entry.detail),
    }


def _counts(counts: Mapping[State, int]) -> dict[str, int]:
    return {state.label: counts.get(state, 0) for state in State}


def _time(instant_ms: int | None) -> str | None:
    return None if instant_ms is None else utc_text(instant_ms)
