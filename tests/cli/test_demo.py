"""everwork up --demo: it works, it shows it, and it stops when it is told to."""

from __future__ import annotations

import json
import re
import signal
from typing import TYPE_CHECKING

import pytest

from everwork.app.tick import TickResult
from everwork.cli.demo import QUICK_RETRY, Journal, demo_app
from tests.cli.conftest import DEADLINE_SECONDS

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

DEMO_ENGINE = ["--engine", "sqlite:///everwork-demo.db"]
DEMO = ["up", "--demo", "--grpc-port", "0", "--http-port", "0"]
"""On free ports: other tests have servers too."""


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_runs_until_a_signal_and_stops_cleanly(cli: Cli, stop: signal.Signals) -> None:
    with cli.start(*DEMO) as demo:
        assert demo.stdout is not None
        assert demo.stdout.readline() == "Everwork is running; press Ctrl-C to stop\n"
        # A dead letter is there: whatever the demo shows has happened at least once.
        line = next(line for line in demo.stdout if re.search(r"[1-9]\d* completed, [1-9]\d* failed", line))
        demo.send_signal(stop)
        out, err = demo.communicate(timeout=DEADLINE_SECONDS)
    assert re.match(r"00:\d\d \d+ pending, \d+ processing, .* completed/s\n", line)
    assert (demo.returncode, err) == (0, "")
    assert "\nStopped after " in out


def test_what_the_demo_did_can_be_looked_at(cli: Cli) -> None:
    assert cli(*DEMO, "--seconds", "3").code == 0
    counts = cli("stats", *DEMO_ENGINE, "--json").json
    assert (counts["by_state"]["completed"] > 0, counts["by_state"]["processing"]) == (True, 0)
    assert counts["performance"]["retried"] > 0
    [dead, *_] = cli("jobs", "list", "--state", "failed", *DEMO_ENGINE, "--json").json["jobs"]
    assert (dead["type"], dead["last_error"]) == ("payment-charge", "the card was declined")
    [later, *_] = cli("jobs", "list", "--type", "reminder-send", *DEMO_ENGINE, "--json").json["jobs"]
    assert later["run_at"] > later["created_at"]


def test_the_demo_goes_on_with_what_the_last_run_left(cli: Cli) -> None:
    cli(*DEMO, "--seconds", "1.2", "--engine", "sqlite:///mine.db")
    answer = cli(*DEMO, "--seconds", "0.5", "--engine", "sqlite:///mine.db")
    assert (answer.code, answer.err) == (0, "")
    assert [file.name for file in cli.folder.glob("*.db")] == ["mine.db"]


def test_sample_jobs_never_go_into_the_engine_of_the_environment(cli: Cli) -> None:
    cli(*DEMO, "--seconds", "0.1", EVERWORK_ENGINE="sqlite:///production.db")
    assert [file.name for file in cli.folder.glob("*.db")] == ["everwork-demo.db"]


async def test_what_fails_in_the_demo_is_tried_again_as_soon_as_it_says(cli: Cli) -> None:
    async with demo_app(f"sqlite:///{cli.file}", Journal()) as app:
        jobs = [("email-send", {"number": number, "to": "ann"}) for number in range(5)]
        jobs += [("report-build", {"number": number}) for number in range(3)]
        keys = await app.enqueue_many(jobs)
        assert await app.run_once(len(jobs)) == TickResult(ran=8, completed=6, retried=2)
        ends = [entry for key in keys for entry in await app.history(key) if entry.kind == "fail"]
    assert [(end.retry_at_ms or 0) - end.at_ms for end in ends] == [1_000 * QUICK_RETRY.base] * 2


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "soon"])
def test_a_running_time_that_is_none_is_refused(cli: Cli, seconds: str) -> None:
    answer = cli(*DEMO, "--seconds", seconds)
    assert answer.complaint.startswith("seconds: must be a number from 0.1 to 604800, not ")
    assert (answer.code, list(cli.folder.iterdir())) == (2, [])


def test_the_demo_speaks_json_when_asked_to(cli: Cli) -> None:
    answer = cli(*DEMO, "--json", "--seconds", "1")
    server, *looks = [json.loads(line) for line in answer.out.splitlines()]
    assert answer.code == 0
    assert server["api_key"].startswith("ew_")
    assert looks
    assert set(looks[-1]) == {"seconds", "by_state", "completed_per_s"}
