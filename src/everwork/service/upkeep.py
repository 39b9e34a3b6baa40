"""Maintenance on request, for short-lived programs: sweeps until nothing is left to do, and fires due triggers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cronsim import CronSimError

from everwork.engines.contract import Engine
from everwork.logs import get_logger
from everwork.service.access.keys import forget_keys
from everwork.service.fleet.entries import TriggerEntry
from everwork.service.fleet.fleet import Fleet
from everwork.service.job_types import DEFAULT_RULES, TypeRetention, TypeRules
from everwork.service.triggers.loop import Scheduled, TriggerLoop
from everwork.service.triggers.outlook import plan_of

log = get_logger("everwork")

SWEEPS_MAX: Final = 100
FIRINGS_MAX: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """The results of a maintenance run.

    `lapsed`: expired leases; `expired`: pending jobs past their expiry; `requeued`: dead letters that were requeued;
    `deleted`: finished jobs past their retention; `fired`: jobs created by triggers.
    """

    lapsed: int = 0
    expired: int = 0
    requeued: int = 0
    deleted: int = 0
    fired: int = 0


async def run_upkeep(
    engine: Engine, holder: str, triggers: Sequence[Scheduled], types: TypeRules = DEFAULT_RULES
) -> Upkeep:
    """Run all maintenance that is due, in a bounded number of steps; `holder` is the caller's name in the store."""
    counts = dict.fromkeys(("lapsed", "expired", "requeued", "deleted"), 0)
    for _ in range(SWEEPS_MAX):
        swept = await engine.sweep(holder)
        counts = {name: count + getattr(swept, name) for name, count in counts.items()}
        if not swept.more:
            break
    await TypeRetention(engine, holder, types).tick()
    await forget_keys(engine)
    return Upkeep(**counts, fired=await _fire(engine, triggers) if triggers else 0)


async def _fire(engine: Engine, triggers: Sequence[Scheduled]) -> int:
    loop = TriggerLoop(engine, triggers, Fleet(engine).triggers_off)
    await loop.catch_up(FIRINGS_MAX)
    return loop.fired


async def registered_triggers(engine: Engine) -> list[Scheduled]:
    """The triggers in the registry whose schedule is known without the program that declared them."""
    entries = [view.entry for view in await Fleet(engine).triggers()]
    return list(_known(entry for entry in entries if not entry.is_foreign and (entry.cron or entry.interval_ms)))


def _known(entries: Iterable[TriggerEntry]) -> Iterable[Scheduled]:
    for entry in entries:
        try:
            plan = plan_of(entry)
        except (ValueError, KeyError, OSError, CronSimError) as error:
            # The time zone is missing on this machine, or a newer version wrote the entry.
            log.warning("trigger skipped: its schedule cannot be read", trigger=entry.name, error=str(error))
            continue
        yield Scheduled(
            worker_id=entry.worker_id, trigger_id=entry.id, type=entry.type, plan=plan, variables=entry.variables
        )
