"""Workers, triggers and processes in the registry, told there as a manager tells them."""

from __future__ import annotations

from typing import Any, Final

from everwork.engines.contract import Engine
from everwork.service.fleet.entries import ManagerEntry, ProcessEntry, TriggerEntry, WorkerEntry, own_source
from everwork.service.fleet.fleet import Fleet

WORKER_ID: Final = "0123456789abcdef"
NOON_MS: Final = 1_767_268_800_000


async def a_trigger(engine: Engine, **fields: Any) -> TriggerEntry:
    """A trigger of a worker that nobody runs; any field of the trigger may be given."""
    sources = ("mails", own_source(WORKER_ID))
    worker = WorkerEntry(id=WORKER_ID, title="mailer", sources=sources, concurrency=2, execution_timeout_ms=90_000)
    schedule = {"schedule": "every day", "interval_ms": 86_400_000}
    said = {"id": "nightly", "title": "nightly-report", "variables": '{"pages":3}', **schedule, **fields}
    trigger = TriggerEntry(worker_id=worker.id, type=own_source(worker.id), **said)
    await Fleet(engine).declare([worker], [trigger])
    return trigger


async def a_process(engine: Engine, **fields: Any) -> ProcessEntry:
    """A process that lives and runs that worker, with its manager."""
    manager = ManagerEntry(name="m1", uuid="u1", host="here", pid=16, version="1", started_at_ms=NOON_MS)
    said = {"workers": (WORKER_ID,), "state": "running", "pid": 17, "started_at_ms": NOON_MS, **fields}
    process = ProcessEntry(name="m1/0", manager=manager.name, host="here", **said)
    await Fleet(engine).beat(manager, [process])
    return process
