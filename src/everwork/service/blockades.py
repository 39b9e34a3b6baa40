"""Why a whole type is not given out: asked at the end of an empty poll, so it may be a second old."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from everwork.core.instants import utc_text
from everwork.core.queries import TypeInfo
from everwork.engines.base import Engine

FRESH_SECONDS: Final = 1.0


class Blockades:
    """The paused types and the breakers that let nothing through, read at most once a second whoever asks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reading = asyncio.Lock()
        self._types: Mapping[str, TypeInfo] = {}
        self._read_at = float("-inf")

    async def of(self, type: str) -> str | None:
        """What keeps a type from being given out, and until when; None if nothing does."""
        async with self._reading:
            now = asyncio.get_running_loop().time()
            if now - self._read_at > FRESH_SECONDS:
                self._types = {info.type: info for info in await self._engine.types()}
                self._read_at = now
        info = self._types.get(type)
        return None if info is None else _told(info)


def _told(info: TypeInfo) -> str | None:
    if info.paused:
        return f"type '{info.type}' is paused until somebody resumes it"
    if info.breaker_open_until_ms is not None:
        until = utc_text(info.breaker_open_until_ms)
        return f"type '{info.type}' is stopped by its circuit breaker until {until}"
    if info.breaker_probe_key is not None:
        probe = f"its probe, job '{info.breaker_probe_key}', to succeed"
        return f"type '{info.type}' is stopped by its circuit breaker, which waits for {probe}"
    return None
