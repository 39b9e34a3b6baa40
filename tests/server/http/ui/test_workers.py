"""The page of workers: processes, what they run, worker classes, and others that hold jobs."""

from __future__ import annotations

import re

from everwork.service.fleet.entries import ProcessEntry
from everwork.service.fleet.fleet import Fleet
from tests.fleets import WORKER_ID, a_process, a_trigger
from tests.server.http.serving import JOBS, Rest
from tests.server.http.ui.visiting import Visitor, visiting


def row(page: str, key: str) -> str:
    """A row of a table."""
    [found] = re.findall(rf'<tr data-key="{re.escape(key)}".*?</tr>', page, re.DOTALL)
    return str(found)


async def test_each_process_is_shown_with_what_it_runs_and_what_is_broken(visitor: Visitor) -> None:
    rest = visitor.rest
    await a_trigger(rest.engine)
    broken = {WORKER_ID: "ImportError: no module named 'shop'"}
    await a_process(rest.engine, broken=broken, memory_bytes=52_428_800, ended=1_234, restarts=2, running=1)
    await rest.job(type="mails")
    asked = {"type": "mails", "worker": "m1/0", "max_jobs": 1}
    [job] = (await rest.ok("POST", f"{JOBS}/activate", asked))["jobs"]
    held = await rest.leased(type="sms-send")
    page = await visitor.page("/ui/workers")
    process = row(page, "p-manager-m1/0-")
    for told in (
        "here, pid 17",
        "busy<",
        "1 does not start",
        "mailer does not start: ImportError",
        "50.0 MiB",
    ):
        assert told in process, told
    assert ("1,234" in process, "2 restarts" in process) == (True, True)
    assert f"/ui/jobs/{job['key']}" in process
    worker = row(page, f"w-{WORKER_ID}")
    for told in ("mailer", ">does not start<", "/ui/type?name=mails", "its own source", "1.5 min"):
        assert told in worker, told
    assert f"/ui/jobs/{held['key']}" in row(page, "o-w1")
    assert "pid 16" in row(page, "m-m1")


async def test_a_type_whose_only_worker_does_not_start_says_so_until_somebody_asks_for_it(visitor: Visitor) -> None:
    rest = visitor.rest
    await a_trigger(rest.engine)
    await a_process(rest.engine, broken={WORKER_ID: "ImportError"})
    await rest.job(type="mails")
    await rest.server.context.sampler.fresh()
    for path in ("/ui/types", "/ui/type?name=mails"):
        assert '<span class="state state-broken">does not start</span>' in await visitor.page(path)
    await rest.ok("POST", f"{JOBS}/activate", {"type": "mails", "worker": "w1", "max_jobs": 1})
    await rest.server.context.sampler.fresh()
    assert "does not start" not in await visitor.page("/ui/types")


async def test_a_worker_is_switched_and_a_process_restarted_and_both_are_noted(visitor: Visitor) -> None:
    engine = visitor.rest.engine
    await a_trigger(engine)
    await a_process(engine)
    said = await visitor.done("/ui/workers/switch", "/ui/workers", worker=WORKER_ID, on="no")
    assert said["text"] == "mailer is disabled: it takes no new jobs; running jobs continue."
    assert (await Fleet(engine).off()).workers == {WORKER_ID}
    assert "Enable" in row(await visitor.page("/ui/workers"), f"w-{WORKER_ID}")
    assert "already" in (await visitor.done("/ui/workers/switch", worker=WORKER_ID, on="no"))["text"]
    await visitor.done("/ui/workers/switch", worker=WORKER_ID, on="yes")
    said = await visitor.done("/ui/workers/restart", process="m1/0")
    assert said["text"] == "Process m1/0 is being replaced. Its running jobs can finish first."
    assert "being replaced" in row(await visitor.page("/ui/workers"), "p-manager-m1/0-")
    noted = [(action, target) for action, target, _ in await visitor.audit()]
    assert noted == [
        ("processes.restart", "m1/0"),
        ("workers.on", WORKER_ID),
        ("workers.off", WORKER_ID),
        ("workers.off", WORKER_ID),
    ]


async def test_workers_that_no_manager_runs_are_shown_while_idle_and_not_offered_a_restart(visitor: Visitor) -> None:
    rest = visitor.rest
    fleet = Fleet(rest.engine)
    mailer = ProcessEntry(name="h-1-ab", kind="application", worker="mailer", types=("mails",), host="h", pid=1)
    await fleet.beat(None, [mailer])
    phone = ProcessEntry(name="phone", kind="poller", types=("sms", "calls (group eu)"), via="server-1")
    await fleet.beat_clients("server-1", [phone], left_out=3)
    page = await visitor.page("/ui/workers")
    shown = row(page, "p-application-h-1-ab-")
    for told in ("h, pid 1", "leases as mailer", "/ui/type?name=mails", "none"):
        assert told in shown, told
    shown = row(page, "p-poller-phone-server-1")
    for told in ("via server-1", "/ui/type?name=sms", '/ui/type?name=calls"', "(group eu)"):
        assert told in shown, told
    assert ("Restart" in page, "At least 3 more streams or pollers" in page) == (False, True)
    listed = await rest.ok("GET", "/api/v1/processes")
    assert [(one["kind"], one["worker"], one["types"]) for one in listed["processes"]] == [
        ("application", "mailer", ["mails"]),
        ("poller", "phone", ["sms", "calls (group eu)"]),
    ]
    assert listed["left_out"] == 3
    refused = await rest.refused(422, "POST", "/api/v1/processes/h-1-ab/restart")
    assert "is not a process of a manager; restart its program where it runs" in refused["detail"]


async def test_who_does_not_live_is_told_in_words(visitor: Visitor) -> None:
    for path, fields in {
        "/ui/workers/restart": {"process": "m9/9"},
        "/ui/workers/switch": {"worker": "nobody", "on": "no"},
    }.items():
        said = await visitor.done(path, "/ui/workers", **fields)
        assert (said["is_good"], "not found" in said["text"], said["to"]) == (False, True, "/ui/workers")
    page = await visitor.page("/ui/workers")
    assert "everwork worker app:manager" in page
    assert "No workers are running" in page
    assert "Other leases" not in page


async def test_a_key_that_may_only_read_is_offered_no_switch(local: Rest) -> None:
    await a_trigger(local.engine)
    await a_process(local.engine)
    async with visiting(local, "jobs:read") as reader:
        page = await reader.page("/ui/workers")
        assert ("m1/0" in page, "Restart" in page, "Disable" in page) == (True, False, False)
