"""Jumps of the host's clock.

Leases, retries and breakers are stored as instants of the host's wall clock, which all processes on the file share. If
it is set, each of these instants would come too early or too late: an hour back, and a dead worker's lease would last
an hour longer; an hour forward, and every lease would expire. The kernel also has a clock that only goes forward. The
offset between the two is stored with the instants; the first transaction that finds a different offset moves them.

Differs from postgres and redis: their servers have no second clock that a statement could read.
"""

from __future__ import annotations

from typing import Final

from everwork.aio.clocks import JUMP_MS, boot_clock_ms, boot_id, host_clock_ms
from everwork.engines.sqlite.shared import SQL as SHARED
from everwork.engines.sqlite.statements import statements
from everwork.engines.sqlite.transaction import Transaction
from everwork.logs import get_logger

log = get_logger("everwork.sqlite")

DRIFT_MS: Final = 500
"""A change of this size or more is stored, so that drift never adds up to a jump."""
STEADY_MS: Final = 50
MEASURES_MAX: Final = 20
SQL = statements("clock")


class ClockGuard:
    """Detects jumps of the host's clock, for one writer."""

    def __init__(self) -> None:
        self._boot_id = boot_id()

    def check(self, tx: Transaction) -> None:
        """Move the stored instants if the clock has jumped; runs at the start of a transaction, about once a second."""
        offset_ms, stored_ms = _offset_ms(), self._stored_ms(tx)
        if stored_ms is not None and abs(offset_ms - stored_ms) >= JUMP_MS:
            _move(tx, offset_ms - stored_ms)
        if stored_ms is None or abs(offset_ms - stored_ms) >= DRIFT_MS:
            tx.cursor.execute(SQL["store"], (f"{self._boot_id} {offset_ms}",))

    def _stored_ms(self, tx: Transaction) -> int | None:
        """The offset that the stored instants belong to; None if it was stored before the last boot."""
        row = tx.cursor.execute(SQL["stored"]).fetchone()
        boot, _, offset = str(row[0]).partition(" ") if row else ("", "", "")
        is_number = offset.removeprefix("-").isdecimal()
        return int(offset) if boot and boot == self._boot_id and is_number else None


def _offset_ms() -> int:
    """The offset between the clocks, both read without a pause in between."""
    before_ms, now_ms = boot_clock_ms(), host_clock_ms()
    for _ in range(MEASURES_MAX):
        if boot_clock_ms() - before_ms <= STEADY_MS:
            break
        before_ms, now_ms = boot_clock_ms(), host_clock_ms()
    return now_ms - before_ms


def _move(tx: Transaction, by_ms: int) -> None:
    """Move the ends of leases, delays and other periods. Times that users have set, such as run_at, do not change."""
    log.warning("the clock jumped; leases, retry delays and breakers were adjusted", seconds=by_ms / 1000)
    for name in ("move_leases", "move_breakers", "move_rates", "move_entries"):
        tx.cursor.execute(SQL[name], (by_ms,))
    retries = tx.cursor.execute(SQL["move_retries"], (by_ms,)).fetchall()
    tx.cursor.executemany(SHARED["revise"], [retry[:3] for retry in retries])
    tx.cursor.executemany(SQL["move_history"], [(run_at_ms, key, attempt) for key, run_at_ms, _, attempt in retries])
