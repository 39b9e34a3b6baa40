"""Types: deleted on request, refused above the limits, deleted when unused; and the limit on producers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from everwork.codec.json import encode_policy_fields
from everwork.core.job import NewJob
from everwork.core.leasing import Demand, Stamp
from everwork.core.outcome import Complete
from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.exceptions import InvalidInput, NotFound, TooManyRequests
from everwork.service import new_names
from everwork.service.access.principal import Permission, Principal
from everwork.service.admin import Admin
from everwork.service.fleet.entries import APPLICATION
from everwork.service.job_types import TypeLimits, TypeRetention, TypeRules
from everwork.service.jobs import Jobs, in_process
from everwork.service.new_names import ProducerLimits
from everwork.service.policies import Declared, TypeDefaults
from everwork.service.service import JobService
from everwork.service.upkeep import run_upkeep
from everwork.service.verb import Caller
from tests.factories import (
    TYPE,
    Stage,
    a_cancelled_job,
    a_completed_job,
    a_dead_letter,
    a_pending_job,
    a_policy,
    a_processing_job,
    asked,
)
from tests.fleets import WORKER_ID, a_process, a_trigger
from tests.stores import DAY_MS, EVERYTHING, HOUR_MS

if TYPE_CHECKING:
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

WEEKS = 5
NAMES_A_DAY = (100_000 if EVERYTHING else 7_000) // (7 * WEEKS)


def a_caller(id: str = "k1", *permissions: Permission, tenants: tuple[str, ...] = ()) -> Caller:
    """The holder of such a key."""
    return Caller(Principal(id, "ann", frozenset(permissions or [Permission.ALL]), tenants), "10.0.0.7")


@pytest.fixture
def admin(service: JobService) -> Admin:
    """An administrator."""
    return Admin(service, service.key_ring(), a_caller())


async def known(engine: Engine) -> list[str]:
    return [info.type for info in await engine.types()]


# delete_type --------------------------------------------------------------------------------------


async def test_a_type_is_deleted_with_its_finished_jobs_and_everything_that_was_set(
    admin: Admin, engine: Engine
) -> None:
    await a_policy(engine, max_attempts=1)
    await engine.pause(TYPE, True)
    await engine.pause(TYPE, False)
    for stage in (a_completed_job, a_dead_letter, a_cancelled_job):
        await stage(engine)
    other = await a_completed_job(engine, type="other")
    assert await admin.delete_type(TYPE) == 3
    assert await known(engine) == ["other"]
    assert [job.key for job in (await engine.find(JobFilter(), 10)).jobs] == [other.key]
    with pytest.raises(NotFound, match="type 'email-send' not found"):
        await admin.delete_type(TYPE)


@pytest.mark.parametrize("stage", [a_pending_job, a_processing_job])
async def test_a_type_with_unfinished_jobs_is_not_deleted(admin: Admin, engine: Engine, stage: Stage) -> None:
    await stage(engine)
    with pytest.raises(InvalidInput, match="type: 'email-send' has 1 unfinished job; cancel them first"):
        await admin.delete_type(TYPE)
    assert await known(engine) == [TYPE]


async def test_a_type_with_a_schedule_is_not_deleted(admin: Admin, engine: Engine) -> None:
    trigger = await a_trigger(engine)
    await asked(engine, type=trigger.type)
    with pytest.raises(InvalidInput, match="has a schedule: trigger nightly-report; delete its worker first"):
        await admin.delete_type(trigger.type)


async def test_a_type_with_running_workers_is_not_deleted(admin: Admin, engine: Engine) -> None:
    await asked(engine)
    await a_process(engine, kind=APPLICATION, workers=(), types=(TYPE,))
    with pytest.raises(InvalidInput, match="has running workers: m1/0; stop them first"):
        await admin.delete_type(TYPE)


async def test_a_type_of_the_settings_file_is_not_deleted(engine: Engine) -> None:
    rules = TypeRules(declared=Declared({TYPE: {"max_attempts": 3}}))
    service = JobService(engine, "holder", types=rules)
    await asked(engine)
    with pytest.raises(InvalidInput, match="is configured in the server's settings file; remove it there first"):
        await Admin(service, service.key_ring(), a_caller()).delete_type(TYPE)


# Limits -------------------------------------------------------------------------------------------


class Elapsed:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def a_service(engine: Engine, **rules: Any) -> tuple[JobService, Elapsed]:
    """A service with these limits."""
    service, elapsed = JobService(engine, "holder", types=TypeRules(**rules)), Elapsed()
    service.type_limits = TypeLimits(engine, service.type_rules, elapsed)
    service._creates.open()
    return service, elapsed


async def test_a_store_that_is_full_of_types_refuses_new_ones_and_serves_those_that_it_has(engine: Engine) -> None:
    for number in range(3):
        await asked(engine, type=f"t{number}")
    service, elapsed = a_service(engine, types_max=3)
    jobs = Jobs(service, a_caller("k1", Permission.JOBS, tenants=("acme",)))
    with pytest.raises(TooManyRequests) as full:
        await jobs.create([NewJob("t0", tenant="acme"), NewJob("new", tenant="acme")])
    assert str(full.value) == (
        "type: 'new' is new, and the store has reached its limit of 3 job types; "
        "delete unused types (everwork types delete) or raise max_types"
    )
    with pytest.raises(TooManyRequests):
        await jobs.activate(Demand("new", "w", 1))
    assert len(await jobs.create([NewJob("t2", tenant="acme")])) == 1
    assert await known(engine) == ["t0", "t1", "t2"]
    await engine.delete_type("t1")
    elapsed.seconds += 10
    await jobs.create([NewJob("new", tenant="acme")])
    assert await known(engine) == ["new", "t0", "t2"]


async def test_a_key_adds_a_bounded_number_of_types_in_an_hour_and_others_are_not_affected(engine: Engine) -> None:
    service, elapsed = a_service(engine, new_types_max=2)
    busy, other = Jobs(service, a_caller("k1")), Jobs(service, a_caller("k2"))
    await busy.create([NewJob("a"), NewJob("b"), NewJob("a")])
    with pytest.raises(TooManyRequests, match="added 2 job types within an hour; the limit is 2") as e:
        await busy.create([NewJob("c")])
    assert e.value.retry_after_ms == HOUR_MS
    await busy.create([NewJob("a"), NewJob("b")])
    await other.create([NewJob("c")])
    await busy.create([NewJob("c")])
    elapsed.seconds += 3_600
    await busy.activate(Demand("d", "w", 1))
    assert await known(engine) == ["a", "b", "c", "d"]


async def test_a_caller_that_disconnects_does_not_keep_the_server_from_reading_the_types(engine: Engine) -> None:
    await asked(engine)
    limits = TypeLimits(engine, TypeRules(types_max=1))
    leaves = asyncio.create_task(limits.admit("k1", {TYPE}))
    await asyncio.sleep(0)
    leaves.cancel()
    with suppress(asyncio.CancelledError):
        await leaves
    with pytest.raises(TooManyRequests):
        await limits.admit("k2", {"new"})


async def test_the_events_of_a_completion_cannot_add_types_beyond_the_limit(engine: Engine) -> None:
    service, _ = a_service(engine, types_max=1)
    job = await a_processing_job(engine)
    with pytest.raises(TooManyRequests):
        await Jobs(service, a_caller()).settle([Complete(job.key, 1, events=(NewJob("new"),))])
    assert await known(engine) == [TYPE]


async def test_a_program_that_uses_the_store_directly_has_no_limit(engine: Engine) -> None:
    service, _ = a_service(engine, types_max=1, new_types_max=1)
    await in_process(service).create([NewJob("a"), NewJob("b"), NewJob("c")])
    assert len(await known(engine)) == 3


async def test_the_keys_of_a_tenant_add_a_bounded_number_of_producers_in_an_hour(engine: Engine) -> None:
    service, elapsed = a_service(engine)
    service.producer_limits = ProducerLimits(2, elapsed)
    busy, same, other = (
        Jobs(service, a_caller(id, Permission.JOBS, tenants=(tenant,)))
        for id, tenant in (("k1", "acme"), ("k2", "acme"), ("k3", "other"))
    )
    for n in range(2):
        await busy.create([NewJob("a", tenant="acme")], Stamp(f"p{n}", 1))
    with pytest.raises(TooManyRequests, match="added 2 producers in the last hour; the limit is 2") as e:
        await same.create([NewJob("a", tenant="acme")], Stamp("p2", 1))
    assert e.value.retry_after_ms == HOUR_MS
    await same.create([NewJob("a", tenant="acme")], Stamp("p0", 2))
    await other.create([NewJob("a", tenant="other")], Stamp("p2", 1))
    elapsed.seconds += 3_600
    await same.create([NewJob("a", tenant="acme")], Stamp("p2", 1))
    assert sum(count.jobs for count in await engine.count()) == 5


def test_a_server_remembers_a_bounded_number_of_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_names, "PRODUCERS_MAX", 3)
    limits = ProducerLimits(100)
    for producer in ("a", "b", "c", "a", "d", "e"):
        limits.admit("party", producer)
    assert list(limits._known) == ["a", "d", "e"]


# Retention ----------------------------------------------------------------------------------------


async def test_unused_types_are_forgotten_and_others_stay(engine: Engine, clock: VirtualClock) -> None:
    trigger = await a_trigger(engine)
    for type in ("polled", "mails", "paused", "has-policy", "has-job", trigger.type):
        await asked(engine, type=type)
    await engine.pause("paused", True)
    await a_policy(engine, type="has-policy", max_attempts=2)
    await a_pending_job(engine, type="has-job")
    retention = TypeRetention(engine, "holder")
    assert await retention.forget() == 0
    clock.advance(ms=DAY_MS)
    assert await retention.forget() == 1
    assert await known(engine) == sorted(["mails", "paused", "has-policy", "has-job", trigger.type])
    assert WORKER_ID in trigger.type


async def test_a_type_with_only_the_default_policy_of_the_settings_is_forgotten(
    engine: Engine, clock: VirtualClock
) -> None:
    declared = Declared(defaults={"breaker_failures": 3, "breaker_seconds": 60.0})
    defaults = TypeDefaults(engine, declared)
    await asked(engine)
    await defaults.fill()
    clock.advance(ms=DAY_MS)
    assert await TypeRetention(engine, "other").forget() == 0
    assert await TypeRetention(engine, "holder", TypeRules(declared=declared)).forget() == 1
    await defaults.fill()
    await asked(engine)
    await defaults.fill()
    [info] = await engine.types()
    assert info.policy == encode_policy_fields(declared.defaults)


async def test_one_process_looks_for_unused_types_in_an_hour(engine: Engine, clock: VirtualClock) -> None:
    await asked(engine)
    clock.advance(ms=DAY_MS)
    await engine.take_turn("types", "elsewhere", HOUR_MS)
    await run_upkeep(engine, "holder", [])
    assert await known(engine) == [TYPE]
    clock.advance(ms=HOUR_MS)
    await run_upkeep(engine, "holder", [])
    assert await known(engine) == []


async def test_a_tick_keeps_unused_types_as_long_as_the_settings_of_its_server(
    engine: Engine, clock: VirtualClock
) -> None:
    server = JobService(engine, "server", types=TypeRules(keep_ms=2 * DAY_MS))
    admin = Admin(server, server.key_ring(), a_caller())
    await asked(engine)
    clock.advance(ms=2 * DAY_MS - 1)
    await admin.tick()
    assert await known(engine) == [TYPE]
    clock.advance(ms=1)
    await admin.tick()
    assert await known(engine) == []
    await server.close()


async def test_a_worker_keeps_unused_types_as_long_as_the_settings_of_a_running_server(
    engine: Engine, clock: VirtualClock
) -> None:
    await asked(engine)
    clock.advance(ms=DAY_MS)
    await TypeRetention(engine, "server", TypeRules(keep_ms=7 * DAY_MS)).tick()
    clock.advance(ms=HOUR_MS)
    await TypeRetention(engine, "worker").tick()
    assert await known(engine) == [TYPE]
    clock.advance(ms=DAY_MS)  # The server has not been running for a while.
    await TypeRetention(engine, "worker").tick()
    assert await known(engine) == []


async def test_names_that_come_and_go_for_weeks_leave_nothing_behind(engine: Engine, clock: VirtualClock) -> None:
    """Types that are polled only once: the store never has more of them than one day's worth."""
    most = 0
    for day in range(7 * WEEKS):
        names = [f"d{day}-{number}" for number in range(NAMES_A_DAY)]
        for start in range(0, len(names), 1_000):
            await engine.activate([Demand(name, "w", 1) for name in names[start : start + 1_000]])
        clock.advance(ms=DAY_MS)
        await run_upkeep(engine, "holder", [])
        most = max(most, len(await engine.types()))
    assert most <= NAMES_A_DAY
    job = await a_completed_job(engine)
    assert job.state is State.COMPLETED
    assert await known(engine) == [TYPE]
