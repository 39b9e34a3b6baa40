"""sweep: one bounded step of maintenance."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from everwork.core.limits import FAILED_KEEP_MS, PRODUCERS_MAX, STATISTICS_KEEP_HOURS, SWEEP_STEP_MAX
from everwork.core.states import State
from everwork.engines.redis.connection import Connection
from everwork.engines.redis.settle import LAPSED_VALUES, lapse
from everwork.engines.values import Swept

DONE_KEEP_MS: Final = 86_400_000
"""Unlike in the other engines, finished jobs take up memory, so completed jobs are kept for only a day."""
KEEP_MS: Final[Mapping[State, int]] = MappingProxyType(
    {State.COMPLETED: DONE_KEEP_MS, State.CANCELLED: DONE_KEEP_MS, State.FAILED: FAILED_KEEP_MS}
)
SWEEP_TURN_MS: Final = 5_000


async def sweep(connection: Connection, holder: str) -> Swept:
    """End expired leases first, then do the rest of the maintenance."""
    args = (holder, SWEEP_TURN_MS, DONE_KEEP_MS, FAILED_KEEP_MS, STATISTICS_KEEP_HOURS, PRODUCERS_MAX)
    found, *rest = await connection.call("sweep", *args)
    if not found:
        return _swept(0, rest)
    [policies] = rest
    lapsed = await lapse(connection, found, policies)
    if len(found) == LAPSED_VALUES * SWEEP_STEP_MAX:
        return Swept(lapsed=lapsed, more=True)
    found, *rest = await connection.call("sweep", *args)
    return Swept(lapsed=lapsed, more=True) if found else _swept(lapsed, rest)


def _swept(lapsed: int, counts: list[bytes]) -> Swept:
    expired, requeued, deleted, more = counts
    return Swept(lapsed, int(expired), int(requeued), int(deleted), more=bool(more))
