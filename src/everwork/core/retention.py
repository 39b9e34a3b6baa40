"""How long finished jobs are kept. Live jobs are never deleted."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from everwork.core.limits import COMPLETED_KEEP_MS, FAILED_KEEP_MS
from everwork.core.states import State

KEEP_MS: Final[Mapping[State, int]] = MappingProxyType(
    {State.COMPLETED: COMPLETED_KEEP_MS, State.CANCELLED: COMPLETED_KEEP_MS, State.FAILED: FAILED_KEEP_MS}
)
