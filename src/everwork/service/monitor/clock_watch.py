"""Detects jumps of the engine's clock, which would make leases end early or late.

After a jump forward, sweeps pause; after a jump back, the leases of dead workers are ended. A local store uses this
host's clocks and moves its leases itself, so it needs neither. Every jump is reported.
"""

from __future__ import annotations

from typing import Final

import orjson

from everwork.aio.clocks import JUMP_MS, boot_clock_ms
from everwork.core.limits import HOUR_MS, LEASE_MS_DEFAULT
from everwork.engines.contract import Engine
from everwork.logs import get_logger
from everwork.service.monitor.overlong_leases import OverlongLeases, SetBack

log = get_logger("everwork")

ANSWER_MS_MAX: Final = 1_000
"""If the engine takes longer to return its time, the clocks cannot be compared."""
JUMP_KIND: Final = "clock-jump"
KEEP_MS: Final = 24 * HOUR_MS
"""How long a jump is reported by `everwork doctor`."""


class ClockWatch:
    """Compares the engine's clock with the boot clock, before each sweep of this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._overlong = OverlongLeases(engine)
        self._offset_ms: float | None = None
        self._looked_ms = 0.0
        self._held_until_ms = 0.0
        self.jumps = 0
        """How many jumps of the engine's clock this process has detected."""

    async def may_sweep(self) -> bool:
        """Whether the engine's clock shows which leases have expired.

        After a jump forward, every lease in a remote store seems to have expired. Sweeps pause until running workers
        have extended theirs.
        """
        if not self._engine.has_real_clock:
            return True
        began_ms = boot_clock_ms()
        engine_ms = await self._engine.now()
        ended_ms = boot_clock_ms()
        if ended_ms - began_ms <= ANSWER_MS_MAX:
            await self._compare(engine_ms, (began_ms + ended_ms) / 2)
        return ended_ms >= self._held_until_ms

    async def end_overlong(self) -> bool:
        """After a jump back, end the leases of dead workers on time; returns whether there is more to do."""
        return await self._overlong.step(boot_clock_ms())

    async def _compare(self, engine_ms: int, now_ms: float) -> None:
        known_ms, self._offset_ms = self._offset_ms, engine_ms - now_ms
        looked_ms, self._looked_ms = self._looked_ms, now_ms
        by_ms = 0 if known_ms is None else round(self._offset_ms - known_ms)
        if abs(by_ms) < JUMP_MS:
            return
        self.jumps += 1
        if self._engine.is_remote and by_ms > 0:
            self._held_until_ms = boot_clock_ms() + LEASE_MS_DEFAULT
        elif self._engine.is_remote:
            self._overlong.add(SetBack(-by_ms, engine_ms, now_ms, now_ms - looked_ms))
        log.error("the engine's clock jumped; check its time synchronization", seconds=f"{by_ms / 1000:+.1f}")
        # Every process detects the same jump, so they all write the same entry.
        body = orjson.dumps({"by_ms": by_ms, "at_ms": engine_ms}).decode()
        await self._engine.register(JUMP_KIND, f"{round(by_ms / 1000):+d}", body, KEEP_MS)


def jump_at_ms(body: str) -> int | None:
    """The engine's time after a jump, from its registry entry; None if the entry cannot be read."""
    try:
        return int(orjson.loads(body)["at_ms"])
    except (ValueError, TypeError, KeyError):
        return None
