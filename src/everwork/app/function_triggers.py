"""Scheduled job functions: their triggers fire in the engine's loop while the workers of an application run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import Final, NamedTuple

from pydantic import ValidationError

from everwork.aio.loops import BackgroundLoop
from everwork.app.entries import trigger_entries
from everwork.app.schedules import CronSchedule, scheduled
from everwork.app.settings import Cron, Interval, Trigger, WorkerSettings
from everwork.core.checks import shown
from everwork.core.retry import RetryPolicy
from everwork.exceptions import EngineError, InvalidInput
from everwork.runtime.portal import Portal
from everwork.service.fleet.entries import TriggerEntry
from everwork.service.fleet.fleet import Fleet, function_id
from everwork.service.service import JobService
from everwork.service.triggers.loop import Scheduled

REFRESH_SECONDS: Final = 5.0


class FunctionTrigger(NamedTuple):
    """The schedule of a job function, which fires directly into the function's type, and its registry entry."""

    scheduled: Scheduled
    entry: TriggerEntry


def function_trigger(type: str, cron: object, retry: RetryPolicy | None = None) -> FunctionTrigger:
    """The trigger for `cron=`: a cron expression, a `Cron` or an `Interval`."""
    trigger = Trigger(title=type, schedule=_schedule(cron))
    settings = WorkerSettings(title=type, retry=retry, triggers=[trigger])
    [entry] = trigger_entries(settings)
    return FunctionTrigger(
        replace(scheduled(settings, trigger, CronSchedule()), worker_id=function_id(type), type=type),
        replace(entry, worker_id=function_id(type), type=type),
    )


@contextmanager
def firing(portal: Portal[JobService], triggers: Sequence[FunctionTrigger]) -> Iterator[None]:
    """Fire triggers inside this context."""

    async def fire(service: JobService) -> None:
        async with _registered(service.fleet, service.holder, [one.entry.name for one in triggers]):
            await service.trigger_loop([one.scheduled for one in triggers]).run()

    ended, cancel = portal.start(fire)
    # It ends only by cancellation, which is no error.
    ended.add_done_callback(lambda future: future.cancelled() or future.exception())
    try:
        yield
    finally:
        cancel()


@asynccontextmanager
async def _registered(fleet: Fleet, name: str, triggers: Sequence[str]) -> AsyncIterator[None]:
    """Keep an entry in the registry, inside this context, that these triggers are fired."""

    async def refresh() -> bool:
        await fleet.register_firing(name, triggers)
        return False

    refreshing = BackgroundLoop("everwork-firing", refresh, REFRESH_SECONDS)
    refreshing.start()
    try:
        yield
    finally:
        await refreshing.abort()
        with suppress(EngineError):  # Unavailable or closed: the entry expires.
            await fleet.end_firing(name)


def _schedule(cron: object) -> Cron | Interval:
    if isinstance(cron, Cron | Interval):
        return cron
    if not isinstance(cron, str):
        raise InvalidInput("cron", f"must be a cron expression, a Cron or an Interval, not {shown(cron)}")
    try:
        return Cron(expression=cron)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise InvalidInput("cron", problem.removeprefix("Value error, ")) from None
