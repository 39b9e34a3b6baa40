"""Limits on job types that callers create: how many a store may have, and how many an API key may add in an hour.

Types that are known cost a look-up in a set. The limits apply to each server, by what it has read from the store, so
several servers may exceed the limit of the store for a moment.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from everwork.core.limits import NEW_TYPES_MAX, TYPE_KEEP_MS, TYPES_MAX
from everwork.engines.contract import Engine
from everwork.exceptions import EngineError, TooManyRequests
from everwork.service.new_names import NewNames
from everwork.service.policies import NOTHING_DECLARED, Declared

FULL_RETRY_MS: Final = 60_000
READ_SECONDS: Final = 60.0
"""How old the list of known types may be when a new one is requested."""
SILENCE_SECONDS: Final = 2.0
"""How long to wait for the store."""
READ_AGAIN_SECONDS: Final = 5.0
"""How old it may be when a type is refused: some may have been deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeRules:
    """What settings say about types: their number, how long unused ones are kept, and which policies they declare."""

    types_max: int = TYPES_MAX
    new_types_max: int = NEW_TYPES_MAX
    keep_ms: int = TYPE_KEEP_MS
    declared: Declared = NOTHING_DECLARED


DEFAULT_RULES: Final = TypeRules()


class TypeLimits:
    """Admits new types. Bound to one event loop."""

    def __init__(
        self, engine: Engine, rules: TypeRules = DEFAULT_RULES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._types_max = rules.types_max
        self._new_types_max = rules.new_types_max
        self._clock = clock
        self._new = NewNames(rules.new_types_max, clock)
        self._reading = asyncio.Lock()
        self._read_at = float("-inf")
        self.known: set[str] = set()
        """The types that need no admission."""

    async def admit(self, caller: str, types: Set[str]) -> None:
        """Admit types that are not known, all or none. `caller` is the id of the API key."""
        await self._read(READ_SECONDS)
        if len(self.known) + len(types - self.known) > self._types_max:
            await self._read(READ_AGAIN_SECONDS)
        new = types - self.known
        if not new:
            return
        self._require_room(new)
        self._add(caller, new)
        self.known |= new

    async def _read(self, seconds_max: float) -> None:
        """Read the types of the store; if it is unavailable, jobs may still be accepted into a spool."""
        async with self._reading:
            if self._clock() - self._read_at <= seconds_max:
                return
            self._read_at = self._clock()
            with suppress(EngineError, TimeoutError):
                async with asyncio.timeout(SILENCE_SECONDS):
                    self.known = {info.type for info in await self._engine.types()}

    def _require_room(self, new: Set[str]) -> None:
        if len(self.known) + len(new) > self._types_max:
            raise TooManyRequests(
                f"type: {min(new)!r} is new, and the store has reached its limit of {self._types_max:,} job types; "
                "delete unused types (everwork types delete) or raise max_types",
                FULL_RETRY_MS,
            )

    def _add(self, caller: str, new: Set[str]) -> None:
        """Count new types of a key."""
        refusal = self._new.add(caller, len(new))
        if refusal is not None:
            raise TooManyRequests(
                f"type: {min(new)!r} is new, and this API key has created {refusal.added:,} job types in the last "
                f"hour; the limit is {self._new_types_max:,} (max_new_types)",
                refusal.retry_after_ms,
            )
