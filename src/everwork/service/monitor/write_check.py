"""Whether the store accepts writes: writes a few bytes, at most every few seconds for all callers together."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from everwork.engines.contract import Engine
from everwork.exceptions import EngineBusy, EngineError
from everwork.logs import Outage, get_logger

log = get_logger("everwork")

REUSE_SECONDS: Final = 3.0
"""How long the result of a successful write is reused; checks must not keep the store busy."""
RETRY_SECONDS: Final = 0.5
"""How long the result of a failed write is reused; a recovered store is noticed quickly."""
ANSWER_SECONDS: Final = 3.0
"""How long the store may take to write."""
TURN_MS: Final = 60_000
TURN: Final = "write-check"


class WriteCheck:
    """Keeps writing the same registry entry. Reading is not enough: a full disk or a replica can still be read."""

    def __init__(self, engine: Engine, holder: str) -> None:
        self._engine = engine
        self._holder = holder
        self._lock = asyncio.Lock()
        self._until = 0.0
        self._error: EngineError | None = None
        self._outage = Outage(log, "the store accepts no writes", "the store accepts writes again")

    async def require(self) -> None:
        """Raise `EngineError` if the store accepts no writes; concurrent callers share a write."""
        async with self._lock:
            if time.monotonic() >= self._until:
                self._error = await self._write()
                self._until = time.monotonic() + (REUSE_SECONDS if self._error is None else RETRY_SECONDS)
        if self._error is not None:
            raise self._error

    async def _write(self) -> EngineError | None:
        error: EngineError | None = None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                # Each process has its own entry, so that processes do not wait for each other.
                await self._engine.take_turn(f"{TURN} {self._holder}", self._holder, TURN_MS)
        except TimeoutError:
            error = EngineBusy(f"a write took longer than {ANSWER_SECONDS:g} s")
        except EngineError as found:
            error = found
        if error is None:
            self._outage.over()
        else:
            self._outage.report(error)
        return error
