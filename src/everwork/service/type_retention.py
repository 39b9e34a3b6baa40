"""Deletes types that are no longer used: a name that was polled or created once must not stay forever."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from everwork.core.limits import HOUR_MS
from everwork.core.retention import is_unused
from everwork.engines.contract import Engine
from everwork.logs import get_logger
from everwork.service.fleet.entries import TriggerEntry, WorkerEntry, read_entries
from everwork.service.fleet.fleet import TRIGGER, WORKER
from everwork.service.policies import stored_fields
from everwork.service.type_limits import DEFAULT_RULES, TypeRules

log = get_logger("everwork")

TURN: Final = "types"
STEP: Final = 200
"""How many types one call to the engine deletes."""


class TypeRetention:
    """Deletes unused types, once an hour, in one process of the fleet.

    A policy with only the defaults that settings apply to every type is no reason to keep a type.
    """

    def __init__(self, engine: Engine, holder: str, rules: TypeRules = DEFAULT_RULES) -> None:
        self._engine = engine
        self._holder = holder
        self._keep_ms = rules.keep_ms
        self._defaults = {name: value for name, value in rules.declared.defaults.items() if value is not None}

    async def tick(self) -> bool:
        """Delete unused types, if it is this process's turn."""
        if await self._engine.take_turn(TURN, self._holder, HOUR_MS):
            await self.forget()
        return False

    async def forget(self) -> int:
        """Delete unused types; returns how many."""
        now_ms = await self._engine.now()
        candidates = {
            info.type: info.policy
            for info in await self._engine.types()
            if is_unused(info, now_ms, self._keep_ms)
            and (info.policy is None or stored_fields(info.policy) == self._defaults)
        }
        if candidates:
            used = await self._used_types()
            candidates = {type: policy for type, policy in candidates.items() if type not in used}
        names = list(candidates)
        forgotten = 0
        for start in range(0, len(names), STEP):
            some = {name: candidates[name] for name in names[start : start + STEP]}
            forgotten += len(await self._engine.forget_types(some, self._keep_ms))
        if forgotten:
            log.info("unused job types were deleted", types=forgotten)
        return forgotten

    async def _used_types(self) -> Collection[str]:
        """The types that have jobs, and those that a registered worker or trigger names."""
        workers: Sequence[WorkerEntry] = read_entries(WorkerEntry, await self._engine.registered(WORKER))
        triggers: Sequence[TriggerEntry] = read_entries(TriggerEntry, await self._engine.registered(TRIGGER))
        counted = {count.type for count in await self._engine.count()}
        return counted.union((one.type for one in triggers), *(one.types for one in workers))
