"""One process of a race: `python -m tests.races.actor ROLE URL ARGUMENTS` acts when a line comes in, answers JSON."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from everwork.core.job import LeasedJob, NewJob
from everwork.core.leasing import Demand, Lease
from everwork.core.outcome import Complete, Failed
from everwork.core.states import State
from everwork.engines.contract import Engine
from everwork.engines.open import open_engine
from everwork.engines.values import Fire

Role = Callable[..., Awaitable[Any]]


async def drain(engine: Engine, *, type: str, worker: str, batch: int) -> list[int]:
    """Take and complete until nothing is left; the keys that this process ran."""
    ran: list[int] = []
    outcomes: list[Complete] = []
    demand = Demand(type, worker, batch)
    while True:
        done = await engine.settle(outcomes, [demand])
        assert all(judged.verdict.value == "accepted" for judged in done.judged), done.judged
        outcomes = [Complete(job.key, job.attempt) for job in done.activation.jobs]
        ran += [job.key for job in done.activation.jobs]
        if not outcomes:
            return ran


async def grab(engine: Engine, *, type: str, worker: str, batch: int) -> list[int]:
    """Take until nothing is given, and hold it; the keys."""
    held: list[int] = []
    while leased := (await engine.activate([Demand(type, worker, batch)])).jobs:
        held += [job.key for job in leased]
    return held


async def drain_in_turns(engine: Engine, *, type: str, worker: str, batch: int, jobs: int) -> list[list[int]]:
    """Take and complete until so many jobs of the store are completed; when each was surely held: from, to, key."""
    held: list[list[int]] = []
    while await _completed(engine) < jobs:
        leased = (await engine.activate([Demand(type, worker, batch)])).jobs
        began = time.monotonic_ns()
        await engine.check([Lease(job.key, job.attempt) for job in leased])
        held += [[began, time.monotonic_ns(), job.key] for job in leased]
        settled = await engine.settle([Complete(job.key, job.attempt) for job in leased])
        assert all(judged.verdict.value == "accepted" for judged in settled.judged), settled.judged
    return held


class _Handed:
    """Jobs that creates have handed over to this process."""

    def __init__(self) -> None:
        self.jobs: dict[int, LeasedJob] = {}
        self.came = asyncio.Event()

    def handed(self, job: LeasedJob) -> None:
        self.jobs[job.key] = job
        self.came.set()

    def lost(self) -> None:
        raise AssertionError("no connection has been lost")


async def run_handed(engine: Engine, *, type: str, worker: str, jobs: int) -> list[list[int]]:
    """Wait for jobs, and complete them, until the store has completed so many; the keys handed over, and the others."""
    taken: _Handed = _Handed()
    handed: list[int] = []
    leased: list[int] = []
    outcomes: list[Complete] = []
    demand = Demand(type, worker, 3, receiver=taken)
    while outcomes or await _completed(engine) < jobs:
        taken.came.clear()
        mark = engine.mark()
        done = await engine.settle(outcomes, [demand])
        assert all(judged.verdict.value == "accepted" for judged in done.judged), done.judged
        if not done.activation.jobs and not taken.jobs:
            waits = [asyncio.ensure_future(one) for one in (taken.came.wait(), engine.wait([type], 250, since=mark))]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for one in waits:
                one.cancel()
        arrived, taken.jobs = list(taken.jobs.values()), {}
        assert all(job.attempt == 1 for job in arrived)
        handed += [job.key for job in arrived]
        leased += [job.key for job in done.activation.jobs]
        outcomes = [Complete(job.key, job.attempt) for job in (*arrived, *done.activation.jobs)]
    await engine.unpark(worker, [type])
    return [handed, leased]


async def create_one_by_one(engine: Engine, *, type: str, jobs: int) -> list[int]:
    """Create jobs, each in a call of its own; their keys."""
    return [(await engine.create([NewJob(type)]))[0].key for _ in range(jobs)]


async def _completed(engine: Engine) -> int:
    return sum(count.jobs for count in await engine.count() if count.state is State.COMPLETED)


async def create_deduplicated(engine: Engine, *, type: str, names: list[str], seed: int) -> dict[str, Any]:
    """Create a job under each name, in an order of one's own; the key and the novelty that were answered."""
    order = random.Random(seed).sample(names, len(names))
    created = await asyncio.gather(*(engine.create([NewJob(type, dedupe_key=name)]) for name in order))
    return {name: [one.key, one.deduplicated] for name, (one,) in zip(order, created, strict=True)}


async def fail(engine: Engine, *, key: int, attempt: int, times: int) -> list[str]:
    """Report the failure of one attempt many times at once; the verdicts."""
    outcome = Failed(key, attempt, "failed", backoff_ms=0)
    settled = await asyncio.gather(*(engine.settle([outcome]) for _ in range(times)))
    return [judged.verdict.value for done in settled for judged in done.judged]


async def complete(engine: Engine, *, keys: list[int], attempt: int) -> list[str]:
    """Complete jobs one by one; the verdicts."""
    settled = [await engine.settle([Complete(key, attempt)]) for key in keys]
    return [done.judged[0].verdict.value for done in settled]


async def cancel(engine: Engine, *, keys: list[int]) -> list[str]:
    """Cancel jobs one by one; the verdicts."""
    return [(await engine.cancel([key]))[0].verdict.value for key in keys]


async def sweep(engine: Engine, *, holder: str, times: int) -> int:
    """Sweep again and again; how many leases this process found lapsed."""
    return sum([(await engine.sweep(holder)).lapsed for _ in range(times)])


async def extend(engine: Engine, *, keys: list[int], attempt: int, lease_ms: int) -> list[str]:
    """Extend leases one by one; what was told of each."""
    statuses = [await engine.extend([Lease(key, attempt)], lease_ms) for key in keys]
    return [status.value for (status,) in statuses]


async def fire(engine: Engine, *, type: str, triggers: list[str], points: int, seed: int) -> dict[str, int]:
    """Let points of several triggers pass at once, in an order of one's own; the keys created."""
    order = random.Random(seed)
    created: dict[str, int] = {}
    for point in range(1, points + 1):
        chosen = order.sample(triggers, len(triggers))
        fires = [Fire(name, point, NewJob(type, dedupe_key=f"{name} {point}")) for name in chosen]
        fired = await engine.fire(fires)
        created |= {f"{name} {point}": one.created.key for name, one in zip(chosen, fired, strict=True) if one.created}
    return created


async def subscribe(engine: Engine, *, types: list[str], worker: str) -> list[str]:
    """Subscribe to types; the groups."""
    return [await engine.subscribe(type, worker) for type in types]


async def open_and_create(engine: Engine, *, type: str) -> int:
    """Create one job; its key."""
    return (await engine.create([NewJob(type)]))[0].key


ROLES: dict[str, Role] = {
    role.__name__: role
    for role in (
        drain,
        grab,
        drain_in_turns,
        create_deduplicated,
        fail,
        complete,
        cancel,
        sweep,
        extend,
        fire,
        subscribe,
        open_and_create,
        run_handed,
        create_one_by_one,
    )
}


async def main(role: str, url: str, arguments: dict[str, Any]) -> None:
    """Open, wait for the signal, act, answer. `ahead_ms` sets the clock of an engine that uses the host's."""
    ahead_ms = int(arguments.pop("ahead_ms", 0))
    engine = open_engine(url, clock=lambda: time.time_ns() // 1_000_000 + ahead_ms)
    opens_late = role == "open_and_create"
    if not opens_late:
        await engine.open()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    if opens_late:
        await engine.open()
    answer = await ROLES[role](engine, **arguments)
    await engine.close()
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
