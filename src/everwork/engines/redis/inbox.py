"""inbox (stub)."""
from __future__ import annotations
from collections.abc import Sequence
from everwork.engines.redis.link import Link
from everwork.engines.values import Demand

class Inbox:
    """Stub."""
    def __init__(self, link: Link) -> None:
        self._link = link
    def want(self, demands: Sequence[Demand]) -> None:
        """Stub."""
    async def close(self) -> None:
        """Stub."""
