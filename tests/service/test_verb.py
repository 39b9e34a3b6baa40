"""Verbs: what a class may not forget, who may call, what that means for tenants, and what is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial, partialmethod, wraps
from typing import Any

import pytest

from everwork.client.local import LocalJobs
from everwork.core.leasing import Demand, Judged, Verdict
from everwork.core.limits import DEFAULT_TENANT
from everwork.core.outcome import Complete
from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.engines.contract import Engine
from everwork.exceptions import EngineUnavailable, InvalidInput, JobNotFound, PermissionDenied
from everwork.proto import work_pb2
from everwork.server.grpc.outcomes import settle_messages
from everwork.service.access.principal import Permission, Principal
from everwork.service.admin import Admin
from everwork.service.bulk import BulkAction, BulkFilter
from everwork.service.dead_letters import DeadLetterAction, dead_filter
from everwork.service.jobs import Jobs
from everwork.service.service import JobService
from everwork.service.verb import (
    ANY,
    CONFINED,
    CUT,
    IN_PROCESS,
    ITEMS,
    ITSELF,
    OWNER,
    UNBOUND,
    Caller,
    ForCaller,
    Tenants,
    rule_of,
    rules_of,
    verb,
)
from tests.app.waiting import until
from tests.factories import TYPE, a_dead_letter, a_new_job, a_pending_job, a_processing_job, the_state
from tests.fleets import WORKER_ID, a_process, a_trigger

MINE, OTHER = "acme", "umbrella"


def a_caller(*permissions: Permission, tenants: tuple[str, ...] = (), is_person: bool = True) -> Caller:
    """Whoever holds such a key."""
    return Caller(Principal("k1", "ann", frozenset(permissions), tenants), "10.0.0.7", is_person)


async def recorded(service: JobService) -> list[tuple[str, str, dict[str, Any]]]:
    """The audit log, oldest first."""
    return [(one.action, one.target, dict(one.detail)) for one in reversed(await service.audit.last(100))]


# What a class may not forget ---------------------------------------------------------------------------


async def _coroutine(self: Any) -> None:
    """A method that changes something."""


async def _generator(self: Any) -> AsyncIterator[int]:
    """One that does so step by step."""
    yield 1


def _plain(self: Any) -> Awaitable[None]:
    """One that looks harmless."""
    return _coroutine(self)


@wraps(Jobs.cancel)
async def _wrapper(self: Any) -> None:
    """One that looks like a verb."""


class Mixin:
    """A base with a method that says nothing."""

    async def change(self) -> None:
        """Changes something."""


OPEN = {
    "coroutine": _coroutine,
    "generator": _generator,
    "plain": _plain,
    "staticmethod": staticmethod(_coroutine),
    "classmethod": classmethod(_coroutine),
    "property": property(_plain),
    "partial": partialmethod(_plain),
    "wrapper": _wrapper,
}


@pytest.mark.parametrize("method", OPEN.values(), ids=OPEN)
def test_a_class_with_a_public_method_that_does_not_say_who_may_call_it_cannot_be_imported(method: Any) -> None:
    with pytest.raises(TypeError, match=r"Open\.change must declare who may call it, with @verb, or be private"):
        type("Open", (ForCaller,), {"change": method})
    type("Closed", (ForCaller,), {"_change": method})


@pytest.mark.parametrize("bases", [(Mixin, ForCaller), (ForCaller, Mixin), (Jobs, Mixin), (LocalJobs,)], ids=str)
def test_nor_can_one_that_inherits_such_a_method(bases: tuple[type, ...]) -> None:
    with pytest.raises(TypeError, match=r"Open\.(change|settle) must declare who may call it"):
        type("Open", bases, {})


def test_a_subclass_may_say_that_it_is_not_guarded() -> None:
    type("Local", (Jobs, Mixin), {}, is_guarded=False)


def test_a_class_whose_methods_say_it_can_be_imported_and_has_their_rules() -> None:
    class Closed(ForCaller):
        """Two verbs, and what is no method."""

        LIMIT = 5

        @verb(Permission.JOBS, tenants=OWNER, audit="jobs.change")
        async def change(self, key: int) -> None:
            """A verb."""

        @verb(Permission.JOBS_READ, Permission.ADMIN, tenants=UNBOUND)
        async def look(self) -> None:
            """Another."""

    rules = rules_of(Closed)
    assert list(rules) == ["change", "look"]
    assert rules["change"] == rule_of(Closed.change)
    assert (rules["change"].permissions, rules["change"].audit) == ((Permission.JOBS,), ("jobs.change",))
    assert (rules["look"].permissions[1], rules["look"].tenants) == (Permission.ADMIN, UNBOUND)
    assert (Closed.change.__name__, Closed.change.__doc__) == ("change", "A verb.")


def test_a_verb_needs_a_permission_and_one_that_concerns_a_job_an_argument() -> None:
    with pytest.raises(TypeError, match="at least one permission"):
        verb(tenants=ANY)
    for options in ({"tenants": OWNER}, {"tenants": ANY, "audit": "jobs.change"}):
        with pytest.raises(TypeError, match="_coroutine must have an argument"):
            verb(Permission.JOBS, **options)(_coroutine)


def test_only_a_coroutine_can_be_a_verb_and_only_it_knows_which_of_several_actions_it_did() -> None:
    for method in (_generator, _plain):
        with pytest.raises(TypeError, match="must be a coroutine to be a verb"):
            verb(Permission.JOBS, tenants=ANY)(method)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="only the method itself knows"):
        verb(Permission.JOBS, tenants=ANY, audit=("a.on", "a.off"))
    verb(Permission.JOBS, tenants=ANY, audit=("a.on", "a.off"), audited=ITSELF)


@pytest.mark.parametrize("service", [Jobs, Admin])
def test_every_public_method_is_a_verb(service: type) -> None:
    public = {name for name in dir(service) if not name.startswith("_")} - {"caller", "principal"}
    assert public == set(rules_of(service))


# Who may -----------------------------------------------------------------------------------------------


async def test_one_of_the_permissions_is_needed_and_the_error_names_what_helps(service: JobService) -> None:
    keys = service.key_ring()
    for permission in (Permission.JOBS_READ, Permission.JOBS, Permission.ADMIN, Permission.ALL):
        assert await Admin(service, keys, a_caller(permission)).types() == []
    with pytest.raises(PermissionDenied, match=r"key 'ann' lacks the permission '\*' or 'jobs' or 'jobs:read'$"):
        await Admin(service, keys, a_caller()).types()
    with pytest.raises(PermissionDenied, match=r"key 'ann' lacks the permission '\*' or 'admin'$"):
        await Admin(service, keys, a_caller(Permission.JOBS)).pause(TYPE)


async def test_a_rule_that_was_checked_before_covers_its_own_verb_only(service: JobService) -> None:
    caller = a_caller(Permission.JOBS_READ)
    rule_of(Jobs.find).admit(caller.principal)
    jobs = Jobs(service, caller)
    assert (await jobs.find(JobFilter(), 1)).jobs == []
    with pytest.raises(PermissionDenied):
        await jobs.create([a_new_job()])
    with pytest.raises(PermissionDenied):
        rule_of(Jobs.create).admit(caller.principal)


async def test_whoever_is_in_the_process_is_neither_checked_nor_recorded(engine: Engine, service: JobService) -> None:
    jobs = Jobs(service, IN_PROCESS)
    first, second = await a_pending_job(engine, tenant=MINE), await a_pending_job(engine, tenant=OTHER)
    assert await jobs.cancel(first.key, "not needed") is State.PENDING
    assert await jobs.delete(first.key) is State.CANCELLED
    assert await jobs.cancel(second.key) is State.PENDING
    assert await jobs.requeue_matching(JobFilter(), all=True) == (0, 0)
    await Admin(service, service.key_ring(), IN_PROCESS).pause(TYPE)
    assert await recorded(service) == []


# What it means for tenants -----------------------------------------------------------------------------

Act = Callable[[Jobs, int], Awaitable[Any]]
REFUSED: dict[Tenants, Sequence[Act]] = {
    OWNER: [
        lambda jobs, key: jobs.cancel(key),
        lambda jobs, key: jobs.cancel(key=key, reason="given by name"),
        lambda jobs, key: jobs.set_priority(key, 3),
        lambda jobs, key: jobs.explain(key),
    ],
    ITEMS: [
        lambda jobs, _: jobs.create([a_new_job(tenant=MINE), a_new_job(tenant=OTHER)]),
        lambda jobs, key: jobs.extend(key, 1, 1_000),
        lambda jobs, key: jobs.get(key),
        lambda jobs, key: jobs.merged_variables(key, {}),
    ],
    CONFINED: [
        lambda jobs, _: jobs.find(JobFilter(tenants=(OTHER,)), 10),
        lambda jobs, _: jobs.activate(Demand(TYPE, "w", 1, tenants=(OTHER,))),
        lambda jobs, _: jobs.requeue_matching(JobFilter(tenants=(OTHER,))),
    ],
}


@pytest.mark.parametrize("rule", REFUSED)
async def test_a_bound_key_is_refused_what_names_others(engine: Engine, service: JobService, rule: Tenants) -> None:
    other = await a_processing_job(engine, tenant=OTHER)
    jobs = Jobs(service, a_caller(Permission.JOBS, tenants=(MINE, DEFAULT_TENANT)))
    for act in REFUSED[rule]:
        with pytest.raises((PermissionDenied, JobNotFound), match=rf"tenant|Job '{other.key}' not found"):
            await act(jobs, other.key)
    assert await jobs.history(other.key) == []
    assert await jobs.settle([Complete(other.key, 1)]) == [Judged(Verdict.NOT_FOUND)]
    assert await the_state(engine, other.key) is State.PROCESSING
    assert await recorded(service) == []


OF_UNKNOWN: Sequence[Act] = [
    lambda jobs, key: jobs.cancel(key),
    lambda jobs, key: jobs.requeue(key),
    lambda jobs, key: jobs.set_priority(key, 3),
    lambda jobs, key: jobs.set_retries(key, 3),
    lambda jobs, key: jobs.run_now(key),
    lambda jobs, key: jobs.reschedule(key, delay_ms=5),
    lambda jobs, key: jobs.delete(key),
    lambda jobs, key: jobs.purge(key),
    lambda jobs, key: jobs.explain(key),
    lambda jobs, key: jobs.extend(key, 1, 1_000),
]


@pytest.fixture
def created_meanwhile(engine: Engine, service: JobService, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The key of a job that another tenant creates and leases while the owners of keys are being looked up."""
    owners, keys = service.owners, [1]

    async def late(wanted: Sequence[int]) -> list[str | None]:
        found = await owners(wanted)
        keys[:] = [(await a_processing_job(engine, tenant=OTHER)).key]
        return found

    monkeypatch.setattr(service, "owners", late)
    return keys


@pytest.mark.parametrize("act", OF_UNKNOWN)
async def test_a_bound_key_does_not_reach_a_job_that_another_tenant_creates_meanwhile(
    engine: Engine, service: JobService, created_meanwhile: list[int], act: Act
) -> None:
    jobs = Jobs(service, a_caller(Permission.JOBS, tenants=(MINE,)))
    with pytest.raises(JobNotFound):
        await act(jobs, 1)
    assert created_meanwhile == [1]
    assert await the_state(engine, 1) is State.PROCESSING


async def test_a_bound_key_settles_its_own_jobs_and_not_one_that_another_tenant_creates_meanwhile(
    engine: Engine, service: JobService, created_meanwhile: list[int]
) -> None:
    mine = await a_processing_job(engine, tenant=MINE)
    jobs = Jobs(service, a_caller(Permission.JOBS, tenants=(MINE,)))
    judged = await jobs.settle([Complete(mine.key + 1, 1), Complete(mine.key, 1)])
    assert [one.verdict for one in judged] == [Verdict.NOT_FOUND, Verdict.ACCEPTED]
    assert created_meanwhile == [mine.key + 1]
    assert await the_state(engine, mine.key + 1) is State.PROCESSING


async def test_it_does_not_see_the_history_of_such_a_job_nor_settles_it_on_a_stream(
    engine: Engine, service: JobService, created_meanwhile: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Jobs(service, a_caller(Permission.JOBS, tenants=(MINE,)))
    asked: list[int] = []
    monkeypatch.setattr(engine, "history", asked.append)
    assert (await jobs.history(1), asked) == ([], [])
    late = created_meanwhile[0] + 1
    [refusal] = await settle_messages(
        service, jobs, [work_pb2.Outcome(key=late, attempt=1, complete=work_pb2.Complete())]
    )
    assert (refusal.reason, refusal.message) == (work_pb2.NOT_FOUND, f"Job '{late}' not found")
    assert created_meanwhile == [late]
    assert await the_state(engine, late) is State.PROCESSING


async def test_what_names_nobody_is_confined_to_the_tenants_of_a_bound_key(engine: Engine, service: JobService) -> None:
    other, mine = await a_pending_job(engine, tenant=OTHER), await a_pending_job(engine, tenant=MINE)
    jobs = Jobs(service, a_caller(Permission.JOBS, tenants=(MINE,)))
    assert rule_of(Jobs.find).tenants is rule_of(Jobs.activate).tenants is CONFINED
    assert [job.key for job in (await jobs.find(JobFilter(), 10)).jobs] == [mine.key]
    assert [job.key for job in await jobs.activate(Demand(TYPE, "w", 10))] == [mine.key]
    assert await the_state(engine, other.key) is State.PENDING


async def test_what_is_shown_is_cut_to_the_tenants_of_a_bound_key(engine: Engine, service: JobService) -> None:
    other, mine = await a_pending_job(engine, tenant=OTHER), await a_pending_job(engine, tenant=MINE)
    jobs = Jobs(service, a_caller(Permission.JOBS, tenants=(MINE,)))
    assert {rule_of(one).tenants for one in (Jobs.get_many, Jobs.count, Jobs.stats, Jobs.refused)} == {CUT}
    assert [job and job.tenant for job in await jobs.get_many([other.key, mine.key])] == [None, MINE]
    assert {count.tenant for count in await jobs.count()} == {MINE}
    assert {count.tenant for count in (await jobs.stats(1)).counts} == {MINE}
    assert set(await jobs.refused([other.key, mine.key])) == {other.key}


async def test_what_concerns_all_tenants_is_refused_to_a_bound_key_and_what_concerns_none_is_not(
    engine: Engine, service: JobService
) -> None:
    newest = await a_pending_job(engine, tenant=OTHER)
    bound = a_caller(Permission.ALL, tenants=(MINE,))
    for name, rule in rules_of(Admin).items():
        assert rule.tenants is UNBOUND, name
    refused = "key 'ann' is restricted to certain tenants, but this call affects all tenants"
    with pytest.raises(PermissionDenied, match=refused):
        await Admin(service, service.key_ring(), bound).pause(TYPE)
    assert rule_of(Jobs.newest_key).tenants is ANY
    assert await Jobs(service, bound).newest_key() == newest.key


async def test_what_is_no_key_of_a_job_is_refused_before_anything_is_asked(service: JobService) -> None:
    jobs = Jobs(service, a_caller(Permission.JOBS, tenants=(MINE,)))
    for key in (0, -1, "x", None, True):
        with pytest.raises(InvalidInput, match="key: must be a job key"):
            await jobs.cancel(key)  # type: ignore[arg-type]


# What is recorded --------------------------------------------------------------------------------------


async def test_the_first_argument_is_the_target_and_the_others_are_the_details(
    engine: Engine, service: JobService
) -> None:
    job, jobs = await a_pending_job(engine), Jobs(service, a_caller(Permission.JOBS))
    await jobs.set_priority(job.key, priority=0)
    await jobs.set_retries(job.key, 3)
    await jobs.reschedule(job.key, run_at_ms=0)
    await jobs.reschedule(job.key, delay_ms=0)
    await jobs.run_now(job.key)
    await jobs.cancel(key=job.key, reason="not needed")
    await jobs.delete(job.key)
    key = str(job.key)
    assert await recorded(service) == [
        ("jobs.priority", key, {"priority": 0}),
        ("jobs.retries", key, {"retries": 3}),
        ("jobs.reschedule", key, {"run_at_ms": 0}),
        ("jobs.reschedule", key, {"delay_ms": 0}),
        ("jobs.run-now", key, {}),
        ("jobs.cancel", key, {"reason": "not needed"}),
        ("jobs.delete", key, {}),
    ]
    [entry, *_] = await service.audit.last(1)
    assert (entry.key_id, entry.who, entry.origin) == ("k1", "ann", "10.0.0.7")


async def _switched_worker(admin: Admin, _: Jobs, *, is_on: bool) -> None:
    await admin.switch_worker(WORKER_ID, is_on)


async def _switched_trigger(admin: Admin, _: Jobs, *, is_on: bool) -> None:
    await admin.switch_trigger("nightly-report", is_on)


async def _changed_many(_: Admin, jobs: Jobs, *, action: BulkAction) -> None:
    await jobs.change_many(action, [1])


async def _changed_matching(_: Admin, jobs: Jobs, *, action: BulkAction) -> None:
    await jobs.change_matching(action, BulkFilter(JobFilter()))


async def _changed_dead(_: Admin, jobs: Jobs, *, action: DeadLetterAction) -> None:
    await jobs.change_dead(action, dead_filter(), all=True)


BY_THEMSELVES: dict[str, Sequence[Callable[[Admin, Jobs], Awaitable[Any]]]] = {
    "restart_process": [lambda admin, _: admin.restart_process("m1/0")],
    "switch_worker": [partial(_switched_worker, is_on=is_on) for is_on in (True, False)],
    "forget_worker": [lambda admin, _: admin.forget_worker(WORKER_ID)],
    "switch_trigger": [partial(_switched_trigger, is_on=is_on) for is_on in (True, False)],
    "fire_trigger": [lambda admin, _: admin.fire_trigger("nightly-report")],
    "set_policy": [lambda admin, _: admin.set_policy(TYPE, {"base": 2})],
    "drop_group": [lambda admin, _: admin.drop_group(TYPE, "reporting")],
    "create_key": [lambda admin, _: admin.create_key("ci", ["jobs"])],
    "end_sessions": [lambda admin, _: admin.end_sessions()],
    "change_many": [partial(_changed_many, action=action) for action in BulkAction],
    "change_matching": [partial(_changed_matching, action=action) for action in BulkAction],
    "requeue_matching": [lambda _, jobs: jobs.requeue_matching(JobFilter(), all=True)],
    "change_dead": [partial(_changed_dead, action=action) for action in DeadLetterAction],
}


def test_every_verb_that_records_itself_is_among_them() -> None:
    declared = {**rules_of(Jobs), **rules_of(Admin)}
    assert {name for name, rule in declared.items() if rule.audited is ITSELF} == set(BY_THEMSELVES)


@pytest.mark.parametrize("name", BY_THEMSELVES)
async def test_a_verb_that_records_itself_records_the_actions_that_it_declares(
    engine: Engine, service: JobService, name: str
) -> None:
    caller = a_caller(Permission.ALL)
    admin, jobs = Admin(service, service.key_ring(), caller), Jobs(service, caller)
    await a_trigger(engine)
    if name == "restart_process":
        await a_process(engine)
    await engine.add_group(TYPE, "reporting")
    for number, act in enumerate(BY_THEMSELVES[name]):
        await a_dead_letter(engine, type=f"type-{number}")
        await act(admin, jobs)
    declared = {**rules_of(Jobs), **rules_of(Admin)}[name].audit
    assert {action for action, _, _ in await recorded(service)} == set(declared)


async def test_what_was_not_done_is_not_recorded(
    engine: Engine, service: JobService, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, jobs = await a_pending_job(engine), Jobs(service, a_caller(Permission.JOBS))
    with pytest.raises(JobNotFound):
        await jobs.cancel(job.key + 1)
    with pytest.raises(InvalidInput):
        await jobs.set_priority(job.key, 10**9)

    async def away(*_: Any) -> Any:
        raise EngineUnavailable("away")

    monkeypatch.setattr(engine, "cancel", away)
    with pytest.raises(EngineUnavailable):
        await jobs.cancel(job.key)
    assert await recorded(service) == []


async def test_a_change_whose_caller_goes_away_in_the_middle_is_done_and_recorded(
    engine: Engine, service: JobService, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, jobs = await a_pending_job(engine), Jobs(service, a_caller(Permission.JOBS))
    cancel, begun, go_on = engine.cancel, asyncio.Event(), asyncio.Event()

    async def slow(keys: Sequence[int], reason: str = "") -> Any:
        begun.set()
        await go_on.wait()
        return await cancel(keys, reason)

    monkeypatch.setattr(engine, "cancel", slow)
    calling = asyncio.create_task(jobs.cancel(job.key, "not needed"))
    await begun.wait()
    calling.cancel()
    await asyncio.sleep(0)
    assert await recorded(service) == []
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await calling
    await until(lambda: recorded(service))
    assert await recorded(service) == [("jobs.cancel", str(job.key), {"reason": "not needed"})]
    assert await the_state(engine, job.key) is State.CANCELLED


async def test_a_call_that_is_not_recorded_ends_with_its_caller(
    engine: Engine, service: JobService, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def slow(*_: Any) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(engine, "get", slow)
    calling = asyncio.create_task(Jobs(service, a_caller(Permission.JOBS)).get(1))
    await begun.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert ended.is_set()


async def test_where_a_call_came_from_is_found_out_only_when_it_is_recorded(
    engine: Engine, service: JobService
) -> None:
    asked: list[str] = []

    def origin() -> str:
        asked.append("10.0.0.9")
        return asked[-1]

    job = await a_pending_job(engine)
    jobs = Jobs(service, Caller(Principal("k1", "ann", frozenset([Permission.JOBS])), origin, is_person=True))
    await jobs.get(job.key)
    assert asked == []
    await jobs.cancel(job.key)
    assert [entry.origin for entry in await service.audit.last(1)] == asked == ["10.0.0.9"]
