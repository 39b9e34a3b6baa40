"""Readiness of this server: one check for all APIs."""

from __future__ import annotations

import asyncio
import time
from typing import Final, NamedTuple

from everwork.exceptions import EngineError, EverworkError
from everwork.service.service import JobService

ENGINE_SECONDS: Final = 3.0
"""How long the engine may take to answer."""
UPKEEP_SECONDS: Final = 30.0
"""The maximum age of the last maintenance run, which is due every second."""
REUSE_SECONDS: Final = 0.5
"""How long a result is reused: the endpoint is public and must not keep the engine busy."""


class Unready(NamedTuple):
    """Why the server is not ready, without host names, because the answer is public."""

    code: str
    detail: str


class Readiness:
    """Checks in the event loop of the service that the engine answers and accepts writes, and that maintenance runs."""

    def __init__(self, service: JobService) -> None:
        self._service = service
        self._lock = asyncio.Lock()
        self._checked: tuple[float, Unready | None] | None = None

    async def check(self) -> Unready | None:
        """Return why the server is not ready, or None; concurrent callers share a check."""
        async with self._lock:
            if self._checked is None or time.monotonic() - self._checked[0] > REUSE_SECONDS:
                self._checked = None
                found = await self._reach() or self._upkeep()
                self._checked = time.monotonic(), found
            return self._checked[1]

    async def _reach(self) -> Unready | None:
        try:
            async with asyncio.timeout(ENGINE_SECONDS):
                await self._service.health()
                if self._service.outbox is not None and self._service.outbox.is_refused:
                    return Unready("engine_unavailable", f"the engine answers but accepts no jobs{self._kept}")
        except TimeoutError:
            return Unready("engine_unavailable", f"the engine did not answer within {ENGINE_SECONDS:g} s{self._kept}")
        except EverworkError as error:
            return Unready("engine_unavailable", f"the engine cannot be used: {type(error).__name__}{self._kept}")
        return await self._write()

    async def _write(self) -> Unready | None:
        try:
            await self._service.require_writable()
        except EngineError as error:
            return Unready("engine_unavailable", f"the engine accepts no writes: {type(error).__name__}{self._kept}")
        return None

    @property
    def _kept(self) -> str:
        return "" if self._service.outbox is None else "; new jobs go to the spool"

    def _upkeep(self) -> Unready | None:
        age = self._service.upkeep_age_s
        if age is None or age <= UPKEEP_SECONDS:
            return None
        return Unready("upkeep_late", f"maintenance last ran {age:.0f} s ago; expired leases are not cleaned up")
