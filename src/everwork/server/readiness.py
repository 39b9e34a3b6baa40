"""Whether this server can do its work: one judgement for every door that is asked."""

from __future__ import annotations

import asyncio
import time
from typing import Final, NamedTuple

from everwork.exceptions import EverworkError
from everwork.service.service import JobService

ENGINE_SECONDS: Final = 3.0
"""How long the engine may take to answer."""
UPKEEP_SECONDS: Final = 30.0
"""How long ago upkeep may have been done last; it is due every second."""
HOLDS_SECONDS: Final = 0.5
"""How long a judgement holds: it is told to everybody, and must not be a way to keep the engine busy."""


class Unready(NamedTuple):
    """Why not, without names of hosts: the answer is for everybody."""

    code: str
    detail: str


class Readiness:
    """Asks the engine, and looks at the upkeep. It lives in the event loop of the service."""

    def __init__(self, service: JobService) -> None:
        self._service = service
        self._turn = asyncio.Lock()
        self._judged: tuple[float, Unready | None] | None = None

    async def judge(self) -> Unready | None:
        """None: ready. Callers at the same time share a judgement."""
        async with self._turn:
            if self._judged is None or time.monotonic() - self._judged[0] > HOLDS_SECONDS:
                self._judged = None
                found = await self._reach() or self._upkeep()
                self._judged = time.monotonic(), found
            return self._judged[1]

    async def _reach(self) -> Unready | None:
        try:
            async with asyncio.timeout(ENGINE_SECONDS):
                await self._service.health()
        except TimeoutError:
            return Unready("engine_unavailable", f"the engine did not answer within {ENGINE_SECONDS:g} s")
        except EverworkError as error:
            return Unready("engine_unavailable", f"the engine cannot be used: {type(error).__name__}")
        return None

    def _upkeep(self) -> Unready | None:
        age = self._service.upkeep_age_s
        if age is None or age <= UPKEEP_SECONDS:
            return None
        return Unready("upkeep_late", f"upkeep was last done {age:.0f} s ago; lapsed leases are not taken away")
