"""The controller: starts a run, heals, drains, and has it judged."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from everwork.aio.loops import BackgroundLoop
from everwork.codec.json import encode_policy
from everwork.core.job import HistoryEntry, StoredJob
from everwork.core.leasing import Demand
from everwork.core.limits import LIST_LIMIT_MAX
from everwork.core.outcome import Complete
from everwork.core.queries import JobFilter
from everwork.core.states import LIVE_STATES
from everwork.engines.contract import Engine
from everwork.engines.open import open_engine
from everwork.service.service import SWEEP_SECONDS
from tests.forked import run_forked
from tests.torture import crew, plan
from tests.torture.checker import check
from tests.torture.history import HistoryWriter, read_histories
from tests.torture.leases import DRAIN_MS_MAX
from tests.torture.logged import LoggedEngine
from tests.torture.nemesis import Nemesis, Progress, Settings
from tests.torture.process import patiently
from tests.torture.verdict import FinalState, Ticking, Verdict

_HISTORIES_AT_ONCE: Final = 50
_TICK_MS: Final = 100


@dataclass(slots=True)
class Run:
    """A finished run on an engine: the verdict, and what was done to the processes."""

    engine: str
    seed: int
    verdict: Verdict
    nemeses: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    facts: dict[str, str] = field(default_factory=dict)
    """The store of a run: its version, and its durability."""


async def facts_of(engine: Engine) -> dict[str, str]:
    """The store on which a run takes place."""
    health = await engine.health()
    return {"store": f"{health.engine} {health.version}", "durability": health.durability.value}


async def torture(settings: Settings, progress: Progress = lambda _: None) -> Run:
    """One run from the empty store to the verdict."""
    begun = time.monotonic()
    if settings.mutant:
        created = await asyncio.to_thread(run_forked, "tests.torture.mutants", [settings.mutant, settings.url])
        assert created.returncode == 0, created.stderr.decode()
    engine = open_engine(settings.url)
    await engine.open()
    # Somebody is always alive to sweep, as a server or a further worker would be; the workers sweep too.
    upkeep = BackgroundLoop("torture-upkeep", lambda: _sweep(engine), SWEEP_SECONDS)
    try:
        await _prepare(engine)
        upkeep.start()
        nemesis = Nemesis(settings, progress)
        try:
            await nemesis.begin()
            await nemesis.rage()
            drain_ms = await _drain(engine, nemesis)
        finally:
            await nemesis.end()
        await finish(LoggedEngine(engine, HistoryWriter(settings.folder / "controller.jsonl")))
        progress("reading the final state")
        final = await read_final_state(engine)
        final.drain_ms, final.slack_ms, final.stops = drain_ms, nemesis.slack_ms, nemesis.stops
        final.managers, final.deaths = nemesis.managers, nemesis.processes.deaths
        facts = await facts_of(engine)
        if settings.managers:
            final.triggers = await read_triggers(engine, due_ms=nemesis.healed_at_ms)
    finally:
        await upkeep.stop()
        await engine.close()
    progress("checking")
    verdict = check(read_histories(settings.folder), final)
    return Run(settings.place.engine, settings.seed, verdict, nemesis.done, time.monotonic() - begun, facts)


async def _sweep(engine: Engine) -> bool:
    return (await engine.sweep("torture-controller")).more


async def _prepare(engine: Engine) -> None:
    for name in (*plan.TYPES, plan.MANAGED):
        await engine.set_policy(name, encode_policy(plan.POLICY))
    await engine.set_policy(plan.LIMITED, encode_policy(plan.LIMITED_POLICY))
    await engine.add_group(plan.WORK, plan.AUDIT)
    # As their managers will: every job is to have a copy for each of its groups, also the first one.
    for settings in (worker._get_settings() for worker in crew.WORKERS):
        for source in sorted(settings.sources):
            await engine.subscribe(source, settings.id)


async def _drain(engine: Engine, nemesis: Nemesis) -> int:
    """Heal, stop the producers, and wait until no job is live or the time is over; answers how long it took."""
    begun = time.monotonic()
    nemesis.heal()
    await nemesis.stop_producers()
    while (passed_ms := int((time.monotonic() - begun) * 1000)) <= DRAIN_MS_MAX:
        nemesis.watch(faulty=False)
        counts = await patiently(engine.count, outages=nemesis.has_server)
        has_live = any(one.state in LIVE_STATES and one.jobs for one in counts)
        if not has_live and await patiently(lambda: _has_caught_up(engine, nemesis), outages=nemesis.has_server):
            break
        await patiently(lambda: engine.wait_finished(100), outages=nemesis.has_server)
    return passed_ms


async def _has_caught_up(engine: Engine, nemesis: Nemesis) -> bool:
    """Whether every time point before the healing has been fired."""
    if not nemesis.managers:
        return True
    ticking = await read_triggers(engine, due_ms=nemesis.healed_at_ms)
    return all(one.mark.last_ms + one.every_ms > one.due_ms for one in ticking)


async def read_triggers(engine: Engine, due_ms: int = 0) -> list[Ticking]:
    """Where the triggers of the managers stand; every point up to `due_ms` must have been fired."""
    declared = [worker._get_settings() for worker in crew.WORKERS]
    ticks = [(settings, tick) for settings in declared for tick in settings.triggers]
    names = [f"{settings.id}/{tick.id}" for settings, tick in ticks]
    marks = (await engine.trigger_marks(names)).marks
    return [
        Ticking(name, settings.default_source, crew.every_ms(tick), mark, due_ms)
        for name, (settings, tick), mark in zip(names, ticks, marks, strict=True)
    ]


async def finish(last: LoggedEngine) -> None:
    """Run what became live while the processes were already stopping: there is nobody else for it.

    A manager's last tick may have fired, and emitted events; a worker may have requeued the last job when it failed.
    """
    begun = time.monotonic()
    kinds = [(known.type, group) for known in await last.engine.types() for group in {"", *known.groups}]
    wanted = [Demand(kind, "controller", 100, DRAIN_MS_MAX, group) for kind, group in kinds]
    while (time.monotonic() - begun) * 1000 < DRAIN_MS_MAX:
        jobs = await last.activate(wanted) or []
        for job in jobs:
            last.history.begin(job.key, job.attempt)
        await last.settle([Complete(job.key, job.attempt, plan.token(job.key, job.attempt)) for job in jobs])
        if not any(one.state in LIVE_STATES and one.jobs for one in await last.engine.count()):
            return
        await last.engine.wait_finished(_TICK_MS)


async def read_final_state(engine: Engine) -> FinalState:
    """Everything that the engine shows, read through its contract."""
    jobs: dict[int, StoredJob] = {}
    cursor: int | None = None
    while True:
        page = await engine.find(JobFilter(), LIST_LIMIT_MAX, cursor)
        jobs.update((job.key, job) for job in page.jobs)
        cursor = page.next
        if cursor is None:
            break
    full = [job for start in range(0, len(jobs), 500) for job in await engine.get(list(jobs)[start : start + 500])]
    jobs = {job.key: job for job in full if job is not None}
    events: dict[int, list[HistoryEntry]] = {}
    for start in range(0, len(jobs), _HISTORIES_AT_ONCE):
        keys = list(jobs)[start : start + _HISTORIES_AT_ONCE]
        events.update(zip(keys, await asyncio.gather(*map(engine.history, keys)), strict=True))
    stats = await engine.stats(24)
    groups = {known.type: tuple(group for group in known.groups if group) for known in await engine.types()}
    return FinalState(jobs, events, await engine.count(), stats.hours, groups)
