"""activate for several callers at once: each demand gets its own share, under its own name."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from everwork.core.leasing import Activation, Demand
from everwork.core.outcome import Complete
from tests.factories import TYPE, a_new_job, a_processing_job, a_scheduled_job, asked, the_job
from tests.stores import MINUTE_MS

if TYPE_CHECKING:
    from everwork.core.job import LeasedJob
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock


def shared_out(answer: Activation) -> list[list[LeasedJob]]:
    """The jobs of each demand."""
    ends = [sum(answer.shares[: number + 1]) for number in range(len(answer.shares))]
    assert (ends[-1] if ends else 0) == len(answer.jobs)
    return [answer.jobs[end - share : end] for end, share in zip(ends, answer.shares, strict=True)]


async def assert_each_holds_its_share(engine: Engine, demands: list[Demand], answer: Activation) -> None:
    """Every job is leased under the name, and to the deadline, of the demand that it was handed to."""
    for demand, share in zip(demands, shared_out(answer), strict=True):
        for leased in share:
            job = await the_job(engine, leased.key)
            assert (job.worker, job.lease_until_ms) == (demand.worker, answer.now_ms + demand.lease_ms)
            assert (leased.type, leased.group, leased.lease_until_ms) == (demand.type, demand.group, job.lease_until_ms)
            assert not demand.tenants or leased.tenant in demand.tenants


async def test_each_demand_gets_its_own_share_of_one_type(engine: Engine) -> None:
    created = await engine.create([a_new_job() for _ in range(6)])
    demands = [Demand(TYPE, f"w{n}", limit, 1_000 + n) for n, limit in enumerate((2, 1, 2, 3, 4))]
    answer = await engine.activate(demands)
    assert answer.shares == (2, 1, 2, 1, 0)
    assert [job.key for job in answer.jobs] == [job.key for job in created]
    await assert_each_holds_its_share(engine, demands, answer)


async def test_shares_stand_in_the_order_of_the_demands_whatever_their_types(engine: Engine) -> None:
    await engine.create([a_new_job(type=type) for type in "aaabbb"])
    demands = [Demand(type, f"w{n}", 2) for n, type in enumerate("bacab")]
    answer = await engine.activate(demands)
    assert answer.shares == (2, 2, 0, 1, 1)
    assert [job.type for job in answer.jobs] == ["b", "b", "a", "a", "a", "b"]
    await assert_each_holds_its_share(engine, demands, answer)


async def test_demands_for_some_tenants_and_for_all_share_one_type(engine: Engine) -> None:
    await engine.create([a_new_job(tenant=tenant) for tenant in ("acme", "birch", "cedar") for _ in range(3)])
    wanted: list[tuple[str, ...]] = [("birch",), (), ("acme", "birch"), ("none",), ("birch",), ()]
    demands = [Demand(TYPE, f"w{n}", 2, 1_000 + n, tenants=tenants) for n, tenants in enumerate(wanted)]
    answer = await engine.activate(demands)
    assert (answer.shares[0], answer.shares[3], max(answer.shares)) == (2, 0, 2)
    assert [job.tenant for job in answer.jobs].count("birch") == 3
    left = (await asked(engine, 10)).jobs
    assert len({job.key for job in (*answer.jobs, *left)}) == len(answer.jobs) + len(left) == 9
    assert left == [] or min(answer.shares[1], answer.shares[5]) == 2
    await assert_each_holds_its_share(engine, demands, answer)


async def test_a_paused_type_among_the_demands_gets_a_share_of_nothing(engine: Engine) -> None:
    await engine.create([a_new_job(type=type) for type in "aabb"])
    await engine.pause("a", True)
    demands = [Demand(type, f"w{n}", 1) for n, type in enumerate("abab")]
    answer = await engine.activate(demands)
    assert answer.shares == (0, 1, 0, 1)
    await assert_each_holds_its_share(engine, demands, answer)


async def test_groups_of_a_type_have_each_their_share(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")
    await engine.create([a_new_job() for _ in range(2)])
    demands = [Demand(TYPE, f"w{n}", 5, group=group) for n, group in enumerate(("audit", "", "nobody", "audit"))]
    answer = await engine.activate(demands)
    assert answer.shares == (2, 2, 0, 0)
    await assert_each_holds_its_share(engine, demands, answer)


@pytest.mark.parametrize("demands", [0, 1, 3])
async def test_demands_in_vain_have_shares_of_nothing(engine: Engine, demands: int) -> None:
    await a_scheduled_job(engine)
    for _ in range(2):  # The second time an engine may know the answer without looking twice.
        assert (await engine.activate([Demand(TYPE, "w", 1)] * demands)).shares == (0,) * demands


async def test_demands_after_an_outcome_have_their_shares_too(engine: Engine) -> None:
    job = await a_processing_job(engine, type="other")
    await engine.create([a_new_job() for _ in range(3)])
    demands = [Demand(TYPE, "w1", 2), Demand("other", "w2", 2), Demand(TYPE, "w3", 2)]
    settled = await engine.settle([Complete(job.key, job.attempt)], demands)
    assert settled.activation.shares == (2, 0, 1)
    await assert_each_holds_its_share(engine, demands, settled.activation)


async def test_outcomes_without_demands_have_no_shares(engine: Engine) -> None:
    job = await a_processing_job(engine)
    assert (await engine.settle([Complete(job.key, job.attempt)])).activation.shares == ()


async def test_two_outcomes_of_one_job_leave_the_shares_as_they_are(engine: Engine) -> None:
    job = await a_processing_job(engine, type="other")
    await engine.create([a_new_job()])
    outcomes = [Complete(job.key, job.attempt)] * 2
    answer = (await engine.settle(outcomes, [Demand("other", "w1", 1), Demand(TYPE, "w2", 1)])).activation
    assert answer.shares == (0, 1)


async def test_lanes_take_turns_between_the_demands_of_one_call(engine: Engine) -> None:
    await engine.create([a_new_job(tenant=tenant) for tenant in "abc" for _ in range(4)])
    answer = await engine.activate([Demand(TYPE, f"w{n}", 1) for n in range(6)])
    assert answer.shares == (1,) * 6
    assert Counter(job.tenant for job in answer.jobs) == {"a": 2, "b": 2, "c": 2}


async def test_the_demands_of_one_call_may_want_leases_of_different_lengths_by_turns(engine: Engine) -> None:
    await engine.create([a_new_job(tenant=tenant, priority=n) for tenant in "abc" for n in range(7)])
    demands = [Demand(TYPE, f"w{n}", 1 + n % 3, 1_000 * (1 + n % 4)) for n in range(12)]
    answer = await engine.activate(demands)
    assert answer.shares == (1, 2, 3) * 3 + (1, 2, 0)
    await assert_each_holds_its_share(engine, demands, answer)


async def test_many_demands_share_a_backlog_that_has_become_due(engine: Engine, clock: VirtualClock) -> None:
    created = await engine.create([a_new_job(delay_ms=MINUTE_MS) for _ in range(150)])
    clock.advance(ms=MINUTE_MS)
    demands = [Demand(TYPE, f"w{n}", 1) for n in range(200)]
    answer = await engine.activate(demands)
    assert answer.shares == (1,) * 150 + (0,) * 50
    assert [job.key for job in answer.jobs] == [job.key for job in created]
    await assert_each_holds_its_share(engine, demands, answer)


async def test_each_tenant_of_many_gets_its_own_jobs_and_those_of_all_get_the_rest(engine: Engine) -> None:
    tenants = [f"t{n}" for n in range(20)]
    await engine.create([a_new_job(tenant=tenant, limit_key=key) for tenant in tenants for key in ("x", "y", None)])
    wanted = [(tenant,) for tenant in tenants] * 2
    demands = [Demand(TYPE, f"w{n}", 1, 1_000 + n, tenants=tenant) for n, tenant in enumerate(wanted)]
    pairs = [Demand(TYPE, f"p{n}", 2, tenants=(tenants[n], tenants[n + 1])) for n in range(0, 10, 2)]
    everybody = [Demand(TYPE, "all", 30)]
    answer = await engine.activate([*demands, *pairs, *everybody])
    assert answer.shares == (1,) * 40 + (2,) * 5 + (10,)
    assert {job.tenant for job in shared_out(answer)[-1]} == set(tenants[10:])
    await assert_each_holds_its_share(engine, [*demands, *pairs, *everybody], answer)


async def test_demands_whose_tenants_overlap_get_no_job_twice(engine: Engine) -> None:
    await engine.create([a_new_job(tenant="acme", limit_key=key) for key in "xyz" for _ in range(4)])
    await engine.create([a_new_job(tenant="birch")])
    wanted = [("acme",), ("acme", "none"), ("acme", "nobody")]
    answer = await engine.activate([Demand(TYPE, f"w{n}", 2, tenants=tenants) for n, tenants in enumerate(wanted)])
    assert answer.shares == (2, 2, 2)
    assert len({job.key for job in answer.jobs}) == 6
    assert {job.tenant for job in answer.jobs} == {"acme"}


async def test_jobs_that_become_due_in_one_call_are_found_by_each_of_their_tenants(
    engine: Engine, clock: VirtualClock
) -> None:
    await engine.create([a_new_job(tenant="acme", delay_ms=MINUTE_MS) for _ in range(1_001)])
    await engine.create([a_new_job(tenant=tenant, delay_ms=MINUTE_MS + 1) for tenant in ("birch", "cedar")])
    clock.advance(ms=2 * MINUTE_MS)
    demands = [Demand(TYPE, tenant, 2, tenants=(tenant,)) for tenant in ("acme", "birch", "cedar")]
    answers = [await engine.activate(demands) for _ in range(2)]
    assert [sum(shares) for shares in zip(*(answer.shares for answer in answers), strict=True)] == [4, 1, 1]
