"""Worker classes of the torture: what their calls do is planned like everything else, and told to a history."""

from __future__ import annotations

import asyncio
import json
import os
import time
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from everwork import AbstractWorker, Event, EventCollector, Interval, JobContext, Trigger, WorkerSettings
from everwork.engines.contract import Engine
from everwork.engines.open import open_engine
from everwork.exceptions import Fail, Reject, Retry
from everwork.manager import child
from tests.torture import clocks, faults, mutants, plan
from tests.torture.history import HistoryWriter
from tests.torture.logged import watched
from tests.torture.process import Life, read_life

LIFE: Final = "EVERWORK_TORTURE_LIFE"
"""Tells the processes of a manager which life of which manager they belong to."""
LEASE_MS: Final = 1_000
TIMEOUT_SECONDS: Final = 1.4
_SLOW_SECONDS: Final = LEASE_MS / 1000 * 1.1
_BLOCKS_EVERY: Final = 1_500


class Planned(AbstractWorker):
    """Does in each call what the plan says."""

    async def __call__(self, ctx: JobContext, events: EventCollector, r: str, **kwargs: Any) -> str:
        name = f"{r}/{ctx.key}"
        history().begin(ctx.key, ctx.attempt)
        chosen = action(name, ctx.attempt)
        how = "cancelled"
        try:
            await _act(chosen, events, f"{name}@{ctx.attempt}")
            how = chosen
        except Exception:
            how = chosen
            raise
        finally:
            history().end(ctx.key, ctx.attempt, how)
        return f"{ctx.key}@{ctx.attempt}"


class Managed(Planned):
    """Shares a type with workers that know no manager, and has one that managers serve alone."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(
            title="torture-managed",
            sources={plan.WORK, plan.MANAGED},
            execution_timeout=TIMEOUT_SECONDS,
            concurrency=20,
            retry=plan.POLICY,
        )


class Second(Planned):
    """The second class on a source: it has a group of its own, and no retries of its own."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(
            title="torture-second", sources={plan.MANAGED}, execution_timeout=TIMEOUT_SECONDS, concurrency=10
        )


class Ticker(Planned):
    """Runs by the clock."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        ticks = [
            Trigger(title=f"every {seconds:g} s", schedule=Interval(seconds=seconds), kwargs={"r": "tick"})
            for seconds in (0.2, 0.5)
        ]
        return WorkerSettings(
            title="torture-ticker",
            triggers=ticks,
            execution_timeout=TIMEOUT_SECONDS,
            concurrency=10,
            retry=plan.POLICY,
        )


class Holder(AbstractWorker):
    """Never ends, but for jobs that are to show how quick it is: only then is something fetched ahead."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="torture-holder", sources={plan.MANAGED})

    async def __call__(self, ctx: JobContext, r: str) -> None:
        history().begin(ctx.key, ctx.attempt)
        if r != "quick":
            await asyncio.Event().wait()


WORKERS: Final[list[type[AbstractWorker]]] = [Managed, Second, Ticker]


def every_ms(trigger: Trigger) -> int:
    """The interval of one of the triggers."""
    assert isinstance(trigger.schedule, Interval)
    return trigger.schedule.total_ms


def action(name: str, attempt: int) -> str:
    """What this call does."""
    if attempt == 1 and zlib.crc32(f"block:{name}".encode()) % _BLOCKS_EVERY == 0:
        return "block"
    return plan.action(name, attempt)


async def _act(chosen: str, events: EventCollector, name: str) -> None:
    match chosen:
        case "block":
            time.sleep(TIMEOUT_SECONDS * 10)  # noqa: ASYNC251 - it is to be killed for that
        case "hang":
            await asyncio.sleep(TIMEOUT_SECONDS * 10)
        case "slow":
            await asyncio.sleep(_SLOW_SECONDS)
        case "events":
            for number in range(2):
                events.emit(Event(source=plan.EVENT, kwargs={"r": f"{name}/{number}"}))
        case _:
            _fail(chosen)


def _fail(chosen: str) -> None:
    match chosen:
        case "fail-now" | "fail-retries":
            raise ValueError("failed")
        case "fail-later":
            raise Retry("failed for a while", delay=0.06)
        case "retry" | "release":
            raise Retry("again", delay=0)
        case "fail-final" | "throw":
            raise Fail("failed for good")
        case "reject":
            raise Reject("makes no sense")
        case _:
            pass


# The processes ------------------------------------------------------------------------------------


@lru_cache
def life() -> Life:
    """The life of the manager that this process belongs to."""
    return read_life(json.loads(os.environ[LIFE]))


def file_of(life: Life, pid: int) -> Path:
    """The history of one of a manager's processes."""
    return life.folder / f"{life.name}.{life.life:04d}-{pid}.jsonl"


@lru_cache
def history() -> HistoryWriter:
    """What this process writes down."""
    return HistoryWriter(file_of(life(), os.getpid()))


def _join() -> None:
    """In a process of a manager, before it does anything: every call to the engine is to be written down."""
    clocks.follow()
    mutants.apply(life().mutant, life().url)
    if _is_doomed():
        faults.on_death = history().dies
        faults.arm(life().url, os.environ.get(faults.VARIABLE))
    vars(child)["open_engine"] = _open_watched


def _open_watched(url: str, **options: Any) -> Engine:
    return watched(open_engine(url, **options), history())


def _is_doomed() -> bool:
    """The first process of a manager's life is the one that dies at a fault point, if it is to have one."""
    try:
        os.close(os.open(life().folder / f"{life().name}.{life().life:04d}.doomed", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


# Set by the manager's program after it has loaded this: in its processes it is there from the beginning.
if LIFE in os.environ:
    _join()
