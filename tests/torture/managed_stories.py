"""Stories about managers: their triggers, and what they do for a process that has died."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from everwork import CronSchedule, Reconnect
from everwork.app.schedules import scheduled_triggers
from everwork.core.job import NewJob
from everwork.engines.open import open_engine
from everwork.logs import get_logger
from everwork.manager.child import ChildSpec
from everwork.manager.cleanup import clean_up
from everwork.manager.process_handle import ProcessHandle
from everwork.manager.worker_pool import WorkerSpec
from everwork.runtime.handler import QueueKey
from everwork.runtime.ledger import SlotState
from everwork.service.service import JobService
from everwork.service.triggers.loop import TriggerLoop
from tests.torture import crew, plan
from tests.torture.history import HistoryWriter, host_clock_ms
from tests.torture.logged import LoggedEngine, watched
from tests.torture.process import Life

if TYPE_CHECKING:
    from tests.torture.scenarios import Stage

MANAGER: Final = "manager-0"
_LEASE_MS: Final = 30_000
_SECONDS_MAX: Final = 20
_TICK_SECONDS: Final = 0.01


async def managers_in_turns(stage: Stage) -> None:
    """Two managers with the same triggers, which look at the clock at different times; one is away for a while."""
    triggers = scheduled_triggers(crew.Ticker._get_settings(), CronSchedule())
    first, second = (
        TriggerLoop(watched(one.engine, one.history), triggers, _none_is_off) for one in (stage.first, stage.second)
    )
    await first.tick()
    for manager, ms in ((first, 217), (second, 130), (first, 911), (second, 1_703), (first, 3)):
        stage.clock.advance(ms=ms)
        await manager.tick()


async def managers_at_once(stage: Stage) -> None:
    """Two managers have seen that the same time points are due, and fire them."""
    (trigger, _) = scheduled_triggers(crew.Ticker._get_settings(), CronSchedule())
    (mark,) = (await stage.first.engine.trigger_marks([trigger.name])).marks
    points = [mark.began_ms + at * crew.every_ms(crew.Ticker._get_settings().triggers[0]) for at in (1, 2, 3)]
    for one in (stage.first, stage.second):
        await watched(one.engine, one.history).fire([trigger.fire(point_ms) for point_ms in points])


async def _none_is_off() -> frozenset[str]:
    return frozenset()


async def a_process_dies(stage: Stage) -> None:
    """A process is killed with one call begun and one attempt fetched ahead; its manager is there to see it."""
    life = Life(MANAGER, 0, stage.url, stage.folder, 1, _LEASE_MS, host_clock_ms(), "")
    async with _service(life) as service:
        maker = LoggedEngine(service._engine, HistoryWriter(stage.folder / "maker.jsonl"))
        names = ["quick", "held", "waiting"]
        await maker.create([plan.Request(name, NewJob(plan.MANAGED, json.dumps({"r": name}))) for name in names])
        process = _spawn(life)
        await _holds(process, {SlotState.BEGUN, SlotState.WAITING})
        HistoryWriter(crew.file_of(life, process.pid)).dies()
        os.kill(process.pid, signal.SIGKILL)
        await process.ended.wait()
        await clean_up(service, process, get_logger("everwork"))
        process.close()


@asynccontextmanager
async def _service(life: Life) -> AsyncIterator[JobService]:
    service = JobService(watched(open_engine(life.url), HistoryWriter(life.file(0))), life.name)
    await service.open(upkeep=False)
    try:
        yield service
    finally:
        await service.close()


def _spawn(life: Life) -> ProcessHandle:
    os.environ[crew.LIFE] = json.dumps(life.arguments())
    worker = WorkerSpec(worker=crew.Holder, queues=(QueueKey(plan.MANAGED),), index=0, id="holder", is_final=False)
    child_spec = ChildSpec(
        url=life.url,
        manager="manager",
        name="process",
        workers=(worker,),
        shutdown_timeout=1,
        reconnect=Reconnect(),
        lease_ms=_LEASE_MS,
        log_format=None,
        log_level="INFO",
    )
    return ProcessHandle(multiprocessing.get_context("spawn"), child_spec, slots=4, off=set(), on_change=lambda: None)


async def _holds(process: ProcessHandle, states: set[SlotState]) -> None:
    until = time.monotonic() + _SECONDS_MAX
    while {entry.state for entry in process.entries()} != states:
        assert time.monotonic() < until, process.entries()
        await asyncio.sleep(_TICK_SECONDS)
