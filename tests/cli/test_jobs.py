"""everwork jobs and stats, when nothing is wrong."""

from __future__ import annotations

import json
import re
import shlex
import sys
from typing import TYPE_CHECKING

import pytest

from everwork.cli.commands.jobs import engine_hint, next_page
from everwork.core.limits import CREATE_BATCH_MAX
from everwork.core.outcome import Complete, Failed, Release
from everwork.core.states import State
from tests.cli.conftest import DEADLINE_SECONDS
from tests.factories import (
    a_completed_job,
    a_dead_letter,
    a_pending_job,
    a_processing_job,
    a_scheduled_job,
    activated,
    settled,
    the_job,
)

if TYPE_CHECKING:
    from everwork.engines.contract import Engine
    from tests.cli.conftest import Cli


# create -------------------------------------------------------------------------------------------


def test_create_says_which_key_the_job_got(cli: Cli) -> None:
    answer = cli("jobs", "create", "email-send")
    assert (answer.code, answer.out, answer.err) == (0, "created job 1 (email-send)\n", "")


def test_create_with_json_prints_the_job(cli: Cli) -> None:
    job = cli("jobs", "create", "email-send", "--variables", '{"to": "ann"}', "--json").json
    assert (job["key"], job["state"], job["variables"], job["deduplicated"]) == ("1", "pending", {"to": "ann"}, False)


def test_a_var_is_json_if_it_is_json_and_text_otherwise(cli: Cli) -> None:
    job = cli(
        "jobs", "create", "x", "--var", "n=5", "--var", "on=true", "--var", "zip=01234", "--var", "e=a=b", "--json"
    )
    assert job.json["variables"] == {"n": 5, "on": True, "zip": "01234", "e": "a=b"}


def test_variables_come_from_standard_input(cli: Cli) -> None:
    job = cli("jobs", "create", "x", "--variables", "-", "--json", stdin=b'{"from": "stdin"}').json
    assert job["variables"] == {"from": "stdin"}


def test_create_takes_everything_that_can_be_said_of_a_job(cli: Cli) -> None:
    options = [
        "--tenant=acme", "--priority=-5", "--run-at=2090-01-31T12:00:00+01:00", "--max-attempts=7", "--dedupe-key=d",
        "--limit-key=l", "--correlation-id=c", "--expires-at=2091-01-01T00:00:00Z", "--timeout=1.5", "--header=a=1",
    ]  # fmt: skip
    job = cli("jobs", "create", "x", *options, "--json").json
    said = {
        "tenant": "acme", "priority": -5, "run_at": "2090-01-31T11:00:00.000Z", "max_attempts": 7, "dedupe_key": "d",
        "limit_key": "l", "correlation_id": "c", "expires_at": "2091-01-01T00:00:00.000Z", "timeout_ms": 1500,
        "headers": {"a": "1"},
    }  # fmt: skip
    assert job.items() >= said.items()


def test_the_same_dedupe_key_creates_nothing_and_says_so(cli: Cli) -> None:
    cli("jobs", "create", "x", "--dedupe-key", "once")
    answer = cli("jobs", "create", "x", "--dedupe-key", "once")
    assert answer.out == "job 1 already has this dedupe key and is pending; nothing was created\n"


def test_count_creates_many_alike(cli: Cli) -> None:
    bulk = cli("jobs", "create", "x", "--count", "3", "--json").json
    assert bulk == {"created": 3, "deduplicated": 0, "keys": ["1", "2", "3"]}


def test_count_may_be_larger_than_one_batch(cli: Cli) -> None:
    answer = cli("jobs", "create", "x", "--count", str(CREATE_BATCH_MAX + 1))
    assert answer.out == "created 10,001 jobs, keys 1 to 10001\n"


def test_a_file_brings_one_job_a_line(cli: Cli) -> None:
    lines = [
        '{"type": "a", "priority": 3}',
        "",
        '{"type": "b", "variables": {"n": 1}, "run_at": "2090-01-01T00:00:00Z"}',
    ]
    (cli.folder / "jobs.jsonl").write_text("\n".join(lines))
    assert cli("jobs", "create", "--file", "jobs.jsonl").out == "created 2 jobs, keys 1 to 2\n"
    newest, oldest = cli("jobs", "list", "--json").json["jobs"]
    assert (oldest["type"], oldest["priority"]) == ("a", 3)
    assert (newest["type"], newest["variables"], newest["run_at"]) == ("b", {"n": 1}, "2090-01-01T00:00:00.000Z")


def test_a_file_may_be_a_pipe_and_may_repeat_dedupe_keys(cli: Cli) -> None:
    line = b'{"type": "a", "dedupe_key": "once"}\n'
    bulk = cli("jobs", "create", "--file", "-", "--json", stdin=line * 2).json
    assert bulk == {"created": 1, "deduplicated": 1, "keys": ["1"]}


# list ---------------------------------------------------------------------------------------------


async def test_get_shows_the_last_traceback_and_every_one_if_asked(cli: Cli, engine: Engine) -> None:
    job = await a_processing_job(engine)
    await settled(engine, Failed(job.key, 1, "boom", backoff_ms=0, traceback="Traceback:\n  first \x1b[31mred"))
    await activated(engine, job)
    await settled(engine, Failed(job.key, 2, "boom", final=True, traceback="Traceback:\n  second"))
    text = cli("jobs", "get", str(job.key)).out
    assert text.endswith(
        "\nTraceback of attempt 2:\nTraceback:\n  second\n\ntracebacks: 2; show all with --tracebacks\n"
    )
    for command in ("jobs get", "dead show"):
        text = cli(*command.split(), str(job.key), "--tracebacks").out
        assert "\nTraceback of attempt 1:\nTraceback:\n  first  [31mred\n\nTraceback of attempt 2:\n" in text
    history = cli("jobs", "get", str(job.key), "--json").json["history"]
    assert history[1]["traceback"] == "Traceback:\n  second"


async def test_get_shows_no_traceback_of_a_failure_before_the_last_one(cli: Cli, engine: Engine) -> None:
    job = await a_processing_job(engine)
    await settled(engine, Failed(job.key, 1, "no answer", final=True, traceback="Traceback:\n  old"))
    await engine.requeue([job.key])
    note = "\n\ntracebacks: 1; show all with --tracebacks\n"
    for attempt in (2, 3):
        text = cli("jobs", "get", str(job.key)).out
        assert "failed here" not in text
        assert text.endswith(note)
        await activated(engine, job)
        await settled(engine, Failed(job.key, attempt, "argument to: unknown", backoff_ms=0))
    assert "\nTraceback of attempt 1:\nTraceback:\n  old" in cli("jobs", "get", str(job.key), "--tracebacks").out


async def test_get_shows_the_last_traceback_also_after_an_attempt_that_was_handed_back(
    cli: Cli, engine: Engine
) -> None:
    job = await a_processing_job(engine)
    await settled(engine, Failed(job.key, 1, "boom", backoff_ms=0, traceback="Traceback:\n  first"))
    await activated(engine, job)
    await settled(engine, Release(job.key, 2))
    assert cli("jobs", "get", str(job.key)).out.endswith("\nTraceback of attempt 1:\nTraceback:\n  first\n")


async def test_get_of_a_completed_job_shows_no_traceback(cli: Cli, engine: Engine) -> None:
    job = await a_processing_job(engine)
    await settled(engine, Failed(job.key, 1, "boom", backoff_ms=0, traceback="Traceback:\n  first"))
    await activated(engine, job)
    await settled(engine, Complete(job.key, 2))
    text = cli("jobs", "get", str(job.key)).out
    assert "Traceback:" not in text
    assert text.endswith("\n\ntracebacks: 1; show all with --tracebacks\n")


async def test_list_shows_a_line_a_job_with_what_is_worth_knowing(cli: Cli, engine: Engine) -> None:
    await a_dead_letter(engine, error="no such\naddress")
    await a_scheduled_job(engine, type="reminder")
    head, scheduled, dead = cli("jobs", "list").out.splitlines()
    assert head.split() == ["KEY", "STATE", "TYPE", "ATTEMPTS", "AGE", "NOTE"]
    assert scheduled.split()[:4] == ["2", "pending", "reminder", "0/5"]
    assert dead.split()[:4] == ["1", "failed", "email-send", "1/5"]
    assert dead.endswith("no such address")


@pytest.mark.parametrize(
    "filter",
    [
        "--state=ERROR",
        "--type=wanted",
        "--tenant=acme",
        "--worker=w9",
        "--correlation-id=c1",
        "--error=time-OUT",
        "--dedupe-key=order-7",
        "--variables=ann@example",
        '--variables="to":"ann',
        "--created-after=2000-01-01T00:00:00Z --type=wanted",
    ],
)
async def test_list_filters_by_what_it_is_told(cli: Cli, engine: Engine, filter: str) -> None:
    marks = {"type": "wanted", "tenant": "acme", "correlation_id": "c1", "dedupe_key": "order-7"}
    marks |= {"variables": '{"to":"ann@example.org"}'}
    wanted = await a_dead_letter(engine, error="Time-out at the gate", worker="w9", **marks)
    await a_completed_job(engine)
    await a_pending_job(engine)
    assert [job["key"] for job in cli("jobs", "list", *filter.split(), "--json").json["jobs"]] == [str(wanted.key)]


def test_a_page_ends_with_the_cursor_of_the_next(cli: Cli) -> None:
    cli("jobs", "create", "x", "--count", "5")
    first = cli("jobs", "list", "--limit", "3", "--json").json
    second = cli("jobs", "list", "--limit", "3", "--cursor", first["next"], "--json").json
    assert [job["key"] for job in first["jobs"] + second["jobs"]] == ["5", "4", "3", "2", "1"]
    assert second["next"] is None


def test_a_page_for_people_says_how_to_see_more(cli: Cli) -> None:
    cli("jobs", "create", "x", "--count", "5")
    answer = cli("jobs", "list", "--limit", "2", "--cursor", "5")
    assert answer.out.splitlines()[-1] == "more: everwork jobs list --limit 2 --cursor 3"


@pytest.mark.parametrize(
    "engine", [["--engine", "{}"], ["-e", "{}"], ["--engine={}"], ["-e{}"]], ids=["long", "short", "equals", "joined"]
)
def test_the_command_for_the_next_page_does_not_repeat_a_password(
    monkeypatch: pytest.MonkeyPatch, engine: list[str]
) -> None:
    url, shown = "postgresql://app:s3cret@db/jobs", "postgresql://app:***@db/jobs"
    filters = ["--error", "http://ann:x@host", "--cursor", "9", "--limit=2"]
    monkeypatch.setattr(sys, "argv", ["everwork", "jobs", "list", *(part.format(url) for part in engine), *filters])
    command = shlex.split(next_page("7").strip().removeprefix("more: everwork "))
    hidden = [part.format(shown) for part in engine]
    assert command == ["jobs", "list", *hidden, "--error", "http://ann:x@host", "--limit=2", "--cursor", "7"]


def test_an_empty_store_says_how_to_create_a_job(cli: Cli) -> None:
    cli("jobs", "create", "x")
    cli("jobs", "cancel", "1")
    cli("jobs", "delete", "1")
    assert cli("jobs", "list").out == "no jobs; create one: everwork jobs create email-send\n"


def test_an_empty_list_says_so(cli: Cli) -> None:
    cli("jobs", "create", "x")
    assert cli("jobs", "list", "--state", "failed").out == "no matching jobs\n"
    assert cli("jobs", "list", "--variables", "nowhere").out == "no matching jobs\n"
    assert cli("jobs", "list", "--state", "failed", "--json").json == {"jobs": [], "next": None}


def test_a_reader_that_goes_away_gets_no_complaint(cli: Cli) -> None:
    cli("jobs", "create", "x", "--count", "1000", "--variables", json.dumps({"text": "x" * 1000}))
    with cli.start("jobs", "list", "--limit", "1000", "--json") as listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        listing.stdout.read(1)
        listing.stdout.close()
        assert (listing.wait(DEADLINE_SECONDS), listing.stderr.read()) == (141, "")


# get ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["jobs get", "dead show"])
async def test_the_command_that_brings_a_job_back_can_be_pasted(cli: Cli, engine: Engine, command: str) -> None:
    job = await a_dead_letter(engine)
    url = f"sqlite:///{cli.file}"
    (cli.folder / "other.toml").write_text(f'engine = "{url}"')
    for options in ("", f" --engine {url}", " --config other.toml"):
        out = cli(*f"{command} {job.key}{options}".split()).out
        assert re.findall(r"To requeue it: everwork (.*)", out) == [f"jobs requeue {job.key}{options}"]
    assert f"jobs requeue {job.key}\n" in cli(*command.split(), str(job.key), EVERWORK_ENGINE=url).out


async def test_a_suggested_command_is_not_broken_into_lines(cli: Cli, engine: Engine) -> None:
    job = await a_dead_letter(engine)
    url = f"sqlite:///{'./' * 150}everwork.db"
    assert f" jobs requeue {job.key} --engine {url}\n" in cli("jobs", "get", str(job.key), "--engine", url).out


def test_a_password_is_not_repeated_in_a_suggested_command() -> None:
    assert engine_hint("postgresql://app:secret@db/jobs") == " --engine 'postgresql://app:***@db/jobs'"


async def test_get_shows_the_job_its_history_and_why_it_is_not_running(cli: Cli, engine: Engine) -> None:
    job = await a_dead_letter(engine, error="no such address", variables='{"to":"ann"}')
    text = cli("jobs", "get", str(job.key)).out
    assert text.startswith("job 1  email-send  failed\n")
    for part in ['{"to":"ann"}', "Why: failed and will not", "everwork jobs requeue 1", "OUTCOME", "no such address"]:
        assert part in text


async def test_get_numbers_attempts_as_the_job_counts_them_and_shows_short_delays(cli: Cli, engine: Engine) -> None:
    job = await a_dead_letter(engine)
    await engine.requeue([job.key])
    await activated(engine, job)
    await settled(engine, Release(job.key, 2))
    await activated(engine, job)
    await settled(engine, Failed(job.key, 3, "no answer", backoff_ms=500))
    text = cli("jobs", "get", str(job.key)).out
    assert "1 of 5" in text
    rows = [row.split() for row in text.partition("OUTCOME")[2].splitlines()[1:]]
    assert [row[:2] for row in rows] == [["1", "failed"], ["requeued", rows[1][1]], ["1", "released"], ["1", "failed"]]
    assert "no answer (retry in 0.5 s)" in text


async def test_get_with_json_has_history_and_explanation(cli: Cli, engine: Engine) -> None:
    job = await a_processing_job(engine)
    report = cli("jobs", "get", str(job.key), "--json").json
    assert (report["key"], report["state"], report["history"]) == ("1", "processing", [])
    assert (report["explanation"]["reason"], report["explanation"]["worker"]) == ("running", "w1")


async def test_nothing_in_a_job_can_move_the_cursor(cli: Cli, engine: Engine) -> None:
    job = await a_dead_letter(engine, error="\x1b[2Jgone [bold]\x07")
    assert "\x1b" not in cli("jobs", "get", str(job.key)).out + cli("jobs", "list").out
    assert "gone [bold]" in cli("jobs", "list").out


# cancel, requeue, run-now -------------------------------------------------------------------------


async def test_cancel_cancels_each_with_the_reason(cli: Cli, engine: Engine) -> None:
    running = await a_processing_job(engine)
    waiting = await a_pending_job(engine)
    answer = cli("jobs", "cancel", str(running.key), str(waiting.key), "--reason", "ordered twice")
    assert answer.out == "job 1: cancelled (was processing)\njob 2: cancelled (was pending)\n"
    assert (await the_job(engine, waiting.key)).last_error == "ordered twice"


async def test_requeue_brings_a_dead_letter_back(cli: Cli, engine: Engine) -> None:
    dead = await a_dead_letter(engine)
    assert cli("jobs", "requeue", str(dead.key), "--json").json == {
        "jobs": [{"key": "1", "ok": True, "previous_state": "failed", "error": None}]
    }
    assert (await the_job(engine, dead.key)).state is State.PENDING


async def test_requeue_gives_one_job_other_variables(cli: Cli, engine: Engine) -> None:
    dead = await a_dead_letter(engine, variables='{"to":"ann"}')
    refused = {
        ("1", "2", "--var", "to=ada"): "variables: can be replaced for only one job: pass one key, not 2",
        ("1", "--variables", "[]"): "variables: must be a JSON object, not []",
        ("1", "--variables", "{}", "--var", "a=1"): "variables: cannot be combined with var",
    }
    for options, problem in refused.items():
        answer = cli("jobs", "requeue", *options)
        assert (answer.code, answer.err) == (2, f"everwork: {problem}\n")
    answer = cli("jobs", "requeue", str(dead.key), "--var", "to=ada", "--var", "n=2")
    assert answer.out == (
        "job 1: requeued with other variables (was failed)\n"
        "a worker checks them when the job runs: arguments that do not fit its handler fail the job\n"
    )
    assert (await the_job(engine, dead.key)).variables == '{"to":"ada","n":2}'
    assert "arguments changed" in cli("jobs", "get", str(dead.key)).out
    answer = cli("jobs", "requeue", str(dead.key), "--variables", "{}")
    assert (answer.code, "cannot be requeued" in answer.err) == (1, True)
    [entry] = cli("audit", "--json").json["entries"]
    assert (entry["action"], entry["detail"]) == ("jobs.requeue", {"variables": "changed"})


async def test_run_now_lets_a_scheduled_job_start(cli: Cli, engine: Engine) -> None:
    later = await a_scheduled_job(engine)
    assert cli("jobs", "run-now", str(later.key)).out == "job 1: due now (was pending)\n"
    assert (await the_job(engine, later.key)).run_at_ms < later.run_at_ms


async def test_what_is_refused_is_told_and_the_rest_is_done(cli: Cli, engine: Engine) -> None:
    done, waiting = await a_completed_job(engine), await a_pending_job(engine)
    answer = cli("jobs", "cancel", str(done.key), "99", str(waiting.key))
    assert (answer.code, answer.out) == (1, "job 2: cancelled (was pending)\n")
    assert answer.err.splitlines() == [
        "everwork: Job '1' is completed: it cannot be cancelled",
        "everwork: Job '99' not found",
    ]


async def test_what_is_refused_stands_in_the_json_document_too(cli: Cli, engine: Engine) -> None:
    job = await a_pending_job(engine)
    answer = cli("jobs", "requeue", str(job.key), "--json")
    error = "Job '1' is pending: it cannot be requeued because it has used no attempts; run it now instead"
    assert (answer.code, answer.err) == (1, f"everwork: {error}\n")
    assert json.loads(answer.out)["jobs"] == [{"key": "1", "ok": False, "previous_state": None, "error": error}]


# stats --------------------------------------------------------------------------------------------


async def test_stats_counts_by_type_and_state(cli: Cli, engine: Engine) -> None:
    await a_completed_job(engine)
    await a_pending_job(engine, type="resize")
    lines = cli("stats", "--hours", "1").out.splitlines()
    assert [line.split() for line in lines[:4]] == [
        ["TYPE", "PENDING", "PROCESSING", "COMPLETED", "FAILED", "CANCELLED"],
        ["email-send", "-", "-", "1", "-", "-"],
        ["resize", "1", "-", "-", "-", "-"],
        ["all", "types", "1", "-", "1", "-", "-"],
    ]
    assert lines[5].startswith("Last 1 h: 1 completed, 0 failed, 0 retried; success rate 100 %")


async def test_each_change_at_the_terminal_is_in_the_audit_log(cli: Cli, engine: Engine) -> None:
    first, second = await a_scheduled_job(engine), await a_scheduled_job(engine)
    dead = await a_dead_letter(engine)
    cli("jobs", "priority", str(first.key), "--to", "7")
    cli("jobs", "reschedule", str(first.key), "--at", "1h")
    cli("jobs", "run-now", str(first.key))
    cli("jobs", "cancel", str(first.key), str(second.key), "--reason", "not needed")
    cli("jobs", "requeue", str(dead.key))
    entries = cli("audit", "--json").json["entries"]
    assert {entry["origin"] for entry in entries} == {"cli"}
    assert sorted((entry["action"], entry["target"], entry["detail"]) for entry in entries) == [
        ("jobs.cancel", str(first.key), {"reason": "not needed"}),
        ("jobs.cancel", str(second.key), {"reason": "not needed"}),
        ("jobs.priority", str(first.key), {"priority": 7}),
        ("jobs.requeue", str(dead.key), {}),
        ("jobs.reschedule", str(first.key), {"delay_ms": 3_600_000}),
        ("jobs.run-now", str(first.key), {}),
    ]


async def test_stats_with_json_is_one_document(cli: Cli, engine: Engine) -> None:
    await a_dead_letter(engine)
    report = cli("stats", "--json").json
    assert (report["total"], report["by_state"]["failed"], report["by_worker"]) == (1, 1, {"w1": 1})


# version, help, the engine ------------------------------------------------------------------------


def test_version_names_everwork_first(cli: Cli) -> None:
    versions = cli("version", "--json").json
    assert cli("version").out.startswith(f"everwork {versions['everwork']} (Python ")
    assert versions.keys() == {"everwork", "python", "sqlite"}


def test_everwork_alone_prints_its_help(cli: Cli) -> None:
    answer = cli()
    assert answer == cli("--help")
    assert all(f" {command} " in answer.out for command in ["up", "jobs", "stats", "version"])


@pytest.mark.parametrize(
    "command",
    [
        "up",
        "stats",
        "version",
        "jobs create",
        "jobs list",
        "jobs get",
        "jobs cancel",
        "jobs requeue",
        "jobs run-now",
    ],
)
def test_every_command_has_a_help_with_an_example(cli: Cli, command: str) -> None:
    answer = cli(*command.split(), "--help")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.count(f"everwork {command} ") >= 2


def test_the_flag_wins_over_the_environment(cli: Cli) -> None:
    cli("jobs", "create", "from-environment", EVERWORK_ENGINE="sqlite:///a.db")
    cli("jobs", "create", "from-flag", "-e", "sqlite:///b.db", EVERWORK_ENGINE="sqlite:///a.db")
    [job] = cli("jobs", "list", "--engine", "sqlite:///b.db", "--json").json["jobs"]
    assert job["type"] == "from-flag"
    assert not cli.file.exists()
