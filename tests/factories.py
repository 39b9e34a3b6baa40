"""Jobs at every stage of life, reached through the contract alone."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from everwork.codec.json import encode_policy_fields
from everwork.core.job import NewJob, StoredJob
from everwork.core.leasing import Activation, Demand
from everwork.core.outcome import Complete, Failed

if TYPE_CHECKING:
    from everwork.core.leasing import Judged
    from everwork.core.outcome import Outcome
    from everwork.core.states import State
    from everwork.engines.contract import Engine

Stage = Callable[..., Coroutine[Any, Any, StoredJob]]
"""A factory of this module."""

TYPE = "email-send"
WORKER = "w1"
LEASE_MS = 30_000


def a_new_job(**fields: Any) -> NewJob:
    """A job to be created; any field may be given."""
    return NewJob(**{"type": TYPE, **fields})


async def a_pending_job(engine: Engine, **fields: Any) -> StoredJob:
    """A job that waits and is due at once."""
    [created] = await engine.create([a_new_job(**fields)])
    return await the_job(engine, created.key)


async def a_scheduled_job(engine: Engine, *, delay_ms: int = 60_000, **fields: Any) -> StoredJob:
    """A job that is not due yet."""
    return await a_pending_job(engine, delay_ms=delay_ms, **fields)


async def a_processing_job(
    engine: Engine, *, worker: str = WORKER, lease_ms: int = LEASE_MS, **fields: Any
) -> StoredJob:
    """A job that a worker holds; no other job of its type may be due."""
    job = await a_pending_job(engine, **fields)
    return await activated(engine, job, worker=worker, lease_ms=lease_ms)


async def a_completed_job(engine: Engine, *, result: str | None = '{"sent":true}', **fields: Any) -> StoredJob:
    """A job that a worker has done."""
    job = await a_processing_job(engine, **fields)
    return await settled(engine, Complete(job.key, job.attempt, result))


async def a_dead_letter(engine: Engine, *, error: str = "no such address", **fields: Any) -> StoredJob:
    """A job that has failed for good."""
    job = await a_processing_job(engine, **fields)
    return await settled(engine, Failed(job.key, job.attempt, error, final=True))


async def a_cancelled_job(engine: Engine, *, reason: str = "not needed", **fields: Any) -> StoredJob:
    """A job that was cancelled while it waited."""
    job = await a_pending_job(engine, **fields)
    await engine.cancel([job.key], reason)
    return await the_job(engine, job.key)


async def a_policy(engine: Engine, *, type: str = TYPE, **said: Any) -> None:
    """Let these fields be all that is said of a type's policy."""
    await engine.set_policy(type, encode_policy_fields(said))


async def the_job(engine: Engine, key: int) -> StoredJob:
    """The job as it stands; it must exist."""
    [job] = await engine.get([key])
    assert job is not None, f"job {key} is gone"
    return job


async def the_state(engine: Engine, key: int) -> State:
    """The state of a job that must exist."""
    return (await the_job(engine, key)).state


async def asked(
    engine: Engine, limit: int = 10, *, type: str = TYPE, worker: str = WORKER, lease_ms: int = LEASE_MS, **more: Any
) -> Activation:
    """The answer to one demand."""
    return await engine.activate([Demand(type, worker, limit, lease_ms, **more)])


async def leased_keys(engine: Engine, limit: int = 10, **demand: Any) -> list[int]:
    """The keys that one demand leases, in their order."""
    return [job.key for job in (await asked(engine, limit, **demand)).jobs]


async def activated(engine: Engine, job: StoredJob, *, worker: str = WORKER, lease_ms: int = LEASE_MS) -> StoredJob:
    """The same job, held by a worker; it must be the next of its type."""
    keys = await leased_keys(engine, 1, type=job.type, worker=worker, lease_ms=lease_ms, group=job.group)
    assert keys == [job.key], f"job {job.key} is not the next of its type; got {keys}"
    return await the_job(engine, job.key)


async def judged(engine: Engine, outcome: Outcome) -> Judged:
    """The verdict on one outcome."""
    [verdict] = (await engine.settle([outcome])).judged
    return verdict


async def settled(engine: Engine, outcome: Outcome) -> StoredJob:
    """The job after an outcome that must be accepted."""
    assert (await judged(engine, outcome)).ok, f"{outcome} was refused"
    return await the_job(engine, outcome.key)
