"""everwork workers and triggers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.service.fleet.fleet import Fleet
from tests.factories import a_processing_job, the_job
from tests.fleets import WORKER_ID, a_process, a_trigger

if TYPE_CHECKING:
    from everwork.engines.contract import Engine
    from tests.cli.conftest import Cli


async def test_a_worker_is_listed_and_switched(cli: Cli, engine: Engine) -> None:
    await a_trigger(engine)
    await a_process(engine)
    assert cli("workers", "off", "mailer").out == "mailer: disabled\n"
    live_head, live, _, head, row = (line.split() for line in cli("workers", "list").out.splitlines())
    assert live_head == ["NAME", "KIND", "UPTIME", "RUNNING", "HEARTBEAT", "TYPES"]
    assert (live[:2], live[3], live[-1]) == (["m1/0", "manager"], "0", "mailer")
    assert head == ["WORKER", "CLASS", "ID", "STATUS", "PROCESSES", "CONCURRENCY", "TIMEOUT", "SOURCES"]
    assert row == ["mailer", WORKER_ID, "disabled", "1", "2", "90s", "mails"]
    assert cli("workers", "on", WORKER_ID, "--json").json == {
        "id": WORKER_ID,
        "title": "mailer",
        "on": True,
        "changed": True,
    }
    assert cli("workers", "on", "mailer").out == "mailer: already enabled\n"
    assert [one["on"] for one in cli("workers", "list", "--json").json["workers"]] == [True]


async def test_processes_are_listed_and_a_worker_that_does_not_start_is_told(cli: Cli, engine: Engine) -> None:
    await a_trigger(engine)
    await a_process(engine, memory_bytes=50 * 1_048_576, broken={WORKER_ID: "startup: no such host"}, running=3)
    assert cli("workers", "list").out.splitlines()[-1] == "mailer failed to start in m1/0: startup: no such host"
    row = cli("workers", "processes").out.splitlines()[1].split()
    assert row[:6] == ["m1/0", "manager", "running", "m1", "here", "17"]
    assert row[7:12] == ["3", "0", "0", "50", "MB"]
    assert row[13:] == ["ago", "mailer"]
    assert [one["name"] for one in cli("workers", "processes", "--json").json["managers"]] == ["m1"]


async def test_a_trigger_is_listed_switched_and_fired(cli: Cli, engine: Engine) -> None:
    entry = await a_trigger(engine)
    assert cli("triggers", "off", "nightly-report").out == "nightly-report: disabled\n"
    row = cli("triggers", "list").out.splitlines()[1].split()
    assert row == ["nightly-report", "mailer", "disabled", "every", "day", "no", "never", "-", entry.name]
    fired = cli("triggers", "fire", entry.name, "--json").json
    assert (await the_job(engine, int(fired["key"]))).type == entry.type
    assert cli("triggers", "on", entry.name).out == "nightly-report: enabled\n"
    assert [one["on"] for one in cli("triggers", "list", "--json").json["triggers"]] == [True]


async def test_a_process_is_asked_to_be_restarted(cli: Cli, engine: Engine) -> None:
    await a_process(engine)
    assert cli("workers", "restart", "m1/0").out == "m1/0: its manager m1 will replace it\n"
    assert cli("workers", "processes").out.splitlines()[1].split()[2] == "restarting"


async def test_what_runs_is_listed_with_who_holds_it(cli: Cli, engine: Engine) -> None:
    await a_process(engine)
    jobs = [await a_processing_job(engine, worker=name, type=name) for name in ("m1/0", "node-7")]
    rows = [line.split() for line in cli("workers", "running").out.splitlines()[1:]]
    assert [(row[0], row[1], *row[5:]) for row in rows] == [
        (str(jobs[0].key), "m1/0", "manager", "m1/0"),
        (str(jobs[1].key), "node-7", "-", "node-7"),
    ]


async def test_a_trigger_shows_when_it_fires_next_and_what_it_has_made(cli: Cli, engine: Engine) -> None:
    entry = await a_trigger(engine)
    await engine.trigger_marks([entry.name])
    key = str(await Fleet(engine).fire(entry.name))
    head, _, row = cli("triggers", "show", "nightly-report").out.splitlines()
    assert head.startswith("nightly-report: enabled, every day; scheduled for ")
    assert head.endswith(", but no running worker serves it")
    assert (row.split()[:2], row.split()[-1]) == ([key, "pending"], "manual")
    await Fleet(engine).register_firing("app", [entry.name])
    shown = cli("triggers", "show", entry.name, "--json").json
    assert (shown["served"], [fire["key"] for fire in shown["fires"]]) == (True, [key])


async def test_a_worker_is_forgotten_with_its_triggers(cli: Cli, engine: Engine) -> None:
    await a_trigger(engine)
    assert cli("workers", "forget", "mailer").out == "mailer: deleted; 0 pending jobs cancelled\n"
    none = "no worker processes; start one: everwork worker MODULE:NAME\n"
    assert cli("workers", "list").out == none
    assert cli("triggers", "list").out == "no triggers; workers declare them with triggers= or cron=\n"
    assert cli("workers", "processes").out == none


@pytest.mark.parametrize("command", ["workers on", "workers forget", "triggers off", "triggers fire"])
async def test_what_is_not_there_is_not_found(cli: Cli, engine: Engine, command: str) -> None:
    answer = cli(*command.split(), "nobody")
    what = command.split(maxsplit=1)[0].removesuffix("s")
    assert (answer.code, answer.complaint) == (1, f"{what} 'nobody' not found")
