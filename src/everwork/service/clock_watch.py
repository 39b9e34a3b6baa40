"""Notices when the engine's clock jumps: leases would end early or late, so sweeps pause and the jump is reported."""

from __future__ import annotations

import time
from typing import Final

import orjson

from everwork.core.limits import HOUR_MS, LEASE_MS_DEFAULT
from everwork.engines.contract import Engine
from everwork.logs import get_logger

log = get_logger("everwork")

JUMP_MS: Final = 2_000
"""A clock that is adjusted gradually moves by far less between two checks, which are a second apart."""
ANSWER_MS_MAX: Final = 1_000
"""If the engine takes longer to tell its time, the comparison says nothing."""
JUMP_KIND: Final = "clock-jump"
KEEP_MS: Final = 24 * HOUR_MS
"""How long a jump is reported by `everwork doctor`."""


def steady_ms() -> float:
    """This host's time since its start, which no one can set; it goes on while the host is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) * 1000


class ClockWatch:
    """Compares the engine's clock with one that only goes forward, before each sweep of this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._offset_ms: float | None = None
        self._held_until_ms = 0.0
        self.jumps = 0
        """How often the engine's clock has jumped, as far as this process has seen."""

    async def may_sweep(self) -> bool:
        """Whether leases can be judged by the engine's clock now.

        After a jump forward, every lease looks expired. Sweeps pause until live workers have extended theirs.
        """
        if not self._engine.has_real_clock:
            return True
        began_ms = steady_ms()
        engine_ms = await self._engine.now()
        ended_ms = steady_ms()
        if ended_ms - began_ms <= ANSWER_MS_MAX:
            await self._compare(engine_ms - (began_ms + ended_ms) / 2, engine_ms)
        return ended_ms >= self._held_until_ms

    async def _compare(self, offset_ms: float, engine_ms: int) -> None:
        known_ms, self._offset_ms = self._offset_ms, offset_ms
        by_ms = 0 if known_ms is None else round(offset_ms - known_ms)
        if abs(by_ms) < JUMP_MS:
            return
        self.jumps += 1
        if by_ms > 0:
            self._held_until_ms = steady_ms() + LEASE_MS_DEFAULT
        log.error("the engine's clock jumped; check its time synchronization", seconds=f"{by_ms / 1000:+.1f}")
        # Every process sees the same jump: they write the same entry.
        body = orjson.dumps({"by_ms": by_ms, "at_ms": engine_ms}).decode()
        await self._engine.register(JUMP_KIND, f"{round(by_ms / 1000):+d}", body, KEEP_MS)


def jump_at_ms(body: str) -> int | None:
    """The engine's time after a jump, from its registry entry; None if the entry cannot be read."""
    try:
        return int(orjson.loads(body)["at_ms"])
    except (ValueError, TypeError, KeyError):
        return None
