"""Completing jobs inside transactions of the handlers' own."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from everwork.core.leasing import Judged
from everwork.core.outcome import Complete
from everwork.engines.base import Engine
from everwork.exceptions import InvalidInput

T = TypeVar("T")


class OwnStore:
    """An engine that is never opened: it only writes through connections that it is given."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def complete_in(self, tx: object, completion: Complete) -> Judged:
        """Complete an attempt inside its handler's transaction."""
        return (await self._engine.complete_in(tx, [completion]))[0]

    def complete_in_blocking(self, tx: object, completion: Complete) -> Judged:
        """The same in the calling thread."""
        return at_once(self._engine.complete_in(tx, [completion]), "await ctx.complete(..., tx=...)")[0]


def at_once(call: Coroutine[Any, Any, T], instead: str) -> T:
    """Run a call in the calling thread: a connection belongs to it, and a synchronous driver never suspends."""
    try:
        call.send(None)
    except StopIteration as done:
        answer: T = done.value
        return answer
    call.close()
    raise InvalidInput("tx", f"must belong to a synchronous driver here; {instead} instead")
