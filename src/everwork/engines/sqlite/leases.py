"""extend and check: what has become of leases."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from everwork.core.leasing import Lease, LeaseStatus
from everwork.engines.sqlite.statements import statements
from everwork.engines.sqlite.transaction import Transaction

EXTEND = statements("extend")
CHECK = statements("check")


def extend(tx: Transaction, leases: Sequence[Lease], lease_ms: int) -> list[LeaseStatus]:
    """Let live leases end `lease_ms` from now."""
    rows = tx.cursor.execute(EXTEND["extend"], (_document(leases), tx.now_ms + lease_ms)).fetchall()
    return _statuses(tx.cursor, leases, set(rows))


def check(cursor: sqlite3.Cursor, leases: Sequence[Lease]) -> list[LeaseStatus]:
    """Look which leases hold, and change nothing."""
    rows = cursor.execute(CHECK["held"], (_document(leases),)).fetchall()
    return _statuses(cursor, leases, set(rows))


def _statuses(cursor: sqlite3.Cursor, leases: Sequence[Lease], held: set[tuple[int, int]]) -> list[LeaseStatus]:
    gone = [lease for lease in leases if lease not in held]
    cancelled: set[tuple[int, int]] = set()
    if gone:
        cancelled = set(cursor.execute(CHECK["cancelled"], (_document(gone),)).fetchall())
    return [
        LeaseStatus.HELD if lease in held else LeaseStatus.CANCELLED if lease in cancelled else LeaseStatus.LOST
        for lease in leases
    ]


def _document(leases: Sequence[Lease]) -> str:
    return "{" + ",".join([f'"{lease.key}":{lease.attempt}' for lease in leases]) + "}"
