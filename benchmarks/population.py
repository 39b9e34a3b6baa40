"""Fills a store to resemble a busy one after some hours: jobs of every kind, each generated from its number."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.bench import Bench
from everwork.core.job import HistoryEntry, LeasedJob, NewJob, StoredJob
from everwork.core.leasing import Demand
from everwork.core.limits import DEFAULT_TENANT
from everwork.core.outcome import Complete, Failed, Outcome
from everwork.core.states import State
from everwork.engines.contract import Engine
from everwork.engines.values import JobRecord

TYPES = 20
TENANTS = 5
WORKERS = 8
LIMIT_KEYS = 40
SORTS = 20
DEAD_EVERY = 100
LOAD_BATCH = 2_000
WORKED = 20_000
"""Jobs that are run through the engine itself, so that there are hourly counts."""
DAY_MS = 86_400_000
SPREAD_MS = DAY_MS // 4
"""The time span in which jobs finished: Redis keeps them for a day."""

STACK = "".join(
    f'  File "/srv/app/orders/step_{n}.py", line {40 + n}, in handle\n    return await client.send(order)\n'
    for n in range(5)
)


@dataclass(frozen=True, slots=True)
class Size:
    """How many jobs a store holds."""

    finished: int
    waiting: int

    @property
    def jobs(self) -> int:
        """The number of loaded jobs."""
        return self.finished + self.waiting


def size_of(bench: Bench) -> Size:
    """The size that the targets refer to, or a fiftieth of it."""
    return Size(bench.jobs(1_000_000, 20_000), bench.jobs(100_000, 2_000))


async def populate(bench: Bench, engine: Engine) -> None:
    """Fill an empty store. Waiting jobs are the newest, as after an outage."""
    size = size_of(bench)
    now_ms = time.time_ns() // 1_000_000
    for low in range(0, size.jobs, LOAD_BATCH):
        if low % 100_000 == 0:
            bench.say(f"pages: filling the store, {low:,} of {size.jobs:,} jobs")
        await engine.load(list(_records(size, now_ms, low)))
        if low % 20_000 == 0:
            await engine.sweep("bench")
    await _work(bench, engine)


def type_of(n: int) -> str:
    """The type of the n-th job. Neighbors have the same type, which is faster to load."""
    return f"shop.order-{n // 40 % TYPES:02d}"


def tenant_of(n: int) -> str:
    """The tenant of the n-th job: every other ten jobs belong to the default tenant."""
    return DEFAULT_TENANT if n // 10 % 2 else f"tenant-{n // 20 % TENANTS}"


def worker_of(n: int) -> str:
    """The worker that ran the n-th job."""
    return f"host-{n % WORKERS}:orders"


def error_of(n: int) -> str:
    """An error of one of twenty groups, with details that differ from job to job."""
    sort = n // DEAD_EVERY % SORTS
    words = " ".join(f"{chr(97 + sort)}{word}" for word in ("service", "refused", "the", "order"))
    return f"ShopError: {words} {n}: timed out after {n % 30} s\nTraceback (most recent call last):\n{STACK}"


def _records(size: Size, now_ms: int, low: int) -> Iterator[JobRecord]:
    for n in range(low, min(low + LOAD_BATCH, size.jobs)):
        yield _finished(size, now_ms, n) if n < size.finished else _waiting(size, now_ms, n)


def _finished(size: Size, now_ms: int, n: int) -> JobRecord:
    ended_ms = now_ms - SPREAD_MS + SPREAD_MS * n // size.finished
    is_dead = n % DEAD_EVERY == DEAD_EVERY // 2
    state = State.FAILED if is_dead else State.CANCELLED if n % 1_000 == 1 else State.COMPLETED
    job = _job(n, ended_ms - 5_000, state, attempt=3 if is_dead else 1, finished_at_ms=ended_ms)
    return JobRecord(job, 3, None, tuple(_history(job, n)))


def _history(job: StoredJob, n: int) -> Iterator[HistoryEntry]:
    at_ms = job.finished_at_ms or 0
    if job.state is State.FAILED:
        for attempt in (1, 2):
            again_ms = at_ms - 2_000 + attempt * 500
            yield HistoryEntry(attempt, "fail", again_ms - 400, worker_of(n), error_of(n), again_ms - 450, again_ms)
        yield HistoryEntry(3, "fail", at_ms, worker_of(n), error_of(n), job.activated_at_ms)
    elif job.state is State.CANCELLED:
        yield HistoryEntry(1, "cancel", at_ms, None, "the customer has changed her mind")
    else:
        yield HistoryEntry(1, "complete", at_ms, worker_of(n), None, job.activated_at_ms)


def _waiting(size: Size, now_ms: int, n: int) -> JobRecord:
    """Waiting jobs: one in seven is scheduled for later, some hundred are running."""
    created_ms = now_ms - 3_600_000 + 3_600_000 * (n - size.finished) // size.waiting
    if n % 200 == 0:
        return JobRecord(_job(n, created_ms, State.PROCESSING, attempt=1), 3, None, ())
    run_at_ms = now_ms + 30 * DAY_MS + n if n % 7 == 0 else created_ms
    return JobRecord(_job(n, created_ms, State.PENDING, attempt=0, run_at_ms=run_at_ms), 3, None, ())


def _job(
    n: int,
    created_ms: int,
    state: State,
    *,
    attempt: int,
    run_at_ms: int | None = None,
    finished_at_ms: int | None = None,
) -> StoredJob:
    is_held, is_dead = state is State.PROCESSING, state is State.FAILED
    began_ms = created_ms + 20 if is_held else finished_at_ms and finished_at_ms - 40
    return StoredJob(
        key=n + 1,
        type=type_of(n),
        state=state,
        tenant=tenant_of(n),
        variables=f'{{"order":{n},"customer":"customer-{n % 5_000}","lines":[{"1,2,3,4," * 10}5]}}',
        result=f'{{"parcel":{n}}}' if state is State.COMPLETED and n % 4 == 0 else None,
        priority=n % 5,
        attempt=attempt,
        attempts=attempt,
        max_attempts=3,
        created_at_ms=created_ms,
        run_at_ms=created_ms if run_at_ms is None else run_at_ms,
        activated_at_ms=None if state in (State.PENDING, State.CANCELLED) else began_ms,
        lease_until_ms=created_ms + 30 * DAY_MS if is_held else None,
        finished_at_ms=finished_at_ms,
        worker=None if state in (State.PENDING, State.CANCELLED) else worker_of(n),
        last_error=error_of(n) if is_dead else None,
        correlation_id=f"basket-{n // 3}",
        limit_key=f"customer-{n // 10 % LIMIT_KEYS}" if type_of(n) == type_of(0) else None,
    )


async def _work(bench: Bench, engine: Engine) -> None:
    """Run jobs, a tenth of them with a failure, spread over all workers."""
    bench.say(f"pages: running {WORKED:,} jobs")
    for type in sorted({type_of(n) for n in range(0, 40 * TYPES, 40)}):
        await engine.create([NewJob(type, f'{{"n":{m}}}', priority=500) for m in range(WORKED // TYPES)])
        for worker in range(WORKERS):
            activation = await engine.activate([Demand(type, worker_of(worker), WORKED // TYPES // WORKERS)])
            await engine.settle(_ended(activation.jobs))
    await engine.sweep("bench")


def _ended(leased: Sequence[LeasedJob]) -> list[Outcome]:
    return [
        Failed(job.key, job.attempt, error_of(job.key * DEAD_EVERY), backoff_ms=30 * DAY_MS)
        if job.key % 10 == 0
        else Complete(job.key, job.attempt, f'{{"n":{job.key}}}')
        for job in leased
    ]
