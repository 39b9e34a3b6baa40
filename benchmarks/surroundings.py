"""Fills a store with everything other than jobs: workers, triggers, keys, audit log, policies, minutes."""

from __future__ import annotations

import time

from benchmarks.population import TYPES, WORKERS, type_of, worker_of
from everwork.codec.json import encode_policy_fields
from everwork.core import measures
from everwork.engines.contract import Engine
from everwork.service.access.audit import Audit
from everwork.service.access.keys import KeyRing
from everwork.service.access.principal import ANYBODY
from everwork.service.fleet.entries import Entry, ManagerEntry, ProcessEntry, TriggerEntry, WorkerEntry, entry_body
from everwork.service.monitor.minutes import Minute, minute_body, minute_name

LIVES_MS = 3_600_000
CLASSES = 30
TRIGGERS = 60
KEYS = 40
ACTIONS = 2_000
MINUTES = 180
POLICY = encode_policy_fields({"breaker_failures": 5, "max_running": 50, "rate_jobs": 1_000, "rate_seconds": 60})


async def surround(engine: Engine) -> None:
    """Write everything again, because the registry entries of a kept store have expired."""
    now_ms = time.time_ns() // 1_000_000
    for kind, name, card in (*_fleet(now_ms), *_declared()):
        await engine.register(kind, name, entry_body(card), LIVES_MS)
    for at in range(MINUTES):
        minute = _minute(now_ms // 60_000 - at - 1)
        await engine.register("minute", minute_name(minute.minute), minute_body(minute), LIVES_MS)
    await _govern(engine)


async def _govern(engine: Engine) -> None:
    keys, audit = KeyRing(engine), Audit(engine)
    if not await keys.list():
        for n in range(KEYS):
            await keys.create(f"key {n}", ["jobs:read"])
        for n in range(ACTIONS):
            await audit.record(ANYBODY, "types.pause", type_of(40 * n), "127.0.0.1", {"n": n})
    for n in range(0, 40 * TYPES, 200):
        await engine.set_policy(type_of(n), POLICY)
    await engine.open_breaker(type_of(0), LIVES_MS)


def _fleet(now_ms: int) -> list[tuple[str, str, Entry]]:
    workers = tuple(f"worker-{n}" for n in range(CLASSES))
    told: list[tuple[str, str, Entry]] = []
    for n in range(WORKERS):
        name = worker_of(n)
        process = ProcessEntry(
            name=name, manager=f"manager-{n % 2}", host=f"host-{n}", pid=n + 1, state="running", workers=workers,
            started_at_ms=now_ms - LIVES_MS, running=50, ended=10_000, memory_bytes=60_000_000,
        )  # fmt: skip
        told.append(("process", name, process))
    for n in range(2):
        manager = ManagerEntry(name=f"manager-{n}", host=f"host-{n}", pid=n + 1, version="1", workers=workers)
        told.append(("manager", manager.name, manager))
    return told


def _declared() -> list[tuple[str, str, Entry]]:
    workers = [
        WorkerEntry(id=f"worker-{n}", title=f"Worker {n}", sources=(type_of(40 * n),), concurrency=50)
        for n in range(CLASSES)
    ]
    triggers = [
        TriggerEntry(worker_id=f"worker-{n % CLASSES}", id=f"every-{n}", title=f"Every {n} minutes",
                    schedule=f"every {n + 1} min", type=type_of(40 * n))
        for n in range(TRIGGERS)
    ]  # fmt: skip
    return [("worker", one.id, one) for one in workers] + [("trigger", one.name, one) for one in triggers]


def _minute(number: int) -> Minute:
    """One minute of metrics: every type has finished jobs of several durations, some with errors."""
    durations = {
        name(bucket): 10 + number % 7 for bucket in range(1, 10) for name in (measures.execution, measures.wait)
    }
    work = {"completed": 80, "failed": 2, "retried": 8, "execution_ms": 9_000, "wait_ms": 4_000}
    failures = {measures.failure(sort): 5 for sort in ("temporary", measures.UNCLASSIFIED)}
    return Minute(number, {type_of(40 * n): {**work, **durations, **failures} for n in range(TYPES)})
