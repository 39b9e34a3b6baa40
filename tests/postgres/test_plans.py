"""Hot statements read what they need, by the index that was made for it, whatever the planner believes of the tables.

Counted by the server itself while the real functions run, not read from a plan.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Final, NamedTuple

import pytest

from everwork.core.leasing import Lease
from everwork.core.limits import LIST_SCAN_MAX, PROMOTE_MAX
from everwork.core.outcome import Complete, Failed, Release
from everwork.core.queries import JobFilter, Order, cursor_at
from everwork.core.states import State
from everwork.engines.postgres.claims import Mark
from everwork.engines.postgres.engine import PostgresEngine
from tests.conformance.test_hand_over import Taker
from tests.factories import TYPE, a_new_job, asked
from tests.postgres.big_store import BUSY, FINISHED, FUTURE, READY, Watched, fill, made, make_empty, watch
from tests.postgres.conftest import opened
from tests.stores import START_MS, VirtualClock, drop_store, url_of

SOME: Final = BUSY[100:150]
SLACK: Final = 400
"""Index entries beside those wanted: mostly what earlier tests have left, dead but not vacuumed."""


class Hot(NamedTuple):
    """A call, the index that leads it, and how many entries of any one index it may read."""

    call: Callable[[PostgresEngine], Awaitable[object]]
    leader: str
    entries_max: int


async def claim_behind_a_mark(engine: PostgresEngine) -> None:
    position = (0, START_MS, READY[500])
    engine._store.marks[TYPE, "", ()] = Mark(position=position, front_from=1e15)
    jobs = (await asked(engine, 100)).jobs
    engine._store.marks.clear()
    assert [job.key for job in jobs] in ([], list(READY[501:601]))


async def create_beside_a_worker(engine: PostgresEngine) -> None:
    taker = Taker()
    await asked(engine, 1, type="quiet", receiver=taker)
    await engine.create([a_new_job(type="quiet")])


HOT: Final = {
    "claim": Hot(lambda e: asked(e, 100), "live_ready", 100 + SLACK),
    "claim of one": Hot(lambda e: asked(e, 1), "live_ready", SLACK),
    "claim behind a mark": Hot(claim_behind_a_mark, "live_ready", 100 + SLACK),
    "claim by turns": Hot(lambda e: asked(e, 100, type="fair"), "live_ready", 100 + SLACK),
    "claim by turns for tenants": Hot(lambda e: asked(e, 20, type="fair", tenants=("<default>",)), "live_ready", SLACK),
    "claim beside lanes at their limit": Hot(lambda e: asked(e, 100, type="capped"), "live_busy", SLACK),
    "next due": Hot(lambda e: asked(e, 1, tenants=("nobody",)), "live_future", SLACK),
    "promote": Hot(lambda e: asked(e, 10, type="due"), "live_future", 2 * PROMOTE_MAX + SLACK),
    "complete": Hot(lambda e: e.settle([Complete(key, 1) for key in SOME]), "live_pkey", len(SOME) + SLACK),
    "release": Hot(lambda e: e.settle([Release(key, 1) for key in SOME]), "live_pkey", 3 * len(SOME) + SLACK),
    "fail": Hot(lambda e: e.settle([Failed(key, 1, "boom") for key in SOME]), "live_pkey", 4 * len(SOME) + SLACK),
    "extend": Hot(lambda e: e.extend([Lease(key, 1) for key in SOME], 1_000), "live_pkey", 2 * len(SOME) + SLACK),
    "check": Hot(lambda e: e.check([Lease(key, 1) for key in SOME]), "live_pkey", len(SOME) + SLACK),
    "create": Hot(lambda e: e.create([a_new_job(dedupe_key=str(n)) for n in range(50)]), "dedupe_pkey", 100 + SLACK),
    "create of one": Hot(lambda e: e.create([a_new_job()]), "lane_queue_id_tenant_limit_key_key", SLACK),
    "cancel": Hot(lambda e: e.cancel(FUTURE[:50]), "live_pkey", 2 * 50 + SLACK),
    "requeue": Hot(lambda e: e.requeue([*FINISHED[:50]]), "job_pkey", 3 * 50 + SLACK),
    "delete": Hot(lambda e: e.delete([*FINISHED[:50]]), "finished_pkey", 5 * 50 + SLACK),
    "get": Hot(lambda e: e.get([*FUTURE[:20], *SOME[:20]]), "job_pkey", 40 + SLACK),
    "explain": Hot(lambda e: e.explain(READY[50]), "live_ready", 60 + SLACK),
    "registered": Hot(lambda e: e.registered("worker-off"), "registry_pkey", SLACK),
    "dump": Hot(lambda e: e.dump(0, 100), "job_pkey", 400 + SLACK),
}  # fmt: skip
LISTS: Final = {
    "list of all": Hot(lambda e: e.find(JobFilter(), 50), "job_pkey", 1_000),
    "list of completed": Hot(
        lambda e: e.find(JobFilter(type=TYPE, states=frozenset({State.COMPLETED})), 50), "finished_pkey", 1_000
    ),
    "list of processing": Hot(
        lambda e: e.find(JobFilter(type=TYPE, states=frozenset({State.PROCESSING})), 50), "live_busy", 1_000
    ),
    "list of what is due": Hot(lambda e: e.find(JobFilter(type=TYPE, order=Order.DUE), 50), "live_ready", 1_000),
    "list of what is scheduled": Hot(
        lambda e: e.find(JobFilter(type=TYPE, order=Order.DUE), 50, cursor_at(START_MS + 1, 0)), "live_future", 1_000
    ),
    "list of the latest failures": Hot(
        lambda e: e.find(JobFilter(type="capped", order=Order.FAILED), 50), "finished_failed", 1_000
    ),
    "list by correlation id": Hot(
        lambda e: e.find(JobFilter(type=TYPE, correlation_id="order-1520"), 50), "job_correlation", SLACK
    ),
    "list by dedupe key": Hot(
        lambda e: e.find(JobFilter(type=TYPE, tenants=("<default>",), dedupe_key="1520"), 50), "dedupe_pkey", SLACK
    ),
    "list by a text in the variables": Hot(
        lambda e: e.find(JobFilter(variables_text="nowhere"), 50), "job_pkey", 2 * LIST_SCAN_MAX // 3 + SLACK
    ),
    # Promotions that earlier tests have taken back are dead entries at the head of their queue.
    "oldest": Hot(lambda e: e.oldest(), "live_ready", PROMOTE_MAX + SLACK),
    "oldest of what is not promoted": Hot(lambda e: e.oldest(), "live_future", PROMOTE_MAX + SLACK),
}
SWEEP: Final = Hot(lambda e: e.sweep("s"), "live_busy", 2_100)
"""Every leased job is looked at, because no index holds the lease; and a step of a thousand finished ones."""
EVERY: Final = {
    **HOT, **LISTS, "sweep": SWEEP, "expiry": SWEEP._replace(leader="live_expiry"),
    "dead letters": SWEEP._replace(leader="finished_failed"),
    "create of one beside a waiting worker": Hot(create_beside_a_worker, "parked_until", SLACK),
}  # fmt: skip


@pytest.fixture(scope="module", params=["analysed", "statistics of empty tables"])
def big_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A filled store for all tests of this file: whatever they do is taken back."""
    place = url_of("postgres", tmp_path_factory.mktemp("big"))
    url = f"{place}_big"  # Not the store that is dropped after one test.
    yield made(url, analyse=request.param == "analysed")
    drop_store(url)


@pytest.mark.parametrize("name", EVERY)
async def test_a_hot_call_reads_few_entries_of_the_right_index_and_no_table_from_end_to_end(
    big_url: str, clock: VirtualClock, name: str
) -> None:
    async with opened(f"{big_url}&pool=1", clock) as engine:
        assert waste_of(EVERY[name], await read_by(engine, EVERY[name])) == {}


@pytest.mark.parametrize("name", HOT)
async def test_behind_a_pooler_a_hot_call_reads_no_more(big_url: str, clock: VirtualClock, name: str) -> None:
    async with opened(f"{big_url}&pool=1&notify=off", clock) as engine:
        assert waste_of(EVERY[name], await read_by(engine, EVERY[name])) == {}


async def test_plans_that_were_made_when_the_store_was_empty_stay_good(url: str, clock: VirtualClock) -> None:
    await make_empty(url)
    async with opened(f"{url}&pool=1", clock) as engine:
        for hot in EVERY.values():
            await read_by(engine, hot)
        fill(url)
        wasteful = {name: waste for name, hot in EVERY.items() if (waste := waste_of(hot, await read_by(engine, hot)))}
        assert wasteful == {}


async def read_by(engine: PostgresEngine, hot: Hot) -> Watched:
    """What a call has read; the connection stays the same, with the plans that it remembers."""
    before = engine._store.connections
    watched = watch(engine)
    watched._idle, before._idle = before._idle, []
    engine._store.sweep_state.after = (0, 0, 0)
    await hot.call(engine)
    return watched


def waste_of(hot: Hot, watched: Watched) -> dict[str, int]:
    """Tables read from end to end, indexes of which too much was read, and the right one if it was not used."""
    tables = {
        name: watched.entries[name] for name in ("live", "job", "finished", "history", "dedupe") if watched.scans[name]
    }
    counted = {name: count for name, count in watched.entries.items() if not name.startswith(("count_", "work_"))}
    unused = {} if watched.scans[hot.leader] else {hot.leader: 0}
    return {**tables, **{name: count for name, count in counted.items() if count > hot.entries_max}, **unused}
