"""Job types that callers create: how many there may be, and when unused ones are deleted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from everwork.aio.clocks import Seconds
from everwork.core.limits import HOUR_MS, NEW_TYPES_MAX, TYPE_KEEP_MS, TYPES_MAX
from everwork.core.retention import is_unused
from everwork.engines.contract import Engine
from everwork.exceptions import EngineError, TooManyRequests
from everwork.logs import get_logger
from everwork.service.fleet.entries import TriggerEntry, WorkerEntry, read_entries
from everwork.service.fleet.fleet import TRIGGER, WORKER
from everwork.service.new_names import NewNames
from everwork.service.policies import NOTHING_DECLARED, Declared, stored_fields

log = get_logger("everwork")

FULL_RETRY_MS: Final = 60_000
READ_SECONDS: Final = 60.0
"""How old the list of known types may be when a new type is requested."""
SILENCE_SECONDS: Final = 2.0
"""How long to wait for the store."""
READ_AGAIN_SECONDS: Final = 5.0
"""How old the list may be when a type is refused: other types may have been deleted."""
TURN: Final = "types"
KEEP_KIND: Final = "types-keep"
"""Registry entries of the processes that keep unused types longer than usual: how long, in ms."""
KEEP_ENTRY_MS: Final = 3 * HOUR_MS
FORGOTTEN_PER_STEP: Final = 200
"""How many types one call to the engine deletes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeRules:
    """The settings for types: how many there may be, how long unused ones are kept, and declared policies."""

    types_max: int = TYPES_MAX
    new_types_max: int = NEW_TYPES_MAX
    keep_ms: int = TYPE_KEEP_MS
    declared: Declared = NOTHING_DECLARED


DEFAULT_RULES: Final = TypeRules()


class TypeLimits:
    """Admits new types, up to a limit for the store and a limit per hour for each API key. Bound to one event loop.

    A known type costs only a lookup in a set. Each server applies the limits to its own copy of the list of types, so
    several servers together can briefly exceed the limit of the store.
    """

    def __init__(self, engine: Engine, rules: TypeRules = DEFAULT_RULES, clock: Seconds = time.monotonic) -> None:
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
        """Admit types that may be new, all or none. `caller` is the id of the API key."""
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
            with suppress(EngineError, TimeoutError):
                async with asyncio.timeout(SILENCE_SECONDS):
                    self.known = {info.type for info in await self._engine.types()}
            self._read_at = self._clock()  # Not if the caller has disconnected: then the next one reads.

    def _require_room(self, new: Set[str]) -> None:
        if len(self.known) + len(new) > self._types_max:
            raise TooManyRequests(
                f"type: {min(new)!r} is new, and the store has reached its limit of {self._types_max:,} job types; "
                "delete unused types (everwork types delete) or raise max_types",
                FULL_RETRY_MS,
            )

    def _add(self, caller: str, new: Set[str]) -> None:
        """Count new types of an API key, or refuse them."""
        refusal = self._new.add(caller, len(new))
        if refusal is not None:
            raise TooManyRequests(
                f"type: {min(new)!r} is new, and this API key has added {refusal.added:,} job types within an hour; "
                f"the limit is {self._new_types_max:,} (max_new_types); retry later",
                refusal.retry_after_ms,
            )


class TypeRetention:
    """Deletes unused types, once an hour, in one process of the fleet: a name polled once must not stay forever.

    A type is not kept for a policy that has only the defaults that settings apply to every type. Only servers have
    settings, but workers take turns as well: they keep types as long as the server that keeps them longest.
    """

    def __init__(self, engine: Engine, holder: str, rules: TypeRules = DEFAULT_RULES) -> None:
        self._engine = engine
        self._holder = holder
        self._keep_ms = rules.keep_ms
        self._defaults = {name: value for name, value in rules.declared.defaults.items() if value is not None}

    async def tick(self) -> None:
        """Delete unused types, if it is this process's turn."""
        if self._keep_ms > TYPE_KEEP_MS:
            await self._engine.register(KEEP_KIND, self._holder, str(self._keep_ms), KEEP_ENTRY_MS)
        if await self._engine.take_turn(TURN, self._holder, HOUR_MS):
            await self.forget()

    async def forget(self) -> int:
        """Delete unused types; returns how many."""
        now_ms, keep_ms = await self._engine.now(), await self._longest_keep_ms()
        candidates = {
            info.type: info.policy
            for info in await self._engine.types()
            if is_unused(info, now_ms, keep_ms)
            and (info.policy is None or stored_fields(info.policy) == self._defaults)
        }
        if candidates:
            used = await self._used_types()
            candidates = {type: policy for type, policy in candidates.items() if type not in used}
        names = list(candidates)
        forgotten = 0
        for start in range(0, len(names), FORGOTTEN_PER_STEP):
            some = {name: candidates[name] for name in names[start : start + FORGOTTEN_PER_STEP]}
            forgotten += len(await self._engine.forget_types(some, keep_ms))
        if forgotten:
            log.info("unused job types were deleted", types=forgotten)
        return forgotten

    async def _longest_keep_ms(self) -> int:
        entries = await self._engine.registered(KEEP_KIND)
        return max([self._keep_ms, *(int(entry.body) for entry in entries if entry.body.isdecimal())])

    async def _used_types(self) -> Collection[str]:
        """The types that have jobs, or are named by a registered worker or trigger."""
        workers: Sequence[WorkerEntry] = read_entries(WorkerEntry, await self._engine.registered(WORKER))
        triggers: Sequence[TriggerEntry] = read_entries(TriggerEntry, await self._engine.registered(TRIGGER))
        counted = {count.type for count in await self._engine.count()}
        return counted.union((one.type for one in triggers), *(one.types for one in workers))
