"""A lapse that another process undoes while an outcome is judged, which takes more than one statement here."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from everwork.core.leasing import Lease, LeaseStatus, Verdict
from everwork.core.outcome import Complete, Failed, kind_of
from everwork.core.states import State
from everwork.service.store_access import StoreAccess
from tests.factories import LEASE_MS, a_processing_job, the_job
from tests.postgres.conftest import opened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everwork.core.outcome import Outcome
    from everwork.engines.postgres.connections import Rows
    from everwork.engines.postgres.engine import PostgresEngine
    from tests.stores import VirtualClock


@pytest.mark.parametrize("outcome", [Complete(1, 1), Failed(1, 1, "no such address")], ids=["complete", "fail"])
@pytest.mark.parametrize("passed", [0, 1], ids=["before the refusal is explained", "while it is explained"])
async def test_an_outcome_is_not_refused_for_good_because_its_lapse_is_undone_meanwhile(
    engine: PostgresEngine, url: str, clock: VirtualClock, passed: int, outcome: Outcome
) -> None:
    job = await a_processing_job(engine)
    clock.advance(ms=LEASE_MS)
    await engine.sweep("sweeper")
    outcome = outcome._replace(key=job.key)
    async with opened(url, clock) as other:
        reclaim_between_reads(engine, other, Lease(job.key, 1), passed + isinstance(outcome, Failed))
        [first] = (await engine.settle([outcome])).judged
        # What was refused because of the lapse may be repeated, as after any lapse; nothing else may be said of it.
        assert first.ok or first.verdict is Verdict.LEASE_LOST
        [last] = (await engine.settle([outcome])).judged
    assert last.ok
    assert [entry.kind for entry in await engine.history(job.key)] == [kind_of(outcome)]
    assert (await the_job(engine, job.key)).attempt == 1


@pytest.mark.parametrize("max_attempts", [1, 5])
async def test_a_lapse_that_several_undo_at_the_same_time_is_undone_once(
    engine: PostgresEngine, url: str, clock: VirtualClock, max_attempts: int
) -> None:
    leases = [Lease((await a_processing_job(engine, max_attempts=max_attempts)).key, 1) for _ in range(20)]
    clock.advance(ms=LEASE_MS)
    await engine.sweep("sweeper")
    async with opened(url, clock) as other:
        calls = [one.reclaim(some, LEASE_MS) for one in (engine, other) for some in (leases, leases[::-1]) * 3]
        answers = await asyncio.gather(*calls)
    assert answers == [[LeaseStatus.HELD] * 20] * 12
    assert ((await engine.stats(1)).hours, await engine.measures(1)) == ([], [])
    assert [(count.state, count.jobs) for count in await engine.count()] == [(State.PROCESSING, 20)]


def reclaim_between_reads(engine: PostgresEngine, other: PostgresEngine, lease: Lease, passed: int) -> None:
    """Let another engine undo the lapse before the read of this number."""
    connections = engine._store.connections
    read, reads = connections.read, 0

    async def interrupted(sql: str, *parameters: object) -> Rows:
        nonlocal reads
        reads += 1
        if reads == passed + 1:
            assert await other.reclaim([lease], LEASE_MS) == [LeaseStatus.HELD]
        return await read(sql, *parameters)

    connections.read = interrupted  # type: ignore[method-assign]


async def test_a_lease_that_lapses_while_it_is_taken_back_is_taken_back(
    engine: PostgresEngine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await a_processing_job(engine)
    clock.advance(ms=LEASE_MS)
    extend = engine.extend

    async def swept_first(leases: Sequence[Lease], lease_ms: int) -> list[LeaseStatus]:
        await engine.sweep("sweeper")
        return await extend(leases, lease_ms)

    monkeypatch.setattr(engine, "extend", swept_first)
    store = StoreAccess(engine, "test")
    assert await store.reclaim_all([Lease(job.key, 1)], LEASE_MS) == [LeaseStatus.HELD]
