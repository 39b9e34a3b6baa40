"""subscribe: the first worker class of a type owns the default group, each further one has a group of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from everwork.engines.values import Registered
from tests.factories import TYPE, a_new_job, a_pending_job, leased_keys

if TYPE_CHECKING:
    from everwork.engines.contract import Engine


async def groups_of(engine: Engine, type: str = TYPE) -> tuple[str, ...]:
    """The groups of a type that the engine must have seen."""
    [info] = [info for info in await engine.types() if info.type == type]
    return info.groups


async def test_the_first_worker_owns_the_default_group_and_the_next_has_its_own(engine: Engine) -> None:
    assert [await engine.subscribe(TYPE, worker) for worker in ("mail", "audit", "stats")] == ["", "audit", "stats"]
    assert await groups_of(engine) == ("audit", "stats")


async def test_a_worker_is_told_the_same_group_whenever_it_asks(engine: Engine) -> None:
    first = [await engine.subscribe(TYPE, worker) for worker in ("mail", "audit")]
    assert [await engine.subscribe(TYPE, worker) for worker in ("mail", "audit", "audit", "mail")] == first + first[
        ::-1
    ]
    assert await groups_of(engine) == ("audit",)


async def test_types_are_owned_each_by_itself_and_appear_with_their_first_worker(engine: Engine) -> None:
    assert await engine.subscribe("a", "mail") == ""
    assert await engine.subscribe("b", "audit") == ""
    assert [(info.type, info.groups) for info in await engine.types()] == [("a", ()), ("b", ())]


async def test_jobs_have_a_copy_for_each_worker_that_subscribed_before(engine: Engine) -> None:
    await engine.subscribe(TYPE, "mail")
    early = await a_pending_job(engine)
    await engine.subscribe(TYPE, "audit")
    late = await a_pending_job(engine)
    assert await leased_keys(engine) == [early.key, late.key]
    assert len(await leased_keys(engine, group="audit")) == 1


async def test_jobs_that_waited_before_any_worker_go_to_the_first(engine: Engine) -> None:
    [job] = await engine.create([a_new_job()])
    group = await engine.subscribe(TYPE, "mail")
    assert await leased_keys(engine, group=group) == [job.key]


async def test_the_registry_says_who_owns_the_default_group(engine: Engine) -> None:
    await engine.subscribe(TYPE, "mail")
    await engine.subscribe(TYPE, "audit")
    assert await engine.registered("owner") == [Registered("owner", TYPE, "mail", None)]


async def test_a_group_that_was_taken_away_goes_to_the_next_worker_without_one(engine: Engine) -> None:
    await engine.subscribe(TYPE, "mail")
    await engine.subscribe(TYPE, "audit")
    await engine.unregister("owner", TYPE)
    assert [await engine.subscribe(TYPE, worker) for worker in ("audit", "post", "mail")] == ["audit", "", "mail"]


async def test_the_owner_stays_the_owner_when_a_group_of_its_name_is_added(engine: Engine) -> None:
    await engine.subscribe(TYPE, "mail")
    await engine.add_group(TYPE, "mail")
    assert await engine.subscribe(TYPE, "mail") == ""


async def test_a_worker_whose_group_was_dropped_has_it_again(engine: Engine) -> None:
    await engine.subscribe(TYPE, "mail")
    await engine.subscribe(TYPE, "audit")
    await engine.drop_group(TYPE, "audit")
    assert await engine.subscribe(TYPE, "audit") == "audit"
    await a_pending_job(engine)
    assert len(await leased_keys(engine, group="audit")) == 1


async def test_of_workers_that_ask_at_once_one_owns_the_default_group(engine: Engine) -> None:
    workers = [f"worker-{number % 4}" for number in range(16)]
    groups = await asyncio.gather(*(engine.subscribe(TYPE, worker) for worker in workers))
    [owner] = await engine.registered("owner")
    assert groups == ["" if worker == owner.body else worker for worker in workers]
    assert await groups_of(engine) == tuple(sorted({group for group in groups if group}))
