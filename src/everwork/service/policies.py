"""The policies that programs and files declare for types, kept in the store so that every process decides alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everwork.core.breaker import CircuitBreaker
from everwork.core.policy import DEFAULT_TYPE_POLICY, RETRY_FIELDS, TypePolicy, fields_of, said_of
from everwork.core.retry import RetryPolicy
from everwork.engines.base import Engine
from everwork.engines.codec import encode_said, said_in

Said = Mapping[str, Any]
"""What somebody says of a policy, field by field. None: as usual, whatever was said before."""


async def declare_policies(engine: Engine, policies: Mapping[str, Said]) -> None:
    """Put these fields over what the store says of each type; what is not mentioned stays."""
    stored = {info.type: info.policy for info in await engine.types()} if any(policies.values()) else {}
    for type, said in policies.items():
        before = said_of_stored(stored.get(type))
        after = put_over(before, said)
        if after != before:
            await engine.set_policy(type, encode_said(after) if after else None)


def put_over(before: Said, said: Said) -> dict[str, Any]:
    """What is said of a policy after somebody has said more."""
    return {name: value for name, value in {**before, **said}.items() if value is not None}


def said_of_stored(text: str | None) -> dict[str, Any]:
    """What a stored policy says; nothing, if it cannot be read."""
    try:
        return said_in(text)
    except (ValueError, TypeError):
        return {}


def said_in_code(
    retry: RetryPolicy | None, breaker: CircuitBreaker | None, policy: TypePolicy | None
) -> dict[str, Any]:
    """What code says of a type: its policy where that differs from the usual one; `retry` and `breaker` beat it."""
    said = {} if policy is None else said_of(policy)
    usual = fields_of(DEFAULT_TYPE_POLICY)
    if retry is not None:
        fields = fields_of(TypePolicy(retry=retry))
        said |= {name: None if fields[name] == usual[name] else fields[name] for name in RETRY_FIELDS}
    if breaker is not None:
        said |= {"breaker_failures": breaker.failures, "breaker_seconds": breaker.seconds}
    return said
