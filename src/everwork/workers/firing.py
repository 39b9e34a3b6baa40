"""Job functions by the clock: their triggers fire in the engine's loop while the workers of an application run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from pydantic import ValidationError

from everwork.core.checks import shown
from everwork.core.retry import RetryPolicy
from everwork.exceptions import InvalidInput
from everwork.service.fleet import Fleet, TriggerCard, function_id
from everwork.service.service import JobService
from everwork.service.triggers import Scheduled, TriggerLoop
from everwork.workers.cards import trigger_cards
from everwork.workers.cron import CronSchedule, scheduled
from everwork.workers.portal import Portal
from everwork.workers.settings import Cron, Interval, Trigger, WorkerSettings


class FunctionTrigger(NamedTuple):
    """The schedule of a job function, which fires straight into the function's type; how everybody may see it."""

    scheduled: Scheduled
    card: TriggerCard


def function_trigger(type: str, cron: object, retry: RetryPolicy | None = None) -> FunctionTrigger:
    """What `cron=` means: a cron expression, a `Cron` or an `Interval`."""
    trigger = Trigger(title=type, schedule=_schedule(cron))
    settings = WorkerSettings(title=type, retry=retry, triggers=[trigger])
    [card] = trigger_cards(settings)
    return FunctionTrigger(
        replace(scheduled(settings, trigger, CronSchedule()), worker_id=function_id(type), type=type),
        replace(card, worker_id=function_id(type), type=type),
    )


@contextmanager
def firing(portal: Portal, triggers: Sequence[FunctionTrigger]) -> Iterator[None]:
    """Let triggers fire as long as this lasts."""

    async def fire(service: JobService) -> None:
        off = Fleet(service.engine).triggers_off
        await TriggerLoop(service.engine, [one.scheduled for one in triggers], off).run()

    ended, cancel = portal.start(fire)
    # It ends only because it is cancelled: nobody needs to be told.
    ended.add_done_callback(lambda future: future.cancelled() or future.exception())
    try:
        yield
    finally:
        cancel()


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
