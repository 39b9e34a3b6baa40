"""The fleet: what managers tell of themselves, what everybody sees of it, and the switches."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from everwork.core.queries import Reason
from everwork.core.schedule import GRACE_MS
from everwork.core.states import State
from everwork.engines.contract import Engine
from everwork.exceptions import InvalidInput, NotFound
from everwork.service.fleet.entries import (
    PROBLEM_CHARS_MAX,
    STREAM,
    ManagerEntry,
    Off,
    ProcessEntry,
    TriggerEntry,
    WorkerEntry,
    own_source,
)
from everwork.service.fleet.fleet import Fleet, function_id
from everwork.service.fleet.live import FLEET_TTL_MS
from everwork.service.jobs import in_process
from everwork.service.service import JobService
from tests.factories import a_new_job, a_pending_job, asked, the_job, the_state
from tests.memory import kept
from tests.stores import HOUR_MS, START_MS, VirtualClock

MAILER = WorkerEntry(id="a1", title="Mailer", sources=("email-send",), concurrency=4, execution_timeout_ms=30_000)
AUDITOR = WorkerEntry(id="b2", title="Auditor", sources=("email-send", "login"), has_retry=True)
NIGHTLY = TriggerEntry(
    worker_id="a1", id="t1", title="Nightly", schedule="every 30 s", type=own_source("a1"), variables='{"n":1}'
)
HOURLY = replace(NIGHTLY, id="t2", title="Hourly", lifetime_ms=60_000, is_catchup=True)
MANAGER = ManagerEntry(name="host-1", uuid="u", host="host", pid=1, version="1.0", started_at_ms=START_MS)
PROCESS = ProcessEntry(
    name="host-1/0",
    manager="host-1",
    host="host",
    pid=2,
    state="running",
    workers=("a1", "b2"),
    broken={"b2": "RuntimeError: no database"},
    memory_bytes=1_000,
)


@pytest.fixture
def fleet(engine: Engine) -> Fleet:
    """The fleet of the test's engine."""
    return Fleet(engine)


async def test_only_the_latest_heartbeat_of_a_process_and_of_a_client_is_kept_in_memory(fleet: Fleet) -> None:
    for running in range(50):
        await fleet.beat(MANAGER, [replace(PROCESS, name="kept-once", running=running)])
        client = {"name": "client-kept-once", "kind": STREAM, "running": running}
        await fleet.beat_clients("server-1", [replace(PROCESS, **client)], 0)  # type: ignore[arg-type]
        await fleet.processes()
    gc.collect()
    names = [one.name for one in kept(ProcessEntry) if "kept-once" in one.name]
    assert sorted(names) == ["client-kept-once", "kept-once"]


async def test_what_a_manager_declares_is_seen_as_it_was_told(fleet: Fleet) -> None:
    await fleet.declare([MAILER, AUDITOR], [NIGHTLY, HOURLY])
    await fleet.beat(MANAGER, [PROCESS])

    assert [(*view,) for view in await fleet.workers()] == [
        (AUDITOR, True, 0, ("host-1/0: RuntimeError: no database",)),
        (MAILER, True, 1, ()),
    ]
    assert [view.entry for view in await fleet.triggers()] == [NIGHTLY, HOURLY]
    assert await fleet.processes() == [PROCESS]
    assert await fleet.managers() == [MANAGER]


async def test_a_manager_that_falls_silent_is_gone_with_its_processes(fleet: Fleet, clock: VirtualClock) -> None:
    await fleet.declare([MAILER], [])
    await fleet.beat(MANAGER, [PROCESS])
    clock.advance(ms=FLEET_TTL_MS - 1)
    assert await fleet.managers() == [MANAGER]

    clock.advance(ms=1)

    assert (await fleet.managers(), await fleet.processes()) == ([], [])
    assert [view.processes for view in await fleet.workers()] == [0]


async def test_a_manager_that_leaves_is_gone_at_once(fleet: Fleet) -> None:
    await fleet.beat(MANAGER, [PROCESS])

    await fleet.leave(MANAGER.name, [PROCESS.name])

    assert (await fleet.managers(), await fleet.processes()) == ([], [])


async def test_a_new_declaration_replaces_the_cards_and_the_triggers_of_its_workers_only(
    fleet: Fleet, engine: Engine
) -> None:
    foreign = replace(HOURLY, worker_id="b2")
    await fleet.declare([MAILER, AUDITOR], [NIGHTLY, HOURLY, foreign])
    await fleet.switch_worker("a1", False)
    await engine.register("worker", "a1", (await engine.registered("worker"))[0].body, ttl_ms=HOUR_MS)

    await fleet.declare([MAILER], [replace(NIGHTLY, title="Daily")])

    assert [view.entry.title for view in await fleet.triggers()] == ["Daily", "Hourly"]
    assert [entry.until_ms for entry in await engine.registered("worker")] == [START_MS + HOUR_MS, None], (
        "a card that has not changed was written again"
    )
    assert (await fleet.off()).workers == {"a1"}


async def test_workers_are_switched_by_id_or_title(fleet: Fleet) -> None:
    await fleet.declare([MAILER, AUDITOR], [])

    assert await fleet.switch_worker("Mailer", False)
    assert not await fleet.switch_worker("a1", False)
    assert await fleet.off() == Off(frozenset({"a1"}), frozenset())
    assert [view.is_on for view in await fleet.workers()] == [True, False]
    assert await fleet.switch_worker("a1", True)
    assert not await fleet.switch_worker("Mailer", True)
    assert await fleet.off() == Off(frozenset(), frozenset())


async def test_who_is_not_known_or_not_unique_is_not_switched(fleet: Fleet) -> None:
    await fleet.declare([MAILER, replace(AUDITOR, title="Mailer")], [])

    with pytest.raises(NotFound, match="worker 'Mailman' not found"):
        await fleet.switch_worker("Mailman", False)
    with pytest.raises(NotFound, match="trigger 'a1/t1' not found"):
        await fleet.switch_trigger("a1/t1", True)
    with pytest.raises(InvalidInput, match="'Mailer' is the title of several entries; use one of a1, b2"):
        await fleet.switch_worker("Mailer", False)


async def test_what_a_trigger_missed_while_it_was_off_stays_missed(
    fleet: Fleet, engine: Engine, clock: VirtualClock
) -> None:
    await fleet.declare([MAILER], [NIGHTLY])
    await engine.trigger_marks([NIGHTLY.name])
    assert await fleet.switch_trigger("Nightly", False)
    assert (await fleet.off()).triggers == {NIGHTLY.name}
    now_ms = clock.advance(seconds=3600)

    assert await fleet.switch_trigger(NIGHTLY.name, True)

    [view] = await fleet.triggers()
    assert (view.is_on, view.began_ms, view.last_ms) == (True, START_MS, now_ms)
    assert not await engine.count()


async def test_switching_on_what_is_on_does_not_let_time_points_pass(
    fleet: Fleet, engine: Engine, clock: VirtualClock
) -> None:
    await fleet.declare([MAILER], [NIGHTLY])
    await engine.trigger_marks([NIGHTLY.name])
    clock.advance(seconds=60)

    assert not await fleet.switch_trigger(NIGHTLY.name, True)

    assert [view.last_ms for view in await fleet.triggers()] == [None]


@pytest.mark.parametrize("was", [replace(NIGHTLY, schedule="every 4 weeks"), None], ids=["another", "none"])
async def test_a_schedule_that_is_new_has_missed_nothing(
    fleet: Fleet, engine: Engine, clock: VirtualClock, was: TriggerEntry | None
) -> None:
    await fleet.declare([MAILER], [HOURLY, *([was] if was else [])])
    await engine.trigger_marks([NIGHTLY.name, HOURLY.name])
    now_ms = clock.advance(seconds=3600)

    await fleet.declare([MAILER], [NIGHTLY, HOURLY])
    clock.advance(seconds=3600)
    await fleet.declare([MAILER], [replace(NIGHTLY, title="Daily"), HOURLY])

    # What is just due is left to those who run.
    assert [(view.began_ms, view.last_ms) for view in await fleet.triggers()] == [
        (START_MS, now_ms - GRACE_MS), (START_MS, None),
    ]  # fmt: skip
    assert not await engine.count()


async def test_looking_at_triggers_begins_none(fleet: Fleet, engine: Engine) -> None:
    await fleet.declare([MAILER], [NIGHTLY])

    [view] = await fleet.triggers()

    assert (view.began_ms, view.last_ms) == (None, None)
    assert await engine.registered("trigger-mark") == []


async def test_a_trigger_fires_on_demand_as_often_as_it_is_told_to(fleet: Fleet, engine: Engine) -> None:
    await fleet.declare([MAILER], [NIGHTLY])

    keys = [await fleet.fire("Nightly"), await fleet.fire(NIGHTLY.name)]

    jobs = [await the_job(engine, key) for key in keys]
    assert [(job.type, job.variables) for job in jobs] == [("worker:a1:source", '{"n":1}')] * 2
    assert keys[0] != keys[1]


async def test_a_forgotten_worker_leaves_nothing_behind(fleet: Fleet, engine: Engine) -> None:
    await fleet.declare([MAILER, AUDITOR], [NIGHTLY, replace(NIGHTLY, worker_id="b2")])
    await engine.subscribe("login", "b2")
    await engine.subscribe("email-send", "a1")
    assert await engine.subscribe("email-send", "b2") == "b2"
    [created] = await engine.create([a_new_job()])
    await engine.trigger_marks([NIGHTLY.name, "b2/t1"])
    await fleet.switch_worker("b2", False)
    await fleet.switch_trigger("b2/t1", False)

    assert await fleet.forget_worker("Auditor") == 1

    kinds = [(entry.kind, entry.name) for entry in await engine.registered(None)]
    assert kinds == [("owner", "email-send"), ("trigger", "a1/t1"), ("trigger-mark", "a1/t1"), ("worker", "a1")]
    assert [info.groups for info in await engine.types() if info.type == "email-send"] == [()]
    assert await the_state(engine, created.key) is State.PENDING


async def test_a_function_without_schedule_leaves_its_trigger_and_one_that_is_gone_can_be_forgotten(
    fleet: Fleet, engine: Engine
) -> None:
    report, mail = (
        replace(NIGHTLY, worker_id=function_id(type), title=type, type=type) for type in ("report", "Mailer")
    )
    await fleet.declare([], [report, mail], ["report", "Mailer"])
    await fleet.declare([MAILER], [NIGHTLY])
    assert len(await fleet.triggers()) == 3

    await fleet.declare([], [report], ["report", "Mailer", "other"])

    assert [view.entry for view in await fleet.triggers()] == [NIGHTLY, report]
    await engine.trigger_marks([report.name])
    assert await fleet.forget_worker("report") == 0
    assert {entry.name for entry in await engine.registered(None)} == {"a1", NIGHTLY.name}


async def test_a_worker_that_runs_is_not_forgotten(fleet: Fleet) -> None:
    await fleet.declare([MAILER], [])
    await fleet.beat(MANAGER, [PROCESS])

    with pytest.raises(InvalidInput, match="'Mailer' runs in process host-1/0; stop it first"):
        await fleet.forget_worker("a1")


async def test_a_worker_whose_process_is_between_two_lives_is_not_forgotten(fleet: Fleet) -> None:
    await fleet.declare([MAILER], [])
    await fleet.beat(replace(MANAGER, workers=("a1",)), [])

    with pytest.raises(InvalidInput, match="'Mailer' is run by manager host-1; stop it first"):
        await fleet.forget_worker("a1")


async def test_what_waits_for_a_forgotten_worker_alone_is_cancelled(fleet: Fleet, engine: Engine) -> None:
    await fleet.declare([MAILER], [NIGHTLY])
    later = a_new_job(type=own_source("a1"), run_at_ms=START_MS + HOUR_MS)
    keys = [await fleet.fire("Nightly"), (await engine.create([later]))[0].key]
    [foreign] = await engine.create([a_new_job()])

    assert await fleet.forget_worker("a1") == 2

    assert [await the_state(engine, key) for key in keys] == [State.CANCELLED] * 2
    assert await the_state(engine, foreign.key) is State.PENDING


async def test_a_manager_is_seen_whatever_stands_in_the_error_of_its_worker(fleet: Fleet) -> None:
    await fleet.beat(MANAGER, [replace(PROCESS, broken={"b2": "cannot read \udcff" + "x" * 1_000_000})])

    assert await fleet.managers() == [MANAGER]
    [process] = await fleet.processes()
    assert process.broken["b2"].startswith("cannot read \\udcffxxx")
    assert len(process.broken["b2"]) == PROBLEM_CHARS_MAX


@pytest.mark.parametrize(
    "body",
    ["{", "[]", "{}", '{"id":"a1"}', '{"id":"a1","title":5}', '{"id":"a1","title":"x","sources":"y"}'],
    ids=["no JSON", "no object", "empty", "too little", "wrong text", "wrong list"],
)
async def test_what_somebody_else_wrote_into_the_registry_is_left_out(
    fleet: Fleet, engine: Engine, body: str, caplog: pytest.LogCaptureFixture
) -> None:
    await fleet.declare([MAILER], [NIGHTLY])
    for kind in ("worker", "trigger", "manager", "process"):
        await engine.register(kind, "zz", body)
    await engine.register("trigger-mark", NIGHTLY.name, body)

    assert [view.entry for view in await fleet.workers()] == [MAILER]
    assert [(view.entry, view.began_ms) for view in await fleet.triggers()] == [(NIGHTLY, None)]
    assert [*await fleet.processes(), *await fleet.managers()] == []
    assert "cannot be read" in caplog.text


async def test_cards_of_a_newer_version_are_read(fleet: Fleet, engine: Engine) -> None:
    await engine.register("worker", "a1", '{"id":"a1","title":"Mailer","colour":{"hue":3}}')

    assert [view.entry for view in await fleet.workers()] == [WorkerEntry(id="a1", title="Mailer")]


async def test_a_job_whose_worker_is_switched_off_says_so(fleet: Fleet, engine: Engine, service: JobService) -> None:
    await fleet.declare([replace(MAILER, title="The mailer"), AUDITOR], [])
    await engine.subscribe("email-send", "a1")
    await engine.subscribe("email-send", "b2")
    job = await a_pending_job(engine)
    await fleet.switch_worker("b2", False)
    assert "disabled" not in (await in_process(service).explain(job.key)).text
    await fleet.switch_worker("a1", False)

    explanation = await in_process(service).explain(job.key)

    assert explanation.reason is Reason.NOT_ASKED
    assert explanation.text == ("its worker 'The mailer' is disabled; enable it with: everwork workers on 'The mailer'")


async def test_a_job_that_others_ask_for_says_so_besides(fleet: Fleet, engine: Engine, service: JobService) -> None:
    await fleet.declare([MAILER], [])
    await fleet.switch_worker("a1", False)
    job = await a_pending_job(engine)
    await asked(engine, type="email-send", tenants=("nobody",))

    explanation = await in_process(service).explain(job.key)

    assert explanation.reason is Reason.QUEUED
    assert explanation.text == (
        "ready: waiting for a free worker, 0 jobs ahead of it in its lane; "
        "its worker 'Mailer' is disabled; enable it with: everwork workers on Mailer"
    )


@pytest.mark.parametrize("title", ["-x", "two\nlines", "x" * 300])
async def test_a_title_that_cannot_be_typed_is_not_told_to_be(
    fleet: Fleet, engine: Engine, service: JobService, title: str
) -> None:
    await fleet.declare([replace(MAILER, title=title)], [])
    await fleet.switch_worker("a1", False)
    job = await a_pending_job(engine)

    assert (await in_process(service).explain(job.key)).text.endswith("enable it with: everwork workers on a1")
