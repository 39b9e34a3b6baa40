"""Processes on one store, all at once: counts are exact, one wins, the others are told."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import Final

from everwork.codec.json import encode_policy
from everwork.core.job import NewJob
from everwork.core.leasing import Demand, Lease, LeaseStatus
from everwork.core.outcome import Release
from everwork.core.policy import TypePolicy
from everwork.core.states import State
from everwork.engines.contract import Engine
from tests.races.concurrent import act_at_once

TYPE: Final = "race"


async def _states(engine: Engine) -> dict[State, int]:
    return {one.state: one.jobs for one in await engine.count()}


def most_at_once(held: list[list[int]], jobs: set[int]) -> int:
    """How many of these jobs were held at the same time, at most."""
    moments = sorted(moment for a, b, key in held if key in jobs for moment in ((a, 1), (b, -1)))
    return max(accumulate(change for _, change in moments))


async def _jobs(engine: Engine) -> int:
    return sum((await _states(engine)).values())


async def test_eight_processes_run_each_of_20000_jobs_exactly_once(url: str, engine: Engine) -> None:
    created = [one.key for _ in range(4) for one in await engine.create([NewJob(TYPE)] * 5_000)]
    crew = [("drain", {"type": TYPE, "worker": f"worker-{n}", "batch": 50}) for n in range(8)]
    ran = [key for keys in act_at_once(url, crew) for key in keys]
    assert sorted(ran) == created
    assert await _states(engine) == {State.COMPLETED: 20_000}


async def test_jobs_that_are_handed_over_run_once_under_eight_processes(url: str, engine: Engine) -> None:
    """Four processes create jobs one by one, while four others wait for them."""
    creators = [("create_one_by_one", {"type": TYPE, "jobs": 250})] * 4
    workers = [("run_handed", {"type": TYPE, "worker": f"worker-{n}", "jobs": 1_000}) for n in range(4)]
    answers = act_at_once(url, [*workers, *creators])
    handed = [key for taken, _ in answers[:4] for key in taken]
    leased = [key for _, taken in answers[:4] for key in taken]
    assert sorted(handed + leased) == sorted(key for keys in answers[4:] for key in keys)
    assert handed
    assert await _states(engine) == {State.COMPLETED: 1_000}


async def test_a_limit_of_five_per_key_holds_exactly_under_eight_processes(url: str, engine: Engine) -> None:
    await engine.set_policy(TYPE, encode_policy(TypePolicy(max_running_per_key=5)))
    keys = ("a", "b", "c", "d")
    created = await engine.create([NewJob(TYPE, limit_key=key) for _ in range(100) for key in keys])
    key_of = {one.key: key for one, key in zip(created, keys * 100, strict=True)}
    crew = [{"type": TYPE, "worker": f"worker-{n}", "batch": 3} for n in range(8)]
    grabbed = [job for jobs in act_at_once(url, [("grab", one) for one in crew]) for job in jobs]
    assert Counter(key_of[job] for job in grabbed) == dict.fromkeys(keys, 5)

    await engine.settle([Release(job, 1) for job in grabbed])
    answers = act_at_once(url, [("drain_in_turns", one | {"jobs": 400}) for one in crew])
    held = [one for answer in answers for one in answer]
    assert sorted(key for _, _, key in held) == sorted(key_of)
    assert {key: most_at_once(held, {job for job, its in key_of.items() if its == key}) <= 5 for key in keys} == (
        dict.fromkeys(keys, True)
    )


async def test_eight_processes_with_the_same_dedupe_keys_get_the_same_jobs(url: str, engine: Engine) -> None:
    names = [f"name-{number}" for number in range(100)]
    answers = act_at_once(url, [("create_deduplicated", {"type": TYPE, "names": names, "seed": n}) for n in range(8)])
    keys = [{name: answer[name][0] for name in names} for answer in answers]
    assert all(one == keys[0] for one in keys)
    assert len(set(keys[0].values())) == 100
    assert Counter(answer[name][1] for answer in answers for name in names) == {False: 100, True: 700}
    assert await _states(engine) == {State.PENDING: 100}


async def test_a_hundred_concurrent_failures_of_one_attempt_give_one_retry(url: str, engine: Engine) -> None:
    await engine.create([NewJob(TYPE)])
    (job,) = (await engine.activate([Demand(TYPE, "worker", 1)])).jobs
    crew = [("fail", {"key": job.key, "attempt": job.attempt, "times": 25})] * 4
    verdicts = Counter(verdict for answer in act_at_once(url, crew) for verdict in answer)
    again = (await engine.activate([Demand(TYPE, "worker", 10)])).jobs
    assert verdicts == {"accepted": 1, "repeated": 99}
    assert [(one.attempt, one.attempts) for one in again] == [(2, 2)]
    assert [event.kind for event in await engine.history(job.key)] == ["fail"]


async def test_processes_that_open_a_new_store_at_once_all_succeed(url: str) -> None:
    keys = act_at_once(url, [("open_and_create", {"type": TYPE})] * 4)
    assert len(set(keys)) == 4


async def test_cancel_against_complete_has_one_winner_and_the_other_is_told(url: str, engine: Engine) -> None:
    await engine.create([NewJob(TYPE)] * 300)
    jobs = (await engine.activate([Demand(TYPE, "worker", 300)])).jobs
    keys = [job.key for job in jobs]
    completed, cancelled = act_at_once(url, [("complete", {"keys": keys, "attempt": 1}), ("cancel", {"keys": keys})])
    states = [job.state if job else None for job in await engine.get(keys)]
    won = {State.COMPLETED: ("accepted", "wrong state"), State.CANCELLED: ("wrong state", "accepted")}
    assert list(zip(completed, cancelled, strict=True)) == [won[state] for state in states if state]
    assert await _states(engine) == dict(Counter(state for state in states if state))


async def test_concurrent_sweeps_take_each_lapsed_lease_away_once(url: str, engine: Engine) -> None:
    await engine.create([NewJob(TYPE)] * 200)
    jobs = (await engine.activate([Demand(TYPE, "worker", 200, lease_ms=100)])).jobs
    crew = [("sweep", {"holder": f"sweeper-{n}", "times": 20, "ahead_ms": 60_000}) for n in range(4)]
    assert sum(act_at_once(url, crew)) == 200
    assert [[event.kind for event in await engine.history(job.key)] for job in jobs] == [["lapse"]] * 200


async def test_extend_against_sweep_keeps_the_leases_that_were_told_to_be_held(url: str, engine: Engine) -> None:
    await engine.create([NewJob(TYPE)] * 200)
    keys = [job.key for job in (await engine.activate([Demand(TYPE, "worker", 200, lease_ms=100)])).jobs]
    extender = ("extend", {"keys": keys, "attempt": 1, "lease_ms": 3_600_000, "ahead_ms": 60_000})
    sweeper = ("sweep", {"holder": "sweeper", "times": 20, "ahead_ms": 60_000})
    told, lapsed = act_at_once(url, [extender, sweeper])
    states = [job.state if job else None for job in await engine.get(keys)]
    assert states == [State.PROCESSING if one == "held" else State.PENDING for one in told]
    assert lapsed == told.count("lost")


async def test_eight_processes_that_fire_the_same_points_let_each_pass_once(url: str, engine: Engine) -> None:
    rings = [f"t{number}" for number in range(8)]
    sets = [["t0"], ["t0"], *([rings[at], rings[(at + 1) % 8], rings[(at + 4) % 8]] for at in range(6))]
    crew = [("fire", {"type": TYPE, "triggers": names, "points": 50, "seed": at}) for at, names in enumerate(sets)]
    fired = [key for answer in act_at_once(url, crew) for key in answer.items()]
    assert Counter(point for point, _ in fired) == {f"{name} {n}": 1 for name in rings for n in range(1, 51)}
    assert len({key for _, key in fired}) == await _jobs(engine) == 400


async def test_of_worker_classes_that_subscribe_at_once_one_owns_each_default_group(url: str, engine: Engine) -> None:
    types = [f"{TYPE}-{number}" for number in range(20)]
    workers = ["a", "a", "b", "c"]
    told = act_at_once(url, [("subscribe", {"types": types, "worker": worker}) for worker in workers])
    owners = {entry.name: entry.body for entry in await engine.registered("owner")}
    assert told == [["" if owners[type] == worker else worker for type in types] for worker in workers]


async def test_an_old_attempt_in_the_same_batch_as_the_live_one_does_not_hold(engine: Engine) -> None:
    await engine.create([NewJob(TYPE)])
    (old,) = (await engine.activate([Demand(TYPE, "worker-1", 1)])).jobs
    await engine.settle([Release(old.key, old.attempt)])
    (live,) = (await engine.activate([Demand(TYPE, "worker-2", 1)])).jobs
    statuses = await engine.extend([Lease(old.key, old.attempt), Lease(live.key, live.attempt)], 1_000)
    assert statuses == [LeaseStatus.LOST, LeaseStatus.HELD]
