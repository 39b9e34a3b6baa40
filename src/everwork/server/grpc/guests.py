"""Limits for callers without an API key: how many calls they may keep open, and how many requests they may send."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc

from everwork.core.limits import GUEST_BYTES_MAX, WATCHES_EACH_MAX, WATCHES_MAX
from everwork.exceptions import EverworkError, InvalidInput
from everwork.logs import Occasional
from everwork.server.errors import wire
from everwork.server.grpc.gateway import Context, abort, forget_frames, parsed, peer_address
from everwork.server.grpc.intake import EOF, Receiving
from everwork.service.access.budgets import decrement

GUEST: Final = ""
"""The caller id of all requests without a key; the ids of keys are never empty."""


class Guests:
    """Counts the calls that stay open, in total and per address; receives their requests as if they shared one key."""

    def __init__(self, receiving: Receiving, notices: Occasional) -> None:
        self._receiving = receiving
        self._notices = notices
        self._of: Counter[str] = Counter()
        self.count = 0

    def can_send(self) -> bool:
        """Whether a request would be received without waiting."""
        return self._receiving.is_free(GUEST)

    async def request(self, request_type: Any, context: Context) -> Any:
        """The next request of a call, which is small; None if there is none."""
        raw = b""
        try:
            raw = await self._receiving.message(GUEST, context)
            if raw is EOF:
                return None
            if len(raw) > GUEST_BYTES_MAX:
                raise InvalidInput("request", f"must have at most {GUEST_BYTES_MAX:,} bytes, not {len(raw):,}")
            return parsed(request_type, raw)
        except EverworkError as error:
            raw = b""  # See `forget_frames`.
            forget_frames(error)
            return await abort(context, wire(error).grpc, str(error))

    @asynccontextmanager
    async def staying(self, context: Context) -> AsyncIterator[None]:
        """Count a call that stays open, or refuse it if a limit has been reached."""
        address = peer_address(context.peer())
        if self.count >= WATCHES_MAX or self._of[address] >= WATCHES_EACH_MAX:
            self._notices.warning("gRPC call refused: too many calls without an API key are open", peer=address)
            reason = "too many calls without an API key are open; retry later"
            await abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        self._of[address] += 1
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1
            decrement(self._of, address)
