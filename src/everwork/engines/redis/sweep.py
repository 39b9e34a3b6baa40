"""sweep: one bounded step of upkeep."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from everwork.core.limits import FAILED_KEEP_MS, STATISTICS_KEEP_HOURS, SWEEP_STEP_MAX
from everwork.core.states import State
from everwork.engines.redis.connection import Connection
from everwork.engines.redis.settle import LAPSED_VALUES, lapse
from everwork.engines.values import Swept

DONE_KEEP_MS: Final = 86_400_000
"""Differs from the other engines: finished jobs stand in memory here, so the done ones are kept for a day only."""
KEEP_MS: Final[Mapping[State, int]] = MappingProxyType(
    {State.COMPLETED: DONE_KEEP_MS, State.CANCELLED: DONE_KEEP_MS, State.FAILED: FAILED_KEEP_MS}
)
SWEEP_TURN_MS: Final = 5_000


async def sweep(link: Connection, holder: str) -> Swept:
    """Take lapsed leases away, then do the rest."""
    words = (holder, SWEEP_TURN_MS, DONE_KEEP_MS, FAILED_KEEP_MS, STATISTICS_KEEP_HOURS)
    found, *rest = await link.call("sweep", *words)
    if not found:
        return _swept(0, rest)
    lapsed = await lapse(link, found, rest[0])
    if len(found) == LAPSED_VALUES * SWEEP_STEP_MAX:
        return Swept(lapsed=lapsed, more=True)
    found, *rest = await link.call("sweep", *words)
    return Swept(lapsed=lapsed, more=True) if found else _swept(lapsed, rest)


def _swept(lapsed: int, rest: list[bytes]) -> Swept:
    expired, requeued, deleted = map(int, rest[:3])
    return Swept(lapsed, expired, requeued, deleted, more=bool(rest[3]))
