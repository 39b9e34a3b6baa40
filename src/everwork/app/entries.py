"""Registry entries of workers and triggers, and the queues that a worker subscribes to."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import Any, Final, NamedTuple

from everwork.app.settings import Cron, Interval, Trigger, WorkerSettings
from everwork.codec.json import encode_object
from everwork.core.limits import DEFAULT_GROUP, PAYLOAD_BYTES_MAX
from everwork.runtime.handler import QueueKey
from everwork.service.fleet.entries import TriggerEntry, WorkerEntry
from everwork.service.policies import PolicyFields, fields_in_code
from everwork.service.service import JobService

_UNITS: Final = ((604_800_000, "weeks"), (86_400_000, "days"), (3_600_000, "h"), (60_000, "min"))


def worker_entry(settings: WorkerSettings) -> WorkerEntry:
    """The registry entry of a worker."""
    return WorkerEntry(
        id=settings.id,
        title=settings.title,
        description=settings.description,
        sources=tuple(sorted(settings.sources)),
        concurrency=settings.concurrency,
        execution_timeout_ms=round(settings.execution_timeout * 1000),
        has_retry=settings.retry is not None,
    )


def trigger_entries(settings: WorkerSettings, foreign: Container[str] = ()) -> list[TriggerEntry]:
    """The registry entries of a worker's triggers; `foreign` names those with a custom schedule in the program."""
    entries = [_trigger_entry(settings, trigger) for trigger in settings.triggers]
    return [replace(entry, is_foreign=True) if entry.name in foreign else entry for entry in entries]


def schedule_text(schedule: Interval | Cron) -> str:
    """A schedule as readable text."""
    if isinstance(schedule, Cron):
        return f"{schedule.expression} {schedule.timezone}"
    total_ms = schedule.total_ms
    for size_ms, name in _UNITS:
        if total_ms % size_ms == 0:
            return f"every {total_ms // size_ms} {name}"
    return f"every {total_ms / 1000:g} s"


def _trigger_entry(settings: WorkerSettings, trigger: Trigger) -> TriggerEntry:
    return TriggerEntry(
        worker_id=settings.id,
        id=trigger.id,
        title=trigger.title,
        description=trigger.description,
        schedule=schedule_text(trigger.schedule),
        type=settings.default_source,
        variables=encode_object("kwargs", trigger.kwargs, PAYLOAD_BYTES_MAX),
        is_catchup=trigger.is_catchup,
        lifetime_ms=None if trigger.lifetime is None else round(trigger.lifetime * 1000),
        **_schedule_fields(trigger.schedule),
    )


def _schedule_fields(schedule: Interval | Cron) -> dict[str, Any]:
    """A schedule as machine-readable fields."""
    if isinstance(schedule, Cron):
        return {"cron": schedule.expression, "timezone": schedule.timezone or "UTC"}
    return {"interval_ms": schedule.total_ms}


class Subscription(NamedTuple):
    """The queues that a worker subscribes to, and the policy that it declares."""

    queues: tuple[QueueKey, ...]
    policy: PolicyFields

    @property
    def policies(self) -> dict[str, PolicyFields]:
        """The policies by type; the worker in a source's default group sets the source's policy."""
        return {queue.type: self.policy for queue in self.queues if queue.group == DEFAULT_GROUP}

    @property
    def foreign(self) -> list[str]:
        """The sources that another worker subscribed to first."""
        return [queue.type for queue in self.queues if queue.group != DEFAULT_GROUP]


async def subscribe(service: JobService, settings: WorkerSettings) -> Subscription:
    """Subscribe a worker to its sources; the engine assigns a group for each."""
    queues = [QueueKey(source, await service.subscribe(source, settings.id)) for source in sorted(settings.sources)]
    return Subscription(tuple(queues), fields_in_code(settings.retry, settings.breaker, settings.policy))
