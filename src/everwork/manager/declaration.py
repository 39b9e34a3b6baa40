"""Declares the workers of a manager in the store: queues, policies, triggers and registry entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everwork.app.entries import subscribe, trigger_entries, worker_entry
from everwork.manager.validation import Declared, unused_rules
from everwork.manager.worker import AbstractWorker
from everwork.runtime.handler import QueueKey
from everwork.service.policies import PolicyFields
from everwork.service.service import JobService
from everwork.service.triggers.loop import Scheduled

Queues = dict[type[AbstractWorker], tuple[QueueKey, ...]]
"""The queues of each worker."""


async def declare_workers(
    service: JobService, workers: Mapping[type[AbstractWorker], Declared], triggers: Sequence[Scheduled], log: Any
) -> Queues:
    """Subscribe workers to their sources, store their policies, and register them with their triggers."""
    queues: Queues = {}
    policies: dict[str, PolicyFields] = {}
    for worker, one in workers.items():
        settings = one.settings
        subscribed = await subscribe(service, settings)
        queues[worker] = subscribed.queues
        policies |= subscribed.policies
        if subscribed.policy and subscribed.foreign:
            log.warning(
                "policy of the worker does not apply to sources that another worker subscribed to first",
                worker=settings.id,
                title=settings.title,
                sources=subscribed.foreign,
            )
        if unused := unused_rules(settings):
            log.warning(
                "error rules have no effect: without a retry policy, the first error of this worker is permanent",
                worker=settings.id,
                title=settings.title,
                fields=unused,
            )
    await service.declare_policies(policies)
    declared = [one.settings for one in workers.values()]
    foreign = {one.name for one in triggers if one.plan.is_foreign}
    entries = [entry for one in declared for entry in trigger_entries(one, foreign)]
    await service.fleet.declare([worker_entry(one) for one in declared], entries)
    return queues
