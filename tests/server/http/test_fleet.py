"""Workers, triggers and processes over REST."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from everwork.service.fleet.entries import WorkerEntry
from everwork.service.fleet.fleet import Fleet
from tests.fleets import WORKER_ID, a_process, a_trigger
from tests.server.http.serving import JOBS, Rest

WORKER = f"/api/v1/workers/{WORKER_ID}"
TRIGGER = f"/api/v1/triggers/{WORKER_ID}/nightly"


async def test_a_worker_is_listed_switched_off_and_on_by_its_id_or_title(rest: Rest) -> None:
    await a_trigger(rest.engine)
    await a_process(rest.engine, broken={WORKER_ID: "no such host"})
    switched = await rest.ok("POST", f"{WORKER}/off")
    assert switched == {"id": WORKER_ID, "title": "mailer", "on": False, "changed": True}
    [listed] = (await rest.ok("GET", "/api/v1/workers"))["workers"]
    assert (listed["title"], listed["on"], listed["processes"]) == ("mailer", False, 0)
    assert listed["sources"] == ["mails", f"worker:{WORKER_ID}:source"]
    assert listed["broken"] == ["m1/0: no such host"]
    assert (await rest.ok("POST", "/api/v1/workers/mailer/on"))["changed"] is True
    assert (await rest.ok("POST", f"{WORKER}/on"))["changed"] is False


async def test_a_trigger_is_listed_switched_and_fired_by_hand(rest: Rest) -> None:
    await a_trigger(rest.engine, lifetime_ms=5_000)
    assert (await rest.ok("POST", f"{TRIGGER}/off"))["on"] is False
    [listed] = (await rest.ok("GET", "/api/v1/triggers"))["triggers"]
    assert (listed["worker"], listed["id"], listed["on"], listed["last"]) == (WORKER_ID, "nightly", False, None)
    assert (listed["variables"], listed["lifetime_ms"]) == ({"pages": 3}, 5_000)
    fired = await rest.ok("POST", f"{TRIGGER}/fire")
    job = await rest.ok("GET", f"{JOBS}/{fired['key']}")
    assert (job["type"], job["variables"]) == (f"worker:{WORKER_ID}:source", {"pages": 3})
    assert (await rest.ok("POST", f"{TRIGGER}/on"))["changed"] is True
    [listed] = (await rest.ok("GET", "/api/v1/triggers"))["triggers"]
    assert (listed["on"], listed["began"] is not None) == (True, True)


async def test_what_lives_is_listed(local: Rest) -> None:
    process = await a_process(local.engine, memory_bytes=1_000)
    alive = await local.ok("GET", "/api/v1/processes")
    assert [one["name"] for one in alive["managers"]] == [process.manager]
    [shown] = alive["processes"]
    assert (shown["pid"], shown["state"], shown["workers"]) == (17, "running", [WORKER_ID])
    assert (shown["started_at"], shown["memory_bytes"]) == ("2026-01-01T12:00:00.000Z", 1_000)
    assert (shown["beat"] > shown["started_at"], shown["restarting"]) == (True, False)


async def test_a_process_is_asked_to_be_restarted_and_the_wish_is_noted(local: Rest) -> None:
    process = await a_process(local.engine)
    asked = await local.ok("POST", f"/api/v1/processes/{quote(process.name, safe='')}/restart")
    assert asked == {"name": "m1/0", "manager": "m1", "restarting": True}
    assert [entry.name for entry in await local.engine.registered("restart")] == ["m1/0"]
    assert [one["restarting"] for one in (await local.ok("GET", "/api/v1/processes"))["processes"]] == [True]
    [entry] = (await local.ok("GET", "/api/v1/audit"))["entries"]
    assert (entry["action"], entry["target"], entry["detail"]) == ("processes.restart", "m1/0", {"manager": "m1"})
    refused = await local.refused(404, "POST", "/api/v1/processes/nobody/restart")
    assert refused["detail"] == "process 'nobody' not found"


async def test_what_runs_is_listed_with_who_holds_it(rest: Rest) -> None:
    job = await rest.leased(type="a")
    found = await rest.ok("GET", "/api/v1/running")
    [shown] = found["jobs"]
    assert (shown["key"], shown["type"], shown["process"]) == (job["key"], "a", None)
    assert (shown["activated_at"] < shown["deadline"], found["cut"]) == (True, False)
    assert found["others"] == {shown["worker"]: 1}
    refused = await rest.refused(422, "GET", "/api/v1/running", params={"limit": 501})
    assert "limit: must be a whole number from 1 to 500" in refused["detail"]


async def test_a_trigger_tells_when_it_fires_next_and_what_it_has_made(local: Rest) -> None:
    card = await a_trigger(local.engine)
    [listed] = (await local.ok("GET", "/api/v1/triggers"))["triggers"]
    unknown = "it starts when a program that declares it first runs"
    assert (listed["next"], listed["next_unknown"], listed["served"]) == (None, unknown, False)
    await local.engine.trigger_marks([card.name])
    [listed] = (await local.ok("GET", "/api/v1/triggers"))["triggers"]
    assert (listed["next"] > listed["began"], listed["next_unknown"]) == (True, None)
    key = (await local.ok("POST", f"{TRIGGER}/fire"))["key"]
    [fire] = (await local.ok("GET", f"{TRIGGER}/fires"))["fires"]
    assert (fire["key"], fire["state"], fire["point"]) == (key, "pending", None)


async def test_a_worker_is_forgotten_once_nobody_runs_it(local: Rest) -> None:
    await a_trigger(local.engine)
    process = await a_process(local.engine)
    refused = await local.refused(422, "DELETE", WORKER)
    assert "runs in process m1/0" in refused["detail"]
    await local.engine.unregister("process", process.name)
    assert await local.ok("DELETE", WORKER) == {"id": WORKER_ID, "title": "mailer", "cancelled": 0}
    assert (await local.ok("GET", "/api/v1/triggers"))["triggers"] == []
    assert (await local.refused(404, "DELETE", WORKER))["code"] == "not_found"


@pytest.mark.parametrize("title", ["x" * 300, "two\nlines"])
async def test_a_worker_goes_by_whatever_title_it_may_have(local: Rest, title: str) -> None:
    await Fleet(local.engine).declare([WorkerEntry(id=WORKER_ID, title=title)], [])
    assert (await local.ok("POST", f"/api/v1/workers/{quote(title)}/off"))["changed"] is True
    refused = await local.refused(422, "POST", f"/api/v1/workers/{'x' * 301}/off")
    assert "worker: must have at most 300 characters" in refused["detail"]


async def test_switches_and_fires_stand_in_the_audit_log(local: Rest) -> None:
    await a_trigger(local.engine)
    for path in (f"{WORKER}/off", f"{WORKER}/on", f"{TRIGGER}/off", f"{TRIGGER}/on", f"{TRIGGER}/fire"):
        await local.ok("POST", path)
    await local.ok("DELETE", "/api/v1/workers/mailer")
    entries = (await local.ok("GET", "/api/v1/audit"))["entries"]
    assert [(one["action"], one["target"]) for one in reversed(entries)] == [
        ("workers.off", WORKER_ID),
        ("workers.on", WORKER_ID),
        ("triggers.off", f"{WORKER_ID}/nightly"),
        ("triggers.on", f"{WORKER_ID}/nightly"),
        ("triggers.fire", f"{WORKER_ID}/nightly"),
        ("workers.forget", WORKER_ID),
    ]


@pytest.mark.parametrize("path", ["workers/none/on", "workers/none/off", "triggers/a/b/on", "triggers/a/b/fire"])
async def test_what_nobody_has_declared_is_not_found(local: Rest, path: str) -> None:
    assert (await local.refused(404, "POST", f"/api/v1/{path}"))["code"] == "not_found"


async def test_a_card_that_somebody_has_spoilt_does_not_spoil_the_list(local: Rest) -> None:
    await a_trigger(local.engine, variables="{")
    await local.engine.register("trigger", "x/y", "[]")
    [listed] = (await local.ok("GET", "/api/v1/triggers"))["triggers"]
    assert (listed["id"], listed["variables"]) == ("nightly", None)
