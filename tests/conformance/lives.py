"""A store with a job at every stage of life, each of a type of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everwork.codec.json import encode_policy
from everwork.core.outcome import Complete, Failed, Reject, Release, Retry, Throw, kind_of
from everwork.core.retry import RetryPolicy
from tests.conformance.observe import counted, every_job
from tests.factories import (
    a_cancelled_job,
    a_completed_job,
    a_dead_letter,
    a_new_job,
    a_pending_job,
    a_processing_job,
    a_scheduled_job,
    activated,
    settled,
)
from tests.stores import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

if TYPE_CHECKING:
    from everwork.core.job import HistoryEntry, StoredJob
    from everwork.core.outcome import Outcome
    from everwork.engines.contract import Engine
    from everwork.engines.values import JobRecord
    from tests.stores import VirtualClock

OWN_POLICY = encode_policy(RetryPolicy(max_attempts=9, base=7, factor=1, cap=7))


async def every_stage(engine: Engine, clock: VirtualClock) -> None:
    """Fill a store with all that can become of a job."""
    await _waiting(engine, clock)
    await _ended(engine)
    await _failed_before(engine, clock)
    await _copies(engine)


async def _waiting(engine: Engine, clock: VirtualClock) -> None:
    await a_pending_job(engine, type="due", variables='{"name":"Zoë 🦉"}')
    await a_scheduled_job(engine, type="scheduled", delay_ms=HOUR_MS)
    await a_pending_job(engine, type="deduped", dedupe_key="once")
    await a_pending_job(engine, type="lanes", tenant="acme", limit_key="customer-1")
    await a_pending_job(engine, type="lanes", limit_key="customer-2")
    await a_pending_job(engine, type="lanes", tenant="acme", dedupe_key="once")
    rich = {"headers": '{"a":"b"}', "extra": '{"x":1}', "correlation_id": "c", "timeout_ms": 5_000}
    await a_pending_job(engine, type="rich", priority=7, expires_at_ms=clock.now_ms + DAY_MS, **rich)
    urgent = await a_pending_job(engine, type="urgent", priority=1)
    await engine.set_priority([urgent.key], 99)
    moved = await a_pending_job(engine, type="moved")
    await engine.reschedule([moved.key], run_at_ms=clock.now_ms + 2 * HOUR_MS)
    allowed = await a_pending_job(engine, type="allowed-more", max_attempts=2)
    await engine.set_retries(allowed.key, 11)
    await a_processing_job(engine, type="running", worker="w7", lease_ms=10 * MINUTE_MS, retry=OWN_POLICY)


async def _ended(engine: Engine) -> None:
    await a_completed_job(engine, type="completed", dedupe_key="done")
    await a_completed_job(engine, type="completed-silently", result=None)
    await a_dead_letter(engine, type="dead", max_attempts=3, dedupe_key="dead")
    await a_cancelled_job(engine, type="cancelled")
    await a_cancelled_job(engine, type="cancelled-without-reason", reason="")
    running = await a_processing_job(engine, type="cancelled-running")
    await engine.cancel([running.key], "enough")
    rejected = await a_processing_job(engine, type="rejected")
    await settled(engine, Reject(rejected.key, 1, "nonsense"))
    thrown = await a_processing_job(engine, type="thrown")
    await settled(engine, Throw(thrown.key, 1, "NO_CREDIT", "the entry was refused"))


async def _failed_before(engine: Engine, clock: VirtualClock) -> None:
    outcomes: list[Outcome] = [
        Failed(0, 1, "boom", traceback="Traceback:\n  x"),
        Retry(0, 1, "later", delay_ms=9_000),
        Release(0, 1),
    ]
    for outcome in outcomes:
        job = await a_processing_job(engine, type=f"{kind_of(outcome)}-once", retry=OWN_POLICY)
        await settled(engine, outcome._replace(key=job.key))
    lapsing = await a_processing_job(engine, type="lapsed", lease_ms=SECOND_MS)
    expiring = await a_pending_job(engine, type="expired", expires_at_ms=clock.now_ms + SECOND_MS)
    clock.advance(seconds=2)
    assert (await engine.sweep("s")).lapsed == 1
    clock.advance(seconds=5)
    done = await activated(engine, lapsing)
    await settled(engine, Complete(done.key, 2, '"at last"'))
    assert [event.kind for event in await engine.history(expiring.key)] == ["expire"]
    back = await a_dead_letter(engine, type="requeued", max_attempts=4)
    await engine.requeue([back.key])
    twice = await a_dead_letter(engine, type="requeued-and-dead")
    await engine.set_retries(twice.key, 1)
    await activated(engine, twice)
    await settled(engine, Failed(twice.key, 2, "again"))


async def _copies(engine: Engine) -> None:
    await engine.add_group("published", "audit")
    await engine.add_group("published", "mail")
    first = await a_pending_job(engine, type="published", dedupe_key="event-1")
    await engine.create([a_new_job(type="published", tenant="acme")])
    await activated(engine, first)
    await settled(engine, Complete(first.key, 1))


async def whole(engine: Engine) -> tuple[list[tuple[StoredJob, list[HistoryEntry]]], object]:
    """Everything that anyone can see of a store's jobs."""
    jobs = [(job, await engine.history(job.key)) for job in await every_job(engine)]
    return jobs, await counted(engine)


async def moved(source: Engine, target: Engine, *, step: int = 7) -> list[JobRecord]:
    """Dump one store, step by step, and load the other; all that was dumped."""
    records: list[JobRecord] = []
    while some := await source.dump(records[-1].job.key if records else 0, step):
        assert await target.load(some) == len(some)
        records += some
    return records
