"""extend and check: what has become of leases."""

from __future__ import annotations

from collections.abc import Sequence

from everwork.core.leasing import Lease, LeaseStatus
from everwork.engines.postgres.parts import Parts


async def extend(parts: Parts, leases: Sequence[Lease], lease_ms: int) -> list[LeaseStatus]:
    """Let live leases end `lease_ms` from now."""
    sql = parts.sql("extend")
    ordered = sorted(set(leases))
    held = await _extended(parts, sql["extend"], ordered, lease_ms)
    late = [lease for lease in ordered if lease not in held]
    if late:
        held |= await _extended(parts, sql["extend_locked"], late, lease_ms)
    return await _statuses(parts, leases, held)


async def _extended(parts: Parts, sql: str, leases: Sequence[Lease], lease_ms: int) -> set[tuple[int, int]]:
    keys, attempts = [lease.key for lease in leases], [lease.attempt for lease in leases]
    return {tuple(row) for row in await parts.connections.rows(sql, keys, attempts, lease_ms, parts.now_ms())}


async def check(parts: Parts, leases: Sequence[Lease]) -> list[LeaseStatus]:
    """Look which leases hold, and change nothing."""
    rows = await parts.connections.look(parts.sql("check")["held"], sorted({lease.key for lease in leases}))
    return await _statuses(parts, leases, {tuple(row) for row in rows})


async def _statuses(parts: Parts, leases: Sequence[Lease], held: set[tuple[int, int]]) -> list[LeaseStatus]:
    gone = sorted({lease.key for lease in leases if lease not in held})
    cancelled: set[tuple[int, int]] = set()
    if gone:
        rows = await parts.connections.look(parts.sql("check")["cancelled"], gone)
        cancelled = {tuple(row) for row in rows}
    return [
        LeaseStatus.HELD if lease in held else LeaseStatus.CANCELLED if lease in cancelled else LeaseStatus.LOST
        for lease in leases
    ]
