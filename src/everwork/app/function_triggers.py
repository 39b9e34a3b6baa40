"""Scheduled job functions: their triggers fire in the engine's loop while the application's workers are running."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from everwork.app.entries import trigger_entries
from everwork.app.registration import beside
from everwork.app.schedules import CronSchedule, scheduled
from everwork.app.settings import Trigger, WorkerSettings, schedule_from
from everwork.core.retry import RetryPolicy
from everwork.runtime.portal import Portal
from everwork.service.fleet.entries import TriggerEntry
from everwork.service.fleet.fleet import function_id
from everwork.service.fleet.live import heartbeat
from everwork.service.service import JobService
from everwork.service.triggers.loop import Scheduled


class FunctionTrigger(NamedTuple):
    """The schedule of a job function, whose jobs have the function's type, and its registry entry."""

    scheduled: Scheduled
    entry: TriggerEntry


def function_trigger(
    type: str,
    cron: object,
    retry: RetryPolicy | None = None,
    *,
    arguments: dict[str, Any] | None = None,
    is_catchup: bool = True,
) -> FunctionTrigger:
    """The trigger for `cron=`: a cron expression, a `Cron` or an `Interval`. Its jobs get these arguments."""
    trigger = Trigger(title=type, schedule=schedule_from("cron", cron), kwargs=arguments or {}, is_catchup=is_catchup)
    settings = WorkerSettings(title=type, retry=retry, triggers=[trigger])
    [entry] = trigger_entries(settings)
    return FunctionTrigger(
        replace(scheduled(settings, trigger, CronSchedule()), worker_id=function_id(type), type=type),
        replace(entry, worker_id=function_id(type), type=type),
    )


@asynccontextmanager
async def firing(portal: Portal[JobService], triggers: Sequence[FunctionTrigger]) -> AsyncIterator[None]:
    """Fire triggers inside this context, and keep a registry entry that shows this."""
    names = [one.entry.name for one in triggers]

    async def fire(service: JobService) -> None:
        fleet, holder = service.fleet, service.holder
        async with heartbeat(
            "everwork-firing", lambda: fleet.register_firing(holder, names), lambda: fleet.end_firing(holder)
        ):
            await service.trigger_loop([one.scheduled for one in triggers]).run()

    async with beside(portal, fire):
        yield
