"""A short real run: planted leaks are caught, and the ledger of a deployment under faults adds up."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pytest

from everwork.client import Client
from tests.soak.__main__ import conclude, main
from tests.soak.judge import judge
from tests.soak.kinds import LATER, QUICK
from tests.soak.ledger import Ledger, at_rest, violations
from tests.soak.picture import picture
from tests.soak.report import publish, table
from tests.soak.run import Outcome, Plan, soak
from tests.soak.series import FILE, Series
from tests.torture.places import Place
from tools.reference.soak import results as soak_results

PLANTED: Final = {"server-1": "descriptors", "server-2": "memory", "app": "threads"}


@pytest.mark.timeout(300)  # On a busy machine, starting five processes takes a while.
async def test_planted_leaks_are_caught_and_no_job_is_lost_under_faults(tmp_path: Path) -> None:
    plan = Plan(
        Place("sqlite"), tmp_path, seconds=2, samples_min=12, every=0.1, rate=10, fault_every=2, longest=0.5,
        workers=("app", "stream-1"), leak=PLANTED,
    )  # fmt: skip
    outcome = await soak(plan, asyncio.Event(), print)
    caught = {(one.subject, one.measure) for one in judge(outcome.series) if one.fails}
    assert {("server-1", "descriptors"), ("server-2", "anonymous_bytes"), ("app", "threads")} <= caught
    innocent = [("stream-1", "descriptors"), ("stream-1", "threads"), ("server-2", "threads")]
    assert not caught.intersection(innocent)
    assert outcome.violations == []
    assert outcome.series.faults()
    assert outcome.jobs > 10


async def books(folder: Path, ledger: Ledger, *, completed: int) -> list[str]:
    """The discrepancies on a store with this many acknowledged jobs and runs."""
    async with Client(f"sqlite:///{folder / 'jobs.db'}") as client:
        for _ in range(completed):
            ledger.create(QUICK, (await client.create(QUICK)).key)
        with (folder / "ran-1.txt").open("w") as ran:
            for job in await client.activate(QUICK, limit=100):
                ran.write(f"{job.key}\n")
                await client.complete(job)
        found = await violations(ledger, folder, client)
    return found + (await at_rest(f"sqlite:///{folder / 'jobs.db'}")).violations


async def test_a_ledger_that_adds_up(tmp_path: Path) -> None:
    assert await books(tmp_path, Ledger(), completed=3) == []


async def test_an_acknowledged_job_that_never_ran_is_noticed(tmp_path: Path) -> None:
    ledger = Ledger()
    ledger.create(QUICK, 999)
    found = await books(tmp_path, ledger, completed=2)
    assert any("never ran: [999]" in one for one in found), found
    assert any("2 completions" in one for one in found), found


async def test_a_job_that_completed_and_was_not_acknowledged_is_noticed(tmp_path: Path) -> None:
    async with Client(f"sqlite:///{tmp_path / 'jobs.db'}") as client:
        await client.create(QUICK)
    found = await books(tmp_path, Ledger(), completed=1)
    assert found == [
        f"2 completions of {QUICK} in the statistics, but 1 jobs to complete and 0 creates without an answer"
    ]


async def test_a_create_without_an_answer_may_have_taken_effect(tmp_path: Path) -> None:
    async with Client(f"sqlite:///{tmp_path / 'jobs.db'}") as client:
        await client.create(QUICK)
    ledger = Ledger()
    ledger.unanswered[QUICK] += 1
    assert await books(tmp_path, ledger, completed=1) == []


async def test_a_job_that_is_left_behind_is_noticed(tmp_path: Path) -> None:
    async with Client(f"sqlite:///{tmp_path / 'jobs.db'}") as client:
        ledger = Ledger()
        ledger.create(LATER, (await client.create(LATER, delay=60)).key)
    found = await books(tmp_path, ledger, completed=1)
    assert f"1 jobs of {LATER} have not finished" in found


async def test_a_job_that_the_counts_miss_is_noticed(tmp_path: Path) -> None:
    assert await books(tmp_path, Ledger(), completed=2) == []
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection, connection:
        connection.execute("DELETE FROM ew_finished WHERE key = 2")
    books_at_rest = await at_rest(f"sqlite:///{tmp_path / 'jobs.db'}")
    assert books_at_rest.violations == ["2 completed jobs counted, 1 listed"]


def made(leaks: bool) -> Series:
    """One hour of samples of a server and its store."""
    series = Series()
    for minute in range(60):
        memory = 90_000_000 + (minute * 1_000_000 if leaks else 0)
        series.add(minute * 60, "server-1", {"rss_bytes": memory, "descriptors": 40, "threads": 10, "tasks": 60})
        series.add(minute * 60, "store", {"rows job": 12_000, "store_bytes": 20_000_000, "wal_bytes": 4_000_000})
        series.add(minute * 60, "latency <enqueue>", {"p50_ms": 5.5, "p99_ms": 20.25})
    series.add(600, "faults", {"worker killed": 1})
    return series


def test_the_chart_shows_every_process_and_fault() -> None:
    drawn = picture(made(leaks=True), "Soak & more")
    root = ElementTree.fromstring(drawn)
    texts = ["".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Resident memory (MiB)", "Open descriptors", "server-1", "<enqueue>"} <= set(texts)
    assert drawn.count("#dc2626") == texts.count("server-1") + 4


def test_the_table_names_what_failed_first() -> None:
    lines = table(judge(made(leaks=True))).splitlines()
    assert lines[1].split()[:3] == ["FAIL", "server-1", "rss_bytes"]
    assert all(line.startswith("ok") for line in lines[2:])


@pytest.mark.parametrize(("leaks", "code"), [(False, 0), (True, 1)])
def test_an_earlier_run_is_judged_again(
    leaks: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    series = Series(tmp_path / FILE)
    for subject, measure, points in made(leaks).lines():
        for point in points:
            series.add(point.seconds, subject, {measure: point.value})
    monkeypatch.setattr("sys.argv", ["soak", "--judge", str(tmp_path)])
    assert main() == code
    assert json.loads((tmp_path / "soak.json").read_text())["passed"] is not leaks
    assert (tmp_path / "soak.svg").exists()


def test_a_finished_run_is_published_beside_those_of_other_engines(tmp_path: Path) -> None:
    folders = [tmp_path / engine for engine in ("sqlite", "redis")]
    (tmp_path / "explanation").mkdir()
    (tmp_path / "images").mkdir()
    for folder in folders:
        folder.mkdir()
        outcome = Outcome(made(leaks=False), {}, {}, [], jobs=7, seconds=3_600, seed=3, store=f"{folder.name} 1.0")
        conclude(folder, folder.name, outcome)
        publish(folder, tmp_path)
    shown = soak_results(tmp_path)
    assert "| | sqlite 1.0 | redis 1.0 |" in shown
    assert "![" in shown
    assert (tmp_path / "images" / "soak-redis.svg").exists()


def test_a_run_without_enough_samples_is_inconclusive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Series(tmp_path / FILE).add(1, "server-1", {"rss_bytes": 1})
    monkeypatch.setattr("sys.argv", ["soak", "--judge", str(tmp_path)])
    assert main() == 2
