"""How long finished jobs and unused types are kept. Live jobs are never deleted."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from everwork.core.breaker import BreakerState
from everwork.core.limits import COMPLETED_KEEP_MS, FAILED_KEEP_MS
from everwork.core.queries import TypeInfo
from everwork.core.states import State

KEEP_MS: Final[Mapping[State, int]] = MappingProxyType(
    {State.COMPLETED: COMPLETED_KEEP_MS, State.CANCELLED: COMPLETED_KEEP_MS, State.FAILED: FAILED_KEEP_MS}
)


def is_unused(info: TypeInfo, now_ms: int, keep_ms: int) -> bool:
    """Whether a type may be forgotten, as far as its own entry shows: nothing is set up for it, apart from a policy,
    and no worker has polled for it lately. Jobs, statistics and schedules are looked up elsewhere.
    """
    is_set_up = info.paused or info.groups or info.breaker is not BreakerState.CLOSED
    return not is_set_up and (info.last_asked_ms is None or info.last_asked_ms <= now_ms - keep_ms)
