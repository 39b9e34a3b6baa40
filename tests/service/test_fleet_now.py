"""The fleet as it is now: who was heard of when, what each runs, what triggers did and will do, and wishes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everwork.core.queries import Reason
from everwork.core.schedule import Every, Plan
from everwork.core.states import State
from everwork.engines.contract import Engine
from everwork.exceptions import InvalidInput, NotFound
from everwork.service.fleet.entries import ManagerEntry, ProcessEntry
from everwork.service.fleet.fleet import RESTART_TTL_MS, Fleet
from everwork.service.fleet.live import FLEET_TTL_MS
from everwork.service.fleet.running import running_jobs
from everwork.service.jobs import in_process
from everwork.service.service import JobService
from everwork.service.triggers.loop import Scheduled
from tests.factories import a_new_job, a_pending_job, a_processing_job
from tests.fleets import WORKER_ID, a_process, a_trigger
from tests.stores import DAY_MS, START_MS, VirtualClock


@pytest.fixture
def fleet(engine: Engine) -> Fleet:
    """The fleet of the test's engine."""
    return Fleet(engine)


async def test_a_process_was_heard_of_when_it_last_gave_a_sign_of_life(
    fleet: Fleet, engine: Engine, clock: VirtualClock
) -> None:
    await a_process(engine, quiet_ms=1_500)
    clock.advance(ms=FLEET_TTL_MS - 1)

    [view] = await fleet.process_views()

    assert (view.entry.name, view.beat_ms, view.is_restarting) == ("m1/0", START_MS - 1_500, False)


async def test_a_restart_is_a_wish_that_is_taken_once_and_does_not_last(
    fleet: Fleet, engine: Engine, clock: VirtualClock
) -> None:
    process = await a_process(engine)
    assert await fleet.restart(process.name) == process
    assert [view.is_restarting for view in await fleet.process_views()] == [True]

    assert await fleet.restarts() == {process.name}
    assert [await fleet.take_restart(process.name) for _ in range(2)] == [True, False]
    assert [view.is_restarting for view in await fleet.process_views()] == [False]

    await fleet.restart(process.name)
    clock.advance(ms=RESTART_TTL_MS)
    assert await fleet.restarts() == set()


async def test_who_does_not_live_or_is_leaving_cannot_be_restarted(fleet: Fleet, engine: Engine) -> None:
    await a_process(engine, state="stopping")

    with pytest.raises(NotFound, match="process 'm1/7' not found"):
        await fleet.restart("m1/7")
    with pytest.raises(InvalidInput, match="process: 'm1/0' is already shutting down"):
        await fleet.restart("m1/0")
    assert await fleet.restarts() == set()


async def test_what_runs_is_told_with_its_process_or_as_held_by_another(engine: Engine, clock: VirtualClock) -> None:
    foreign = await a_processing_job(engine, worker="node-7", type="b")
    clock.advance(ms=10)
    ours = await a_processing_job(engine, worker="p1", tenant="acme")
    await a_pending_job(engine)

    found = await running_jobs(engine, {"p1": ProcessEntry(name="p1")}, 10)

    assert [(job.key, job.worker, job.process, job.activated_at_ms) for job in found.jobs] == [
        (foreign.key, "node-7", None, START_MS),
        (ours.key, "p1", "p1", START_MS + 10),
    ]
    assert [job.kind for job in found.jobs] == [None, "manager"]
    assert (found.jobs[1].tenant, found.jobs[1].lease_until_ms) == ("acme", ours.lease_until_ms)
    assert (found.others, found.is_cut) == ({"node-7": 1}, False)
    assert (await running_jobs(engine, {}, 1)).is_cut


async def test_a_trigger_is_served_while_its_manager_or_application_lives(
    fleet: Fleet, engine: Engine, clock: VirtualClock
) -> None:
    entry = await a_trigger(engine)
    await engine.trigger_marks([entry.name])

    async def seen() -> tuple[int | None, bool]:
        [view] = await fleet.triggers()
        return view.next_ms, view.is_served

    assert await seen() == (START_MS + DAY_MS, False)
    await fleet.register_firing("app-1", [entry.name])
    assert await seen() == (START_MS + DAY_MS, True)
    await fleet.end_firing("app-1")
    assert await seen() == (START_MS + DAY_MS, False)
    await fleet.beat(ManagerEntry(name="m", workers=(entry.worker_id,)), [])
    assert await seen() == (START_MS + DAY_MS, True)
    await fleet.switch_trigger(entry.name, False)
    [view] = await fleet.triggers()
    assert (view.next_ms, view.next_unknown) == (None, "it is disabled")


async def test_what_somebody_else_wrote_about_firing_is_left_out(fleet: Fleet, engine: Engine) -> None:
    await a_trigger(engine)
    await engine.register("firing", "app-1", '{"no": "list"}')

    assert [view.is_served for view in await fleet.triggers()] == [False]


async def test_the_latest_fires_of_a_trigger_are_found_among_the_jobs_of_its_type(fleet: Fleet, engine: Engine) -> None:
    entry = await a_trigger(engine)
    one = Scheduled(worker_id=entry.worker_id, trigger_id=entry.id, type=entry.type, plan=Plan(Every(1_000)))
    other = replace(one, trigger_id="nightly-2")
    await engine.fire([one.fire(START_MS + 1), other.fire(START_MS + 1), one.fire(START_MS + 2)])
    await engine.create([a_new_job(type=entry.type)])
    key = await fleet.fire(entry.name)

    fires = await fleet.last_fires(entry.title, 5)

    assert [(fire.point_ms, fire.state) for fire in fires] == [
        (None, State.PENDING),
        (START_MS + 2, State.PENDING),
        (START_MS + 1, State.PENDING),
    ]
    assert fires[0].key == key
    assert await fleet.last_fires(entry.name, 2) == fires[:2]


async def test_a_job_whose_worker_does_not_start_says_so(fleet: Fleet, engine: Engine, service: JobService) -> None:
    await a_trigger(engine)
    [created] = await engine.create([a_new_job(type="mails")])
    broken = {WORKER_ID: f"OSError: no such host\n{'x' * 1_000}"}
    process = await a_process(engine, broken=broken)

    explanation = await in_process(service).explain(created.key)

    assert explanation.reason is Reason.NOT_ASKED
    start = "its worker 'mailer' fails to start in m1/0: OSError: no such host xxx"
    assert explanation.text.startswith(start)
    assert len(explanation.text) < 400
    manager = ManagerEntry(name="m2", workers=(WORKER_ID,))
    await fleet.beat(manager, [ProcessEntry(name="m2/0", manager="m2", state="running", workers=process.workers)])
    assert "does not start" not in (await in_process(service).explain(created.key)).text
