"""The page of workers: processes, what they run, worker classes, and others that hold jobs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from everwork.core.job import NewJob
from everwork.core.leasing import Demand
from everwork.service.fleet.entries import ProcessEntry
from everwork.service.fleet.fleet import Fleet
from tests.fleets import WORKER_ID, a_process, a_trigger
from tests.server.http.serving import JOBS, Rest
from tests.server.http.ui.timed_dashboard import timed_dashboard
from tests.server.http.ui.visiting import Visitor, visiting
from tests.stores import MINUTE_MS, SECOND_MS


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
        assert '<span class="state state-broken">fails to start</span>' in await visitor.page(path)
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
    assert "is not started by a manager; restart its program on its own host" in refused["detail"]


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


# What needs attention -------------------------------------------------------------------------------------


def tiles_in(page: str) -> dict[str, str]:
    """The figures at the top."""
    return dict(re.findall(r'class="tile-label">([^<]+)</span><span class="tile-value">([^<]+)<', page))


def attention_in(page: str) -> str:
    """What needs attention, as people read it."""
    found = page.partition('id="attention"')[2].partition("</section>")[0].partition(">")[2]
    return " ".join(re.sub("<[^>]+>", "", found).split())


async def test_what_does_not_start_is_told_first_with_its_process_and_reason(visitor: Visitor) -> None:
    await a_trigger(visitor.rest.engine)
    await a_process(visitor.rest.engine, broken={WORKER_ID: "ImportError: no module named 'shop'"})
    page = await visitor.page("/ui/workers")
    told = attention_in(page)
    assert "mailer does not start in process m1/0: ImportError: no module named 'shop'" in told
    assert tiles_in(page)["does not start"] == "1"
    assert page.index('id="attention"') < page.index('id="processes"')
    assert 'class="state state-broken">does not start<' in row(page, f"w-{WORKER_ID}")


async def test_a_process_without_heartbeat_or_with_an_expired_lease_is_stuck(tmp_path: Path) -> None:
    async with timed_dashboard(tmp_path, [NewJob("mails")]) as world:
        fleet, clock = Fleet(world.engine), world.clock
        held = ProcessEntry(name="h-1", kind="application", types=("mails",), host="h", pid=1, state="running")
        await fleet.beat(None, [held])
        [job] = (await world.engine.activate([Demand("mails", "h-1", 1, SECOND_MS)])).jobs
        page = await world.page("/ui/workers")
        assert (tiles_in(page)["busy"], attention_in(page)) == ("1", "")
        clock.advance(ms=17 * SECOND_MS)
        await fleet.beat(None, [held])
        told = attention_in(await world.page("/ui/workers"))
        assert f"h-1 is stuck: the lease of job {job.key} expired" in told


async def test_due_jobs_that_no_worker_polls_for_are_told(tmp_path: Path) -> None:
    async with timed_dashboard(tmp_path, [NewJob("orphans")]) as world:
        world.clock.advance(ms=10 * MINUTE_MS)
        page = await world.page("/ui/workers")
        assert "orphans has due jobs, but no worker is polling for it" in attention_in(page)
        assert tiles_in(page)["no worker"] == "1"


async def test_functions_streams_and_pollers_are_listed_with_worker_classes_and_what_they_run(
    visitor: Visitor,
) -> None:
    rest, fleet = visitor.rest, Fleet(visitor.rest.engine)
    await a_trigger(rest.engine)
    await a_process(rest.engine)
    app = ProcessEntry(name="app-1", kind="application", types=("sms-send",), host="h", pid=1, state="running")
    await fleet.beat(None, [app])
    stream = ProcessEntry(name="s-1", kind="stream", types=("calls",), via="server-1", state="running")
    await fleet.beat_clients("server-1", [stream, replace(stream, name="s-2")], left_out=0)
    await rest.job(type="sms-send")
    await rest.ok("POST", f"{JOBS}/activate", {"type": "sms-send", "worker": "app-1", "max_jobs": 1})
    page = await visitor.page("/ui/workers")
    function, streams, mailer = (
        row(page, "f-function-sms-send"), row(page, "f-stream-calls"), row(page, f"w-{WORKER_ID}"),
    )  # fmt: skip
    assert (">busy<" in function, 'data-label="Running" class="num">1<' in function) == (True, True)
    assert (">idle<" in streams, 'data-label="Processes" class="num">2<' in streams) == (True, True)
    assert (">idle<" in mailer, ">worker class<" in mailer) == (True, True)
    assert {name: tiles_in(page)[name] for name in ("busy", "idle", "stuck")} == {
        "busy": "1",
        "idle": "3",
        "stuck": "0",
    }
    assert page.index("p-application-app-1-") < page.index("p-manager-m1/0-")  # Busy ones first.


async def test_many_workers_are_filtered_by_name_kind_and_status(visitor: Visitor) -> None:
    fleet = Fleet(visitor.rest.engine)
    await a_trigger(visitor.rest.engine)
    assert 'name="text"' not in await visitor.page("/ui/workers")
    many = [
        ProcessEntry(name=f"p-{at}", kind="poller", types=(f"type-{at}",), via="s", state="running") for at in range(20)
    ]
    await fleet.beat_clients("s", many, left_out=0)
    assert 'name="text"' in await visitor.page("/ui/workers")
    shown = {
        "text=TYPE-7": (["p-poller-p-7-s"], ["f-poller-type-7"]),
        "kind=worker+class": ([], [f"w-{WORKER_ID}"]),
        "status=busy": ([], []),
        "status=not+running": ([], [f"w-{WORKER_ID}"]),
        "text=%3Cb%3E": ([], []),
    }
    for query, (processes, handlers) in shown.items():
        page = await visitor.page(f"/ui/workers?{query}")
        assert re.findall(r'<tr data-key="(p-[^"]+)"', page) == processes, query
        assert re.findall(r'<tr data-key="([fw]-[^"]+)"', page) == handlers, query
        assert ">Clear</a>" in page
