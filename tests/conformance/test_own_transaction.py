"""create_in and complete_in: what is done inside the user's own transaction is one step with the user's work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from everwork.core.leasing import Created, Judged, Verdict
from everwork.core.outcome import Complete, Failed
from everwork.core.states import State
from everwork.exceptions import InvalidInput
from tests.conformance.observe import counted, every_job, kinds, seen, sight
from tests.conformance.own_transactions import DRIVERS, OPENINGS, SOME, SYNCHRONOUS
from tests.factories import (
    TYPE,
    a_new_job,
    a_pending_job,
    a_processing_job,
    asked,
    judged,
    leased_keys,
    settled,
    the_job,
    the_state,
)
from tests.stores import EVERYTHING, SECOND_MS, url_of

if TYPE_CHECKING:
    from pathlib import Path

    from everwork.engines.contract import Engine
    from tests.conformance.own_transactions import Own
    from tests.stores import VirtualClock

T = TypeVar("T")

with_every_driver = pytest.mark.parametrize(("engine_name", "driver"), DRIVERS)
with_synchronous_drivers = pytest.mark.parametrize(
    ("engine_name", "driver"), [pair for pair in DRIVERS if pair[1] in SYNCHRONOUS]
)

# Rules of the engine, which drivers cannot change: with one driver of each sort.
with_some_drivers = pytest.mark.parametrize(
    ("engine_name", "driver"), DRIVERS if EVERYTHING else [pair for pair in DRIVERS if pair[1] in SOME]
)

# Where nobody can be told, whoever waits looks by himself all the time.
with_every_driver_that_tells = pytest.mark.parametrize(
    ("engine_name", "driver"), [pair for pair in DRIVERS if not pair[0].endswith("-poll")]
)


Begin = Callable[..., AbstractAsyncContextManager["Own"]]
"""Opens the user's own connection on the store of the engine, in a transaction unless told otherwise."""


@pytest.fixture
def begin(engine_name: str, driver: str, tmp_path: Path) -> Begin:
    """A way to the user's own transaction, which is begun after the test has prepared its jobs."""
    return lambda in_transaction=True: OPENINGS[driver](url_of(engine_name, tmp_path), in_transaction)


# create_in --------------------------------------------------------------------------------------------


@with_every_driver
async def test_after_the_commit_the_job_exists(engine: Engine, begin: Begin, clock: VirtualClock) -> None:
    async with begin() as own:
        [created] = await engine.create_in(own.tx, [a_new_job(variables='{"to":"Zoë"}', priority=3)])
        assert await engine.get([created.key]) == [None]
        await own.commit()
    job = await the_job(engine, created.key)
    assert (job.state, job.variables, job.priority) == (State.PENDING, '{"to":"Zoë"}', 3)
    assert (job.created_at_ms, job.run_at_ms, job.max_attempts) == (clock.now_ms, clock.now_ms, 5)


@with_every_driver
async def test_after_a_rollback_there_is_no_job_and_no_count(engine: Engine, begin: Begin) -> None:
    async with begin() as own:
        created = await engine.create_in(own.tx, [a_new_job(dedupe_key="d"), a_new_job(type="never-seen")])
        await own.rollback()
    assert await engine.get([job.key for job in created]) == [None, None]
    assert await counted(engine) == {}
    assert not (await engine.create([a_new_job(dedupe_key="d")]))[0].deduplicated


@with_every_driver
async def test_the_job_and_the_users_own_work_are_one_step(engine: Engine, begin: Begin) -> None:
    async with begin() as own:
        await own.run("CREATE TEMPORARY TABLE orders (id INTEGER PRIMARY KEY)")
        await own.run("INSERT INTO orders VALUES (1)")
        [created] = await engine.create_in(own.tx, [a_new_job()])
        await own.run("INSERT INTO orders VALUES (2)")
        await own.commit()
    assert await the_state(engine, created.key) is State.PENDING


@with_every_driver_that_tells
async def test_nobody_is_woken_and_nothing_is_leased_before_the_commit(engine: Engine, begin: Begin) -> None:
    mark = await quiet_mark(engine)
    async with begin() as own:
        [created] = await engine.create_in(own.tx, [a_new_job()])
        assert not await engine.wait([TYPE], 150, since=mark)
        await own.commit()
    assert await engine.wait([TYPE], 10_000, since=mark)
    assert await leased_keys(engine) == [created.key]


async def quiet_mark(engine: Engine) -> int:
    """A mark after which nothing rings by itself: an engine may tell of its own first steps, once."""
    for _ in range(20):
        mark = engine.mark()
        if not await engine.wait([TYPE], 150, since=mark):
            return mark
    raise AssertionError("wake-ups never end")


@with_some_drivers
async def test_a_batch_is_answered_in_its_order_with_dedupe(engine: Engine, begin: Begin) -> None:
    first = await a_pending_job(engine, dedupe_key="known")
    batch = [a_new_job(dedupe_key="known"), a_new_job(dedupe_key="new"), a_new_job(dedupe_key="new"), a_new_job()]
    async with begin() as own:
        answers = await engine.create_in(own.tx, batch)
        await own.commit()
    assert answers[0] == Created(first.key, True)
    assert answers[2] == Created(answers[1].key, True)
    assert first.key < answers[1].key < answers[3].key
    assert len(await every_job(engine)) == 3


@with_some_drivers
async def test_each_group_gets_its_copy(engine: Engine, begin: Begin) -> None:
    await engine.add_group(TYPE, "audit")
    async with begin() as own:
        [created] = await engine.create_in(own.tx, [a_new_job()])
        await own.commit()
    [copy] = (await asked(engine, group="audit")).jobs
    assert (await the_job(engine, copy.key)).copy_of == created.key


@with_every_driver
async def test_two_steps_of_one_transaction_see_each_other(engine: Engine, begin: Begin) -> None:
    async with begin() as own:
        [first] = await engine.create_in(own.tx, [a_new_job(dedupe_key="d")])
        [again] = await engine.create_in(own.tx, [a_new_job(dedupe_key="d")])
        await own.commit()
    assert again == Created(first.key, True)


@with_some_drivers
async def test_a_delay_counts_from_the_engines_now(engine: Engine, begin: Begin, clock: VirtualClock) -> None:
    async with begin() as own:
        [created] = await engine.create_in(own.tx, [a_new_job(delay_ms=SECOND_MS)])
        await own.commit()
    assert await leased_keys(engine) == []
    clock.advance(ms=SECOND_MS)
    assert await leased_keys(engine) == [created.key]


@with_some_drivers
async def test_nothing_to_create_is_nothing(engine: Engine, begin: Begin) -> None:
    async with begin() as own:
        assert await engine.create_in(own.tx, []) == []
        assert await engine.complete_in(own.tx, []) == []


# complete_in -------------------------------------------------------------------------------------------


@with_every_driver
async def test_after_the_commit_the_attempt_is_complete_and_settling_it_is_a_repeat(
    engine: Engine, begin: Begin
) -> None:
    job = await a_processing_job(engine)
    async with begin() as own:
        answers = await engine.complete_in(own.tx, [Complete(job.key, 1, '{"sent":"Zoë"}')])
        assert await the_state(engine, job.key) is State.PROCESSING
        await own.commit()
    before = await sight(engine, job.key)
    assert answers == [Judged(Verdict.ACCEPTED, State.PROCESSING)]
    assert before.job is not None
    assert (before.job.state, before.job.result) == (State.COMPLETED, '{"sent":"Zoë"}')
    assert (await judged(engine, Complete(job.key, 1))).verdict is Verdict.REPEATED
    assert await sight(engine, job.key) == before


@with_every_driver
async def test_after_a_rollback_the_attempt_is_as_live_as_before(engine: Engine, begin: Begin) -> None:
    job = await a_processing_job(engine)
    before = await sight(engine, job.key)
    async with begin() as own:
        await engine.complete_in(own.tx, [Complete(job.key, 1, '"lost"')])
        await own.rollback()
    assert await sight(engine, job.key) == before
    assert (await settled(engine, Complete(job.key, 1, '"done"'))).result == '"done"'


@with_every_driver
async def test_after_a_rollback_the_attempt_may_fail_instead(engine: Engine, begin: Begin) -> None:
    job = await a_processing_job(engine)
    async with begin() as own:
        await engine.complete_in(own.tx, [Complete(job.key, 1)])
        await own.rollback()
    await settled(engine, Failed(job.key, 1, "boom"))
    assert await kinds(engine, job.key) == [(1, "fail")]


@with_some_drivers
async def test_events_of_a_completion_are_created_with_the_commit(engine: Engine, begin: Begin) -> None:
    job = await a_processing_job(engine)
    async with begin() as own:
        await engine.complete_in(own.tx, [Complete(job.key, 1, None, (a_new_job(type="next"),))])
        assert len(await every_job(engine)) == 1
        await own.commit()
    assert [job.type for job in await every_job(engine)] == ["next", TYPE]


@with_some_drivers
async def test_each_completion_of_a_batch_is_judged_by_itself(engine: Engine, begin: Begin) -> None:
    cancelled = await a_processing_job(engine)
    await engine.cancel([cancelled.key])
    retried = await a_processing_job(engine, type="retried")
    await settled(engine, Failed(retried.key, 1, "boom", backoff_ms=0))
    await asked(engine, type="retried")
    good = await a_processing_job(engine)
    batch = [Complete(cancelled.key, 1), Complete(retried.key, 1), Complete(10**9, 1), Complete(good.key, 1)]
    async with begin() as own:
        answers = await engine.complete_in(own.tx, batch)
        await own.commit()
    assert seen(answers) == [
        (Verdict.WRONG_STATE, State.CANCELLED),
        (Verdict.LEASE_LOST, State.PROCESSING),
        (Verdict.NOT_FOUND, None),
        (Verdict.ACCEPTED, State.PROCESSING),
    ]
    states = [await the_state(engine, job.key) for job in (cancelled, retried, good)]
    assert states == [State.CANCELLED, State.PROCESSING, State.COMPLETED]


@with_some_drivers
async def test_completing_twice_in_one_transaction_is_a_repeat(engine: Engine, begin: Begin) -> None:
    job = await a_processing_job(engine)
    async with begin() as own:
        first = await engine.complete_in(own.tx, [Complete(job.key, 1, '"first"')])
        again = await engine.complete_in(own.tx, [Complete(job.key, 1, '"again"')])
        await own.commit()
    assert [judged.verdict for judged in first + again] == [Verdict.ACCEPTED, Verdict.REPEATED]
    assert (await the_job(engine, job.key)).result == '"first"'


@with_every_driver
async def test_who_waits_for_a_result_is_woken_by_the_commit(engine: Engine, begin: Begin) -> None:
    job = await a_processing_job(engine)
    async with begin() as own:
        await engine.complete_in(own.tx, [Complete(job.key, 1)])
        mark = engine.mark_finished()
        await own.commit()
    assert await engine.wait_finished(10_000, since=mark)


# Where and how -------------------------------------------------------------------------------------------


@with_every_driver
async def test_an_engine_that_is_not_open_works_in_the_users_transaction_too(engine: Engine, begin: Begin) -> None:
    job = await a_processing_job(engine)
    closed = engine.fresh()
    async with begin() as own:
        [created] = await closed.create_in(own.tx, [a_new_job(type="other")])
        await closed.complete_in(own.tx, [Complete(job.key, 1)])
        await own.commit()
    states = [await the_state(engine, key) for key in (created.key, job.key)]
    assert states == [State.PENDING, State.COMPLETED]


@with_synchronous_drivers
async def test_with_a_synchronous_driver_the_call_never_suspends(engine: Engine, begin: Begin) -> None:
    async with begin() as own:
        [created] = at_once(engine.create_in(own.tx, [a_new_job()]))
        answers = at_once(engine.complete_in(own.tx, [Complete(created.key, 1)]))
    assert seen(answers) == [(Verdict.LEASE_LOST, State.PENDING)]


def at_once(call: Coroutine[Any, Any, T]) -> T:
    """The answer of a call that ends without ever giving way."""
    with pytest.raises(StopIteration) as ended:
        call.send(None)
    answer: T = ended.value.value
    return answer


@pytest.mark.parametrize(("engine_name", "driver"), [pair for pair in DRIVERS if pair[1] not in SYNCHRONOUS])
async def test_an_asynchronous_driver_may_live_in_a_loop_of_its_own(engine: Engine, begin: Begin) -> None:
    async def elsewhere() -> list[Created]:
        async with begin() as own:
            created = await engine.create_in(own.tx, [a_new_job()])
            await own.commit()
            return created

    [created] = await asyncio.to_thread(asyncio.run, elsewhere())
    assert await the_state(engine, created.key) is State.PENDING


@with_every_driver
async def test_a_connection_in_no_transaction_is_refused(engine: Engine, begin: Begin) -> None:
    async with begin(False) as idle:
        with pytest.raises(InvalidInput, match=r"^tx: .*transaction"):
            await engine.create_in(idle.tx, [a_new_job()])
        with pytest.raises(InvalidInput, match=r"^tx: .*transaction"):
            await engine.complete_in(idle.tx, [Complete(1, 1)])
    assert await counted(engine) == {}


@with_every_driver
async def test_a_connection_to_another_store_is_refused(
    engine: Engine, engine_name: str, driver: str, tmp_path: Path
) -> None:
    here = url_of(engine_name, tmp_path)
    other = here.replace("jobs.db", "other.db") if engine_name.startswith("sqlite") else _in_template1(here)
    async with OPENINGS[driver](other, True) as own:
        with pytest.raises(InvalidInput, match=r"^tx: "):
            await engine.create_in(own.tx, [a_new_job()])
    assert await counted(engine) == {}


def _in_template1(url: str) -> str:
    place, _, options = url.partition("?")
    return f"{place.rpartition('/')[0]}/template1?{options}"


@pytest.mark.parametrize("tx", ["connection", 5, object()], ids=["text", "number", "object"])
async def test_what_is_no_connection_is_refused(engine: Engine, tx: object) -> None:
    with pytest.raises(InvalidInput, match=r"^tx: "):
        await engine.create_in(tx, [a_new_job()])
    with pytest.raises(InvalidInput, match=r"^tx: "):
        await engine.complete_in(tx, [Complete(1, 1)])
