"""Whatever is typed wrongly: one line that names the field, an exit code, and nothing created."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from everwork.core.limits import PAYLOAD_BYTES_MAX
from tests.cli.conftest import COMMAND, DEADLINE_SECONDS

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

BAD_JOBS = {
    "an empty type": ([""], "type: must have 1 to 255 characters, not 0"),
    "a type that is too long": (["x" * 256], "type: must have 1 to 255 characters, not 256"),
    "a type with a newline": (["a\nb"], "type: must consist of printable characters"),
    "no type": ([], "type: is required"),
    "variables that are a list": (["x", "--variables", "[1]"], "variables: must be a JSON object, not [1]"),
    "variables that are no JSON": (["x", "--variables", "{a}"], "variables: must be a JSON object"),
    "NaN in variables": (["x", "--variables", '{"a": NaN}'], "variables: must be a JSON object"),
    "one name twice in variables": (
        ["x", "--variables", '{"a": 1, "a": 2}'],
        "variables: must not have the name 'a' twice in one object",
    ),
    "variables twice": (["x", "--variables", "{}", "--var", "a=1"], "variables: cannot be combined with var"),
    "a var without value": (["x", "--var", "a"], "var: must be NAME=VALUE, not 'a'"),
    "a var twice": (["x", "--var", "a=1", "--var", "a=2"], "var: must name 'a' only once"),
    "a number that would lose digits": (["x", "--var", "id=12345678901234567890123"], "var: id must be a number of"),
    "a header without value": (["x", "--header", "a"], "header: must be NAME=VALUE, not 'a'"),
    "an empty tenant": (["x", "--tenant", ""], "tenant: must have 1 to 255 characters, not 0"),
    "a priority that is too high": (["x", "--priority", "512"], "priority: must be a whole number from -512 to 511"),
    "a priority that is too low": (["x", "--priority", "-513"], "priority: must be a whole number from -512 to 511"),
    "a huge priority": (["x", "--priority", "9" * 30], "priority: must be a whole number from -512 to 511"),
    "a priority that is a word": (["x", "--priority", "high"], "priority: must be a whole number from -512 to 511"),
    "a negative delay": (["x", "--delay", "-1"], "delay: must be a number from 0 to"),
    "a huge delay": (["x", "--delay", "1e30"], "delay: must be a number from 0 to"),
    "a delay that is no number": (["x", "--delay", "nan"], "delay: must be a number of seconds, or a duration"),
    "an endless timeout": (
        ["x", "--timeout", "inf"],
        "timeout: must be a number of seconds, or a duration such as 90s, 30m, 12h or 7d, not 'inf'",
    ),
    "no attempts": (["x", "--max-attempts", "0"], "max_attempts: must be a whole number from 1 to 100, not 0"),
    "too many attempts": (
        ["x", "--max-attempts", "101"],
        "max_attempts: must be a whole number from 1 to 100, not 101",
    ),
    "delay and run_at": (
        ["x", "--delay", "1", "--run-at", "2090-01-01T00:00:00Z"],
        "delay: cannot be combined",
    ),
    "a time without zone": (["x", "--run-at", "2090-01-01T00:00:00"], "run_at: must be a time from 1970 to 9999"),
    "a time that is none": (["x", "--expires-at", "soon"], "expires_at: must be a time from 1970 to 9999"),
    "a time before 1970": (["x", "--run-at", "1066-10-14T09:00:00Z"], "run_at: must be a time from 1970 to 9999"),
    "no copies": (["x", "--count", "0"], "count: must be a whole number from 1 to 1000000, not 0"),
    "copies of one of a kind": (["x", "--count", "2", "--dedupe-key", "a"], "count: must be 1 with a dedupe_key"),
    "a file that is not there": (["--file", "nope"], "file: cannot read nope: No such file or directory"),
    "a file and a type": (
        ["x", "--file", "nope"],
        "file: cannot be combined with type: the file sets the fields of each job",
    ),
    "an empty file": (["--file", os.devnull], "file: /dev/null contains no jobs"),
    "an unknown option": (["x", "--bogus"], "no such option: --bogus (see everwork jobs create --help)"),
}
BAD_QUESTIONS = {
    "an unknown state": (["list", "--state", "asleep"], "state: must be one of pending, processing, completed, failed"),
    "an empty type": (["list", "--type", ""], "type: must have 1 to 255 characters, not 0"),
    "a limit of nothing": (["list", "--limit", "0"], "limit: must be a whole number from 1 to 1000, not 0"),
    "a huge limit": (["list", "--limit", "1001"], "limit: must be a whole number from 1 to 1000, not 1001"),
    "a cursor that is a word": (["list", "--cursor", "next"], "cursor: must be a whole number from 1 to"),
    "a time that is none": (["list", "--created-after", "noon"], "created_after: must be a time from 1970 to 9999"),
    "an empty error": (["list", "--error", ""], "error: must have 1 to 8,192 characters, at least"),
    "an empty key": (["get", ""], "key: is required"),
    "an empty key of two": (["cancel", "1", ""], "key: must not be empty"),
    "no key": (["run-now"], "missing argument 'KEY...'"),
    "a reason that is too long": (
        ["cancel", "1", "--reason", "x" * 8193],
        "reason: must have at most 8,192 characters",
    ),
    "an unknown command": (["explode"], "no such command 'explode' (see everwork jobs --help)"),
}
BAD_URLS = {
    "an unknown scheme": ("mysql://host/db", "engine URL: unknown scheme 'mysql'; it must start with one of sqlite://"),
    "no scheme": ("everwork.db", "engine URL: has no scheme (a file is sqlite:///jobs.db); it must start with one of"),
    "no path": ("sqlite:///", "engine URL: must be sqlite:///relative/path.db"),
    "an unknown option": ("sqlite:///a.db?fast=1", "engine URL: unknown option 'fast'; allowed: synchronous"),
    "memory": ("sqlite:///:memory:", "engine URL: an in-memory store would end with this command; use a file"),
    "a missing directory": ("sqlite:///no/a.db", "/no/a.db: the directory "),
    "a path inside a file": ("sqlite:////etc/passwd/a.db", "cannot open /etc/passwd/a.db: "),
    "a directory": ("sqlite:////etc", "cannot open /etc: it is a directory; name a file"),
    "a place that cannot be written": ("sqlite:////proc/a.db", "cannot "),
}


@pytest.mark.parametrize("mistake", BAD_JOBS)
def test_a_job_with(cli: Cli, mistake: str) -> None:
    arguments, complaint = BAD_JOBS[mistake]
    answer = cli("jobs", "create", *arguments)
    assert answer.complaint.startswith(complaint)
    assert answer.code == 2
    assert list(cli.folder.iterdir()) == []


@pytest.mark.parametrize("mistake", BAD_QUESTIONS)
def test_a_question_with(cli: Cli, mistake: str) -> None:
    arguments, complaint = BAD_QUESTIONS[mistake]
    answer = cli("jobs", *arguments)
    assert answer.complaint.startswith(complaint)
    assert answer.code == 2


@pytest.mark.parametrize("mistake", BAD_URLS)
def test_an_engine_url_with(cli: Cli, mistake: str) -> None:
    url, complaint = BAD_URLS[mistake]
    answer = cli("jobs", "create", "x", "--engine", url)
    assert complaint in answer.complaint
    assert answer.code == 2
    assert list(cli.folder.iterdir()) == []


@pytest.mark.parametrize("size", [PAYLOAD_BYTES_MAX - len('{"a":""}') + 1, 2 * PAYLOAD_BYTES_MAX])
def test_variables_over_a_mebibyte_are_refused(cli: Cli, size: int) -> None:
    answer = cli("jobs", "create", "x", "--variables", "-", stdin=json.dumps({"a": "x" * size}).encode())
    assert answer.complaint.startswith("variables: must be at most 1,048,576 bytes of JSON")
    assert (answer.code, cli.file.exists()) == (2, False)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"type": "x", "priority": 512}', "line 2: priority: must be a whole number from -512 to 511, not 512"),
        ('{"type": "x", "colour": "red"}', "line 2: colour: unknown field; allowed: type, variables,"),
        ('{"type": "x", "run_at": 5}', "line 2: run_at: must be a time from 1970 to 9999"),
        ('{"variables": {}}', "line 2: type: is required"),
        ('{"type": 5}', "line 2: type: must be a string, not 5"),
        ('["x"]', "line 2: job: must be a JSON object, not ['x']"),
        ("{", "line 2: job: must be a JSON object"),
    ],
)
def test_a_bad_line_is_named_and_nothing_of_its_file_is_created(cli: Cli, line: str, complaint: str) -> None:
    answer = cli("jobs", "create", "--file", "-", stdin=f'{{"type": "good"}}\n{line}\n'.encode())
    assert answer.complaint.startswith(complaint)
    assert (answer.code, cli.file.exists()) == (2, False)


@pytest.mark.parametrize("command", ["jobs list", "jobs get 1", "jobs cancel 1", "jobs requeue 1", "stats"])
def test_a_command_that_creates_nothing_does_not_make_a_file(cli: Cli, command: str) -> None:
    answer = cli(*command.split(), "--json")
    assert answer.complaint.startswith(f"file {cli.file} does not exist: create a first job, or use another engine")
    assert (answer.code, list(cli.folder.iterdir())) == (2, [])


def test_a_command_that_creates_nothing_leaves_another_program_s_database_alone(cli: Cli) -> None:
    with closing(sqlite3.connect(cli.file)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        answer = cli("jobs", "list")
        tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
    assert answer.complaint == f"{cli.file} holds no jobs: create a first one in it, or use another engine"
    assert (answer.code, tables) == (2, [("orders",)])


def test_a_file_that_is_no_database_is_refused_and_left_alone(cli: Cli) -> None:
    cli.file.write_text("My diary. " * 1000)
    answer = cli("jobs", "create", "x")
    assert answer.complaint.startswith(f"cannot use {cli.file}: it is not a SQLite file")
    assert (answer.code, cli.file.read_text()) == (2, "My diary. " * 1000)


def test_a_file_of_a_newer_version_is_refused(cli: Cli) -> None:
    cli("jobs", "create", "x")
    with sqlite3.connect(cli.file) as connection:
        connection.execute("INSERT INTO ew_schema VALUES (9999)")
    answer = cli("jobs", "list")
    assert answer.complaint.startswith(f"{cli.file} has schema version 9999, but this program supports up to ")
    assert answer.code == 2


@pytest.mark.parametrize("hours", ["0", "721", "-1", "nan", "day"])
def test_stats_of_hours_that_are_not_kept_are_refused(cli: Cli, hours: str) -> None:
    answer = cli("stats", "--hours", hours)
    assert answer.complaint.startswith("hours: must be a whole number from 1 to 720, not ")
    assert answer.code == 2


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("worker -A proj", "no such option: -A: name the application as an argument: everwork worker MODULE:NAME"),
        ("-A proj worker", "no such option: -A: name the application as an argument: everwork worker MODULE:NAME"),
        ("worker shop --concurrency 4", "no such option: --concurrency: set concurrency= of each function, or "),
        ("worker shop -c4", "no such option: -c: set concurrency= of each function, or "),
        ("worker shop -Q mail", "no such option: -Q: each type is a queue: everwork worker MODULE:NAME --types a,b"),
        ("worker shop -B", "no such option: -B: schedules run in every worker"),
        ("beat", "no such command 'beat': schedules run in every worker"),
        ("flower", "no such command 'flower': everwork up and everwork serve include the dashboard"),
        ("jobs list -A", "no such option: -A (see everwork jobs list --help)"),
    ],
)
def test_what_celery_users_type_is_answered_with_ours(cli: Cli, command: str, hint: str) -> None:
    answer = cli(*command.split())
    assert answer.complaint.startswith(hint)
    assert (answer.code, answer.complaint.endswith("--help)")) == (2, True)


def test_a_job_that_is_not_there_is_exit_code_1(cli: Cli) -> None:
    cli("jobs", "create", "x")
    answer = cli("jobs", "get", "17")
    assert (answer.code, answer.complaint) == (1, "Job '17' not found")


def test_control_c_ends_a_command_with_130_and_no_traceback(cli: Cli) -> None:
    pipe = cli.folder / "jobs.jsonl"
    os.mkfifo(pipe)
    with cli.start("jobs", "create", "--file", str(pipe)) as command, pipe.open("wb"):
        # The pipe opens when the command has opened its end. A signal just before the system call that waits for lines
        # is seen only after it, by any Python program: whoever is not heard presses again.
        for _ in range(DEADLINE_SECONDS):
            command.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                command.wait(timeout=1)
                break
        out, err = command.communicate(timeout=1)
    assert (command.returncode, out, err) == (130, "", "")


def test_a_demo_on_a_place_that_cannot_be_written_says_so(cli: Cli) -> None:
    answer = cli("up", "--demo", "--engine", f"sqlite:///{Path('no') / 'a.db'}")
    assert answer.complaint.startswith(f"cannot open {cli.folder / 'no' / 'a.db'}: the directory ")
    assert answer.code == 2


def test_closed_standard_streams_are_no_reason_to_fail(cli: Cli) -> None:
    cli("jobs", "create", "x")
    shell = f"{COMMAND} jobs list <&- >&- 2>&-"
    done = subprocess.run(
        shell, shell=True, cwd=cli.folder, env=cli.environment(), timeout=DEADLINE_SECONDS, check=False
    )
    assert done.returncode == 0


@pytest.mark.parametrize("command", ["doctor", "migrate"])
@pytest.mark.parametrize("option", ["--engine", "-e"])
def test_the_store_may_be_named_as_for_every_other_command(cli: Cli, command: str, option: str) -> None:
    url = f"sqlite:///{cli.folder}/other.db"
    cli("migrate", url)
    assert url in cli(command, option, url).out
    assert url in cli(command, url, option, url).out
    assert url in cli(command, url, EVERWORK_ENGINE="sqlite:///none.db").out
    assert url in cli(command, option, url, EVERWORK_ENGINE="sqlite:///none.db").out


@pytest.mark.parametrize("command", ["doctor", "migrate"])
def test_two_stores_for_one_command_are_refused(cli: Cli, command: str) -> None:
    answer = cli(command, "sqlite:///one.db", "--engine", "sqlite:///other.db")
    assert (answer.code, answer.complaint) == (2, "engine: is set twice, as URL and with --engine; use one of them")
    assert list(cli.folder.iterdir()) == []


def test_an_incomplete_installation_is_one_line(tmp_path: Path) -> None:
    program = "import sys; sys.modules['grpc'] = None; from everwork.cli.main import run; sys.exit(run(['serve']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    [line] = done.stderr.splitlines()
    assert line.endswith("the installation is incomplete; reinstall Everwork with its dependencies")
    assert "grpc" in line


@pytest.mark.parametrize("group", ["workers", "jobs", "types", "triggers", "groups", "keys", "dead"])
def test_a_group_without_a_verb_lists_what_there_is(cli: Cli, group: str) -> None:
    assert cli("jobs", "create", "email-send").code == 0
    listed = cli(group, "list")
    assert (listed.code, listed.err) == (0, "")
    assert cli(group).out.split()[:3] == listed.out.split()[:3]
    assert cli(group, "--json").json == cli(group, "list", "--json").json
    assert cli(group, "--json", "off", "mailer").code == 2
    assert "Usage: everwork" in cli(group, "--help").out


def test_a_delay_and_a_timeout_may_have_a_unit(cli: Cli) -> None:
    job = cli("jobs", "create", "email-send", "--delay", "2h", "--timeout", "90s", "--json").json
    run_at, created_at = (datetime.fromisoformat(job[name]) for name in ("run_at", "created_at"))
    assert run_at - created_at == timedelta(hours=2)
    assert job["timeout_ms"] == 90_000
    assert cli("jobs", "create", "email-send", "--delay", "2 weeks").complaint == (
        "delay: must be a number of seconds, or a duration such as 90s, 30m, 12h or 7d, not '2 weeks'"
    )
