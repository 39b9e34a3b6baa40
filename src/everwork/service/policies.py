"""The retry policies that programs declare for their types, kept in the store so that every process decides alike."""

from __future__ import annotations

from collections.abc import Mapping

from everwork.core.retry import RetryPolicy
from everwork.engines.base import Engine
from everwork.engines.codec import encode_policy


async def declare_policies(engine: Engine, policies: Mapping[str, RetryPolicy | None]) -> None:
    """Keep these policies by type; only what has changed is written. None: whatever an administrator has set holds."""
    known = {info.type: info.policy for info in await engine.types()}
    for type, policy in policies.items():
        if policy is None:
            continue
        text = None if policy == RetryPolicy() else encode_policy(policy)
        if known.get(type) != text:
            await engine.set_policy(type, text)
