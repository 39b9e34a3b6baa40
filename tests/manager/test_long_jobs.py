"""Jobs that take many times their lease run once, whatever their call does to its process; a cancel reaches them."""

from __future__ import annotations

import time

from everwork import State
from everwork.service.jobs import in_process
from tests.manager.conftest import Start
from tests.manager.running import Outside, Said
from tests.stores import at_length

LEASE = 2.0
LEASES = {"sqlite": at_length(10, 3) + 0.1}
"""Several leases on one engine, more than two on the others."""


async def test_a_job_that_takes_many_leases_runs_once_and_a_cancelled_one_stops(
    start: Start, outside: Outside, said: Said, engine_name: str
) -> None:
    await start("Long", "Long", "Long", "Holder", lease=LEASE)
    leases = {"wait": LEASES.get(engine_name, 2.1), "block": 2.1, "gil": 2.1}
    keys = {how: await outside.push("long", how=how, seconds=long * LEASE) for how, long in leases.items()}
    held = await outside.push("hold")
    await said.times(1, "begin", held)
    began = time.monotonic()
    await in_process(outside.service).cancel(held)
    await said.times(1, "cancelled", held)
    print(f"a cancel took {time.monotonic() - began:.2f} s to reach its call")
    assert (await outside.job(held)).state is State.CANCELLED
    jobs = await outside.all_are(State.COMPLETED, keys.values())
    assert {job.attempts for job in jobs} == {1}
    assert [len(said.lines("begin", key)) for key in keys.values()] == [1, 1, 1]
