"""Administration: who may do it, what it does, and what the audit log says of it afterwards."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

from everwork.codec.json import decode_policy
from everwork.core.breaker import BreakerState
from everwork.core.leasing import Demand
from everwork.core.limits import AUDIT_KEEP_MS
from everwork.core.policy import TypePolicy, fields_of
from everwork.core.queries import JobFilter
from everwork.core.retry import RetryPolicy
from everwork.core.states import State
from everwork.exceptions import EngineUnavailable, InvalidInput, JobNotFound, NotFound, PermissionDenied
from everwork.service import bulk
from everwork.service.access.audit import AUDIT_KIND, UNREADABLE, Audit
from everwork.service.access.keys import KeyRing
from everwork.service.access.principal import Permission, Principal
from everwork.service.admin import Admin
from everwork.service.jobs import Jobs
from everwork.service.reports import audit_report, group_report, key_report, policy_report, type_report
from everwork.service.service import JobService
from everwork.service.verb import Caller, rules_of
from tests.app.waiting import until
from tests.factories import TYPE, a_completed_job, a_dead_letter, a_pending_job, the_state
from tests.fleets import a_trigger
from tests.stores import START_MS

if TYPE_CHECKING:
    from tests.stores import VirtualClock

Act = Callable[[Admin], Awaitable[Any]]

CHANGES: dict[str, Act] = {
    "pause": lambda admin: admin.pause(TYPE),
    "resume": lambda admin: admin.resume(TYPE),
    "open_breaker": lambda admin: admin.open_breaker(TYPE, 60),
    "reset_breaker": lambda admin: admin.reset_breaker(TYPE),
    "set_policy": lambda admin: admin.set_policy(TYPE, {"base": 2}),
    "clear_policy": lambda admin: admin.clear_policy(TYPE),
    "drop_group": lambda admin: admin.drop_group(TYPE, "reporting"),
    "create_key": lambda admin: admin.create_key("ci", ["admin"]),
    "revoke_key": lambda admin: admin.revoke_key("nobody"),
    "list_keys": lambda admin: admin.list_keys(),
    "sessions": lambda admin: admin.sessions(),
    "end_session": lambda admin: admin.end_session("none"),
    "end_sessions": lambda admin: admin.end_sessions(),
    "switch_worker": lambda admin: admin.switch_worker("echo", False),
    "forget_worker": lambda admin: admin.forget_worker("echo"),
    "switch_trigger": lambda admin: admin.switch_trigger("nightly", False),
    "fire_trigger": lambda admin: admin.fire_trigger("nightly"),
    "restart_process": lambda admin: admin.restart_process("p1"),
    "audit": lambda admin: admin.audit(10),
    "tick": lambda admin: admin.tick(),
}
READS: dict[str, Act] = {
    "types": lambda admin: admin.types(),
    "policy": lambda admin: admin.policy(TYPE),
    "groups": lambda admin: admin.groups(),
    "workers": lambda admin: admin.workers(),
    "triggers": lambda admin: admin.triggers(),
    "processes": lambda admin: admin.processes(),
    "left_out": lambda admin: admin.left_out(),
    "managers": lambda admin: admin.managers(),
    "running": lambda admin: admin.running(),
    "trigger": lambda admin: admin.trigger("nightly-report"),
    "fires": lambda admin: admin.fires("nightly-report"),
    "fires_of_many": lambda admin: admin.fires_of_many([], 1),
}
OF_ONE_JOB: dict[str, Callable[[Jobs, int], Awaitable[Any]]] = {
    "delete": lambda jobs, key: jobs.delete(key),
    "cancel": lambda jobs, key: jobs.cancel(key),
    "requeue": lambda jobs, key: jobs.requeue(key),
    "run_now": lambda jobs, key: jobs.run_now(key),
    "set_retries": lambda jobs, key: jobs.set_retries(key, 3),
    "set_priority": lambda jobs, key: jobs.set_priority(key, 3),
    "purge": lambda jobs, key: jobs.purge(key),
}
OF_JOBS = {*OF_ONE_JOB, "reschedule", "requeue_matching", "change_dead", "change_many", "change_matching"}


class Admins:
    """Administrators of one store."""

    def __init__(self, service: JobService, clock: VirtualClock) -> None:
        self.engine = service._engine
        self.keys = KeyRing(service._engine, environment_key=None, clock=clock)
        self.log = service.audit = Audit(service._engine, clock)
        self._service = service

    def of(self, *permissions: Permission, tenants: tuple[str, ...] = ()) -> Admin:
        """Whoever holds such a key."""
        principal = Principal("k1", "ann", frozenset(permissions), tenants)
        return Admin(self._service, self.keys, Caller(principal, "10.0.0.7"))

    def jobs_of(self, *permissions: Permission, tenants: tuple[str, ...] = ()) -> Jobs:
        """The same for what is done to jobs."""
        return Jobs(self._service, self.of(*permissions, tenants=tenants).caller)

    async def entries(self) -> list[tuple[str, str, dict[str, Any]]]:
        """The log, oldest first."""
        return [(one.action, one.target, dict(one.detail)) for one in reversed(await self.log.last(100))]


@pytest.fixture
def admins(service: JobService, clock: VirtualClock) -> Admins:
    """The administration of the test's store."""
    return Admins(service, clock)


@pytest.fixture
def admin(admins: Admins) -> Admin:
    """An administrator with nothing but that permission."""
    return admins.of(Permission.ADMIN)


# Who may -----------------------------------------------------------------------------------------------


def test_every_act_stands_in_the_tables_below() -> None:
    public = {name for name, _ in inspect.getmembers(Admin, inspect.isfunction) if not name.startswith("_")}
    assert public == set(CHANGES) | set(READS)
    assert {name for name, rule in rules_of(Jobs).items() if rule.audit} == OF_JOBS


@pytest.mark.parametrize("act", CHANGES)
@pytest.mark.parametrize(
    ("permissions", "tenants"),
    [((Permission.JOBS,), ()), ((Permission.JOBS_READ,), ()), ((), ()), ((Permission.ALL,), ("acme",))],
)
async def test_only_administrators_of_the_whole_store_may(
    admins: Admins, act: str, permissions: tuple[Permission, ...], tenants: tuple[str, ...]
) -> None:
    await admins.engine.add_group(TYPE, "reporting")
    before = await admins.engine.types()
    with pytest.raises(PermissionDenied):
        await CHANGES[act](admins.of(*permissions, tenants=tenants))
    assert await admins.engine.types() == before
    assert await admins.engine.registered(None) == []


@pytest.mark.parametrize("act", READS)
async def test_types_and_groups_are_read_by_whoever_reads_jobs_of_all_tenants(admins: Admins, act: str) -> None:
    await a_pending_job(admins.engine)
    await a_trigger(admins.engine)
    for permission in (Permission.JOBS_READ, Permission.JOBS, Permission.ADMIN, Permission.ALL):
        await READS[act](admins.of(permission))
    for refused in (admins.of(), admins.of(Permission.ALL, tenants=("acme",))):
        with pytest.raises(PermissionDenied):
            await READS[act](refused)
    assert await admins.entries() == []


async def test_deleting_and_requeueing_need_permission_for_jobs(admins: Admins) -> None:
    job = await a_dead_letter(admins.engine, tenant="acme")
    for refused in (admins.jobs_of(Permission.ADMIN), admins.jobs_of(Permission.JOBS_READ)):
        with pytest.raises(PermissionDenied):
            await refused.requeue_matching(JobFilter())
        with pytest.raises(PermissionDenied):
            await refused.change_many(bulk.BulkAction.REQUEUE, [job.key])
        with pytest.raises(PermissionDenied):
            await refused.change_matching(bulk.BulkAction.REQUEUE, bulk.BulkFilter(JobFilter()))
    for act in OF_ONE_JOB.values():
        with pytest.raises(PermissionDenied):
            await act(admins.jobs_of(Permission.JOBS_READ), job.key)
        with pytest.raises(JobNotFound):
            await act(admins.jobs_of(Permission.JOBS, tenants=("globex",)), job.key)
    assert (
        await admins.jobs_of(Permission.JOBS, tenants=("globex",)).change_many(bulk.BulkAction.REQUEUE, [job.key])
    ).changed == 0
    assert [entry[0] for entry in await admins.entries()] == ["jobs.requeue"]
    assert await the_state(admins.engine, job.key) is State.FAILED


# What is done -------------------------------------------------------------------------------------------


async def test_a_type_is_paused_and_resumed(admins: Admins, admin: Admin) -> None:
    await admin.pause("not-seen-before")
    assert [info.paused for info in await admins.engine.types()] == [True]
    await admin.resume("not-seen-before")
    assert [info.paused for info in await admins.engine.types()] == [False]
    assert await admins.entries() == [("types.pause", "not-seen-before", {}), ("types.resume", "not-seen-before", {})]


async def test_a_policy_is_set_whole_or_in_parts_and_cleared(admins: Admins, admin: Admin) -> None:
    assert (await admin.set_policy(TYPE, {"base": 2, "cap": 9})).policy.retry == RetryPolicy(base=2, cap=9)
    changed = await admin.set_policy(TYPE, {"max_attempts": 7}, changes_only=True)
    assert changed.policy.retry == RetryPolicy(7, base=2, cap=9)
    [info] = await admins.engine.types()
    assert decode_policy(info.policy).retry == RetryPolicy(7, base=2, cap=9)
    await admin.set_policy(TYPE, {"jitter": 0.5})
    assert await admin.policy(TYPE) == (TypePolicy(retry=RetryPolicy(jitter=0.5)), {"jitter": 0.5})
    await admin.clear_policy(TYPE)
    assert await admin.policy(TYPE) == (TypePolicy(), {})
    actions = [action for action, _, _ in await admins.entries()]
    assert actions == ["types.policy", "types.policy", "types.policy", "types.policy-clear"]


@pytest.mark.parametrize("is_half_open", [False, True], ids=["open", "half-open"])
@pytest.mark.parametrize(
    "take_away",
    [
        lambda admin: admin.set_policy(TYPE, {"breaker_failures": None, "breaker_seconds": None}, changes_only=True),
        lambda admin: admin.set_policy(TYPE, {"base": 1}),
        lambda admin: admin.clear_policy(TYPE),
    ],
    ids=["off", "another policy", "clear"],
)
async def test_a_breaker_goes_with_its_rule(
    admins: Admins, admin: Admin, clock: VirtualClock, take_away: Act, is_half_open: bool
) -> None:
    await admin.set_policy(TYPE, {"breaker_failures": 1})
    await a_dead_letter(admins.engine)
    await a_pending_job(admins.engine)
    if is_half_open:
        clock.advance(ms=61_000)
        assert (await admins.engine.activate([Demand(TYPE, "w", 1)])).jobs
    await admin.set_policy(TYPE, {"base": 2}, changes_only=True)
    assert (await admins.engine.types())[0].breaker is not BreakerState.CLOSED
    await take_away(admin)
    assert (await admins.engine.types())[0].breaker is BreakerState.CLOSED


async def test_a_breaker_that_was_opened_by_hand_without_a_rule_stays_open(admins: Admins, admin: Admin) -> None:
    await a_pending_job(admins.engine)
    await admin.open_breaker(TYPE, 60)
    await admin.set_policy(TYPE, {"base": 1})
    await admin.clear_policy(TYPE)
    assert (await admins.engine.types())[0].breaker is BreakerState.OPEN


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (
            {"attempts": 3},
            "policy: 'attempts': unknown policy field; allowed: max_attempts, base, factor, cap, jitter",
        ),
        ({"max_attempts": 0}, "max_attempts: must be a whole number from 1 to 100, not 0"),
        ({"base": "soon"}, "base: must be a number from 0 to"),
        ({"jitter": 2}, "jitter: must be a number from 0 to 1, not 2"),
        ([], "policy: must be a JSON object"),
        (None, "policy: must be a JSON object"),
    ],
    ids=str,
)
async def test_a_wrong_policy_is_refused_by_its_field(admins: Admins, admin: Admin, said: Any, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        await admin.set_policy(TYPE, said)
    assert (await admins.engine.types(), await admins.entries()) == ([], [])


async def test_null_takes_a_field_of_a_policy_back(admins: Admins, admin: Admin) -> None:
    await admin.set_policy(TYPE, {"factor": 3, "max_running": 5})
    view = await admin.set_policy(TYPE, {"factor": None}, changes_only=True)
    assert (dict(view.fields), view.policy.retry.factor) == ({"max_running": 5}, 2.0)
    await admin.set_policy(TYPE, {"max_running": None})
    assert [info.policy for info in await admins.engine.types()] == [None]


async def test_a_breaker_is_opened_by_hand_and_reset_and_that_is_written_down(admins: Admins, admin: Admin) -> None:
    await a_pending_job(admins.engine)
    for seconds in (0, -1, 86_401, "soon", float("nan")):
        with pytest.raises(InvalidInput, match="seconds: must be a number from 1 to "):
            await admin.open_breaker(TYPE, seconds)  # type: ignore[arg-type]
    await admin.open_breaker(TYPE, 600)
    [view] = await admin.types()
    report = type_report(view)
    assert (report["breaker"], report["breaker_open_until"]) == ("open", "2023-11-14T22:10:00.000Z")
    assert await admin.reset_breaker(TYPE) is True
    assert await admins.entries() == [("types.breaker-open", TYPE, {"seconds": 600}), ("types.breaker-reset", TYPE, {})]


async def test_a_breaker_that_is_not_open_needs_no_reset(admins: Admins, admin: Admin) -> None:
    await a_pending_job(admins.engine)
    assert await admin.reset_breaker(TYPE) is False


async def test_groups_are_listed_with_their_jobs_and_dropped(admins: Admins, admin: Admin) -> None:
    for group in ("reporting", "audit"):
        await admins.engine.add_group(TYPE, group)
    await a_pending_job(admins.engine)
    listed = [(view.type, view.group, view.counts[State.PENDING]) for view in await admin.groups()]
    assert listed == [(TYPE, "audit", 1), (TYPE, "reporting", 1)]
    assert await admin.drop_group(TYPE, "reporting") == 1
    assert [view.group for view in await admin.groups()] == ["audit"]
    assert await admins.entries() == [("groups.drop", f"{TYPE}/reporting", {})]


async def test_types_are_listed_with_the_jobs_of_all_their_groups(admins: Admins, admin: Admin) -> None:
    await admins.engine.add_group(TYPE, "reporting")
    await a_pending_job(admins.engine)
    [view] = await admin.types()
    assert (view.info.type, view.counts[State.PENDING], view.counts[State.FAILED]) == (TYPE, 2, 0)


@pytest.mark.parametrize("act", ["resume", "open_breaker", "reset_breaker", "clear_policy", "drop_group", "revoke_key"])
async def test_what_is_not_there_is_not_found_and_not_written_down(admins: Admins, admin: Admin, act: str) -> None:
    with pytest.raises(NotFound, match="not found"):
        await CHANGES[act](admin)
    assert (await admins.engine.types(), await admins.entries()) == ([], [])


@pytest.mark.parametrize("name", ["", "x" * 256, "a\0b", "a\nb", 5, None])
async def test_a_name_that_is_none_is_refused_by_its_field(admin: Admin, name: Any) -> None:
    for act in (admin.pause, admin.resume, admin.open_breaker, admin.reset_breaker, admin.clear_policy, admin.policy):
        with pytest.raises(InvalidInput, match="type: must "):
            await act(name)
    with pytest.raises(InvalidInput, match="group: must "):
        await admin.drop_group(TYPE, name)
    with pytest.raises(InvalidInput, match="id: must "):
        await admin.revoke_key(name)


async def test_keys_are_made_and_revoked(admins: Admins, admin: Admin) -> None:
    new = await admin.create_key("ci", ["admin"], tenants=["acme"], expires_at_ms=START_MS + 5, rate_per_second=3)
    assert admins.keys.authenticate(new.text).tenants == ("acme",)
    await admin.revoke_key(new.key.id)
    assert [key.revoked_at_ms for key in await admin.list_keys()] == [START_MS]
    [created, revoked] = await admins.entries()
    assert created[:2] == ("keys.create", new.key.id)
    assert created[2]["permissions"] == ["admin"]
    assert created[2]["expires_at_ms"] == START_MS + 5
    assert revoked == ("keys.revoke", new.key.id, {})
    assert new.text.split("_", 2)[2] not in str(await admins.log.last(10))


async def test_an_administrator_cannot_grant_more_than_administration(admins: Admins, admin: Admin) -> None:
    with pytest.raises(PermissionDenied, match="cannot grant it"):
        await admin.create_key("ops", ["*"])
    assert (list(await admins.keys.list()), await admins.entries()) == ([], [])


async def test_deleted_jobs_and_bulk_requeues_are_written_down(admins: Admins) -> None:
    worker = admins.jobs_of(Permission.JOBS)
    done, dead = await a_completed_job(admins.engine), await a_dead_letter(admins.engine)
    assert await worker.delete(done.key) is State.COMPLETED
    assert await worker.requeue_matching(JobFilter(type=TYPE)) == (1, 1)
    assert await the_state(admins.engine, dead.key) is State.PENDING
    assert await admins.entries() == [
        ("jobs.delete", str(done.key), {}),
        ("jobs.requeue", TYPE, {"matched": 1, "changed": 1, "filter": {"type": TYPE}}),
    ]
    with pytest.raises(JobNotFound):
        await worker.delete(done.key)
    assert len(await admins.entries()) == 2


async def test_a_requeue_with_other_arguments_has_its_own_entry_without_their_values(admins: Admins) -> None:
    first, second = await a_dead_letter(admins.engine), await a_dead_letter(admins.engine)
    worker = admins.jobs_of(Permission.JOBS)
    await worker.requeue(first.key)
    await worker.requeue(second.key, variables={"card": "4111"})
    assert await admins.entries() == [
        ("jobs.requeue", str(first.key), {}),
        ("jobs.requeue", str(second.key), {"variables": "changed"}),
    ]


async def test_a_bulk_requeue_that_breaks_off_is_written_down_as_far_as_it_went(
    admins: Admins, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        await a_dead_letter(admins.engine)
    monkeypatch.setattr("everwork.service.bulk.LIST_LIMIT_MAX", 1)
    requeue, times = admins.engine.requeue, itertools.count(1)

    async def away_the_second_time(keys: Any) -> Any:
        if next(times) == 2:
            raise EngineUnavailable("away")
        return await requeue(keys)

    monkeypatch.setattr(admins.engine, "requeue", away_the_second_time)
    with pytest.raises(EngineUnavailable):
        await admins.jobs_of(Permission.JOBS).requeue_matching(JobFilter(error_text="o"))
    [entry] = await admins.entries()
    assert entry[:2] == ("jobs.requeue", "*")
    assert entry[2] == {"matched": 1, "changed": 1, "filter": {"error_text": "o"}, "broken_off": True}


async def test_a_bulk_requeue_whose_caller_goes_away_ends_its_step_and_every_step_is_written_down(
    admins: Admins, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = [await a_dead_letter(admins.engine) for _ in range(3)]
    monkeypatch.setattr("everwork.service.bulk.LIST_LIMIT_MAX", 1)
    requeue, times, go_on = admins.engine.requeue, itertools.count(1), asyncio.Event()

    async def waits_the_second_time(keys: Any) -> Any:
        if next(times) == 2:
            await go_on.wait()
        return await requeue(keys)

    monkeypatch.setattr(admins.engine, "requeue", waits_the_second_time)
    caller = asyncio.create_task(admins.jobs_of(Permission.JOBS).requeue_matching(JobFilter(), all=True))
    await until(admins.entries)
    assert (await admins.entries())[0][2] == {"matched": 1, "changed": 1, "filter": {}, "unfinished": True}
    caller.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    [entry] = await admins.entries()
    assert entry[2] == {"matched": 2, "changed": 2, "filter": {}, "broken_off": True}
    states = [await the_state(admins.engine, job.key) for job in letters]
    assert states == [State.FAILED, State.PENDING, State.PENDING]


# The log ------------------------------------------------------------------------------------------------


async def test_an_entry_says_who_did_what_when_and_from_where(admins: Admins, admin: Admin) -> None:
    await admin.pause(TYPE)
    [entry] = await admins.log.last(10)
    assert (entry.key_id, entry.who, entry.at_ms, entry.origin) == ("k1", "ann", START_MS, "10.0.0.7")
    [found] = await admins.engine.registered(AUDIT_KIND)
    assert found.until_ms == START_MS + AUDIT_KEEP_MS


@pytest.mark.every_engine
async def test_a_name_that_no_store_can_keep_does_not_stop_an_entry(admins: Admins, service: JobService) -> None:
    who = Principal("cli", "\udcff\nann", frozenset([Permission.ALL]))
    await Admin(service, admins.keys, Caller(who, "cli")).pause(TYPE)
    assert [entry.who for entry in await admins.log.last(10)] == ["??ann"]


@pytest.mark.every_engine
async def test_the_log_is_read_in_pages_newest_first_also_inside_one_millisecond(
    admins: Admins, admin: Admin, clock: VirtualClock
) -> None:
    for number in range(7):
        await admin.pause(f"type-{number}")
        clock.advance(ms=number % 2)
    seen: list[str] = []
    below: str | None = None
    while page := await admin.audit(3, below):
        seen += [entry.target for entry in page]
        below = page[-1].name
    assert seen == [f"type-{number}" for number in reversed(range(7))]


@pytest.mark.every_engine
async def test_entries_go_after_ninety_days(admins: Admins, admin: Admin, clock: VirtualClock) -> None:
    await admin.pause(TYPE)
    clock.advance(ms=AUDIT_KEEP_MS - 1)
    assert len(await admins.log.last(10)) == 1
    clock.advance(ms=1)
    assert await admins.log.last(10) == []


async def test_a_spoilt_entry_is_shown_as_such(admins: Admins, admin: Admin) -> None:
    await admin.pause(TYPE)
    bodies = ["", "[]", "{}", '{"at_ms": "noon"}', '{"at_ms": 1e300}']
    for number, body in enumerate(bodies):
        await admins.engine.register(AUDIT_KIND, f"9{number}", body, 1_000)
    assert [entry.action for entry in await admin.audit(10)] == [UNREADABLE] * 5 + ["types.pause"]


@pytest.mark.parametrize("limit", [0, 1_001, True, "10"])
async def test_a_page_that_is_too_large_is_refused(admin: Admin, limit: Any) -> None:
    with pytest.raises(InvalidInput, match="limit: must be a whole number from 1 to 1000"):
        await admin.audit(limit)


async def test_a_cursor_that_is_none_is_refused(admin: Admin) -> None:
    with pytest.raises(InvalidInput, match="cursor: must "):
        await admin.audit(10, "a\0b")


async def test_whatever_is_said_of_the_origin_an_entry_is_written(admins: Admins) -> None:
    who = Principal("k1", "ann", frozenset())
    await admins.log.record(who, "types.pause", "x" * 5_000, "\ud800\0\n" + "y" * 5_000, {"much": "z" * 50_000})
    [entry] = await admins.log.last(1)
    assert (len(entry.target), len(entry.origin), entry.origin[:4]) == (1_024, 255, "???y")
    assert dict(entry.detail) == {"cut": "too long to store"}


async def test_an_act_whose_caller_goes_away_is_done_and_written_down(admins: Admins, admin: Admin) -> None:
    acting = asyncio.create_task(admin.pause(TYPE))
    await asyncio.sleep(0)
    acting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acting
    await until(admins.entries)
    assert [info.paused for info in await admins.engine.types()] == [True]
    assert await admins.entries() == [("types.pause", TYPE, {})]


# Reports ------------------------------------------------------------------------------------------------


async def test_reports_are_json_with_times_in_rfc_3339(admins: Admins, admin: Admin) -> None:
    await admins.engine.add_group(TYPE, "reporting")
    await admin.set_policy(TYPE, {"base": 2})
    new = await admin.create_key("ci", ["admin"], expires_at_ms=START_MS + 1)
    [type_view], [group_view] = await admin.types(), await admin.groups()
    counts = {state.label: 0 for state in State}
    policy = fields_of(TypePolicy(retry=RetryPolicy(base=2)))
    assert type_report(type_view) == {
        "type": TYPE,
        "paused": False,
        "policy": policy,
        "groups": ["reporting"],
        "last_asked": None,
        "breaker": "closed",
        "breaker_failures": 0,
        "breaker_open_until": None,
        "breaker_probe": None,
        "rate_full_until": None,
        "jobs": counts,
    }
    shown = {"type": TYPE, "default": False, "policy": policy, "set": {"base": 2}}
    assert policy_report(TYPE, await admin.policy(TYPE)) == shown
    assert group_report(group_view) == {"type": TYPE, "group": "reporting", "last_asked": None, "jobs": counts}
    assert key_report(new.key, START_MS + 1)["state"] == "expired"
    assert key_report(new.key, START_MS)["expires_at"] == "2023-11-14T22:00:00.001Z"
    assert audit_report((await admin.audit(1))[0])["at"] == "2023-11-14T22:00:00.000Z"
