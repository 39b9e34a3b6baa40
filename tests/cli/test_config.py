"""The settings file on the command line: every command finds its engine by the same rules."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from everwork.cli.main import COMMANDS, run

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

EVERY_COMMAND = [
    "jobs list",
    "jobs get 1",
    "jobs create x",
    "jobs delete 1",
    "dead list",
    "bench",
    "login",
    "probe",
    "probe --manager shop",
    "types list",
    "types policy x --base 1",
    "groups list",
    "sessions list",
    "keys list",
    "sessions list",
    "keys create --name ci --permission jobs",
    "workers list",
    "triggers list",
    "audit",
    "stats",
    "doctor",
    "migrate",
]


def write(cli: Cli, text: str | bytes, name: str = "everwork.toml") -> None:
    """A settings file in the command's directory."""
    (cli.folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def stores(cli: Cli) -> set[str]:
    """The stores that commands have made."""
    return {path.name for path in cli.folder.glob("*.db")}


def test_the_engine_is_the_flag_s_the_environment_s_the_file_s_or_the_default(cli: Cli) -> None:
    cli("jobs", "create", "x")
    assert stores(cli) == {"everwork.db"}
    write(cli, "engine = 'sqlite:///of-the-file.db'")
    cli("jobs", "create", "x")
    assert stores(cli) == {"everwork.db", "of-the-file.db"}
    cli("jobs", "create", "x", EVERWORK_ENGINE="sqlite:///of-the-environment.db")
    cli("jobs", "create", "x", "--engine", "sqlite:///of-the-flag.db", EVERWORK_ENGINE="sqlite:///of-nobody.db")
    write(cli, "engine = 'sqlite:///of-the-named-file.db'", "my.toml")
    cli("jobs", "create", "x", "--config", "my.toml")
    named = {"of-the-environment.db", "of-the-flag.db", "of-the-named-file.db"}
    assert stores(cli) == {"everwork.db", "of-the-file.db"} | named


@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_every_command_reads_the_file_that_is_named(cli: Cli, command: str) -> None:
    write(cli, "engin = 'sqlite:///a.db'", "my.toml")
    answer = cli(*command.split(), "--config", "my.toml")
    assert answer.complaint.startswith("'engin' (file my.toml): unknown setting; did you mean engine? allowed: engine,")
    assert (answer.code, stores(cli)) == (2, set())


def test_no_command_is_forgotten_above() -> None:
    of_their_own = {"up", "serve", "worker", "tick", "copy", "spool", "version", "init", "completion"}
    assert {command.split()[0] for command in EVERY_COMMAND} | of_their_own >= set(COMMANDS)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (
            b"engine = 'a'\nengine = 'b'",
            "cannot read everwork.toml: it is not TOML: Cannot overwrite a value (at line 2",
        ),
        (b"\x89PNG\r\n\x1a\n\x00\xff", "cannot read everwork.toml: it is not UTF-8 text (line 1)"),
        (b"engine = 5", "engine (file everwork.toml): must be a URL such as sqlite:///everwork.db, not of type int"),
        (b"api_key = 'secret-secret'", "api_key (file everwork.toml): must not be set in a file"),
        (b"engine = 'mysql://x'", "engine URL: unknown scheme 'mysql'"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(cli: Cli, content: bytes, complaint: str) -> None:
    write(cli, content)
    answer = cli("jobs", "create", "x")
    assert answer.complaint.startswith(complaint)
    assert "secret-secret" not in answer.complaint
    assert (answer.code, stores(cli)) == (2, set())


def test_what_is_no_file_is_refused_at_once(cli: Cli) -> None:
    assert cli("stats", "--config", "nope").complaint == "cannot read nope: no such file"
    assert cli("stats", "--config", str(cli.folder)).complaint.endswith(": it is not a regular file")
    os.mkfifo(cli.folder / "everwork.toml")
    assert cli("stats").complaint == "cannot read everwork.toml: it is not a regular file"


def test_a_misspelt_variable_does_not_lead_to_another_store(cli: Cli) -> None:
    answer = cli("jobs", "create", "x", EVERWORK_ENGIN="sqlite:///mine.db")
    assert answer.complaint == "environment variable EVERWORK_ENGIN: is unknown; did you mean EVERWORK_ENGINE?"
    assert (answer.code, stores(cli)) == (2, set())


def test_a_setting_of_the_server_alone_does_not_disturb_other_commands(cli: Cli) -> None:
    write(cli, "grpc_port = 70000\ntls_key = '/not/readable/by/me'")
    assert cli("jobs", "create", "x").code == 0


def test_doctor_shows_the_settings_in_force_without_secrets(cli: Cli) -> None:
    write(cli, "http_port = 8080")
    cli("jobs", "create", "x", "--delay", "60")
    report = cli("doctor", "--json", EVERWORK_API_KEY="very-secret-key", EVERWORK_GRPC_PORT="0").json
    shown = report["configuration"]
    assert (shown["http_port"], shown["grpc_port"], shown["api_key"]) == (8080, 0, "***")
    told = cli("doctor", EVERWORK_API_KEY="very-secret-key")
    assert "http_port 8080" in told.out
    assert "and EVERWORK_API_KEY" in told.out
    assert "very-secret-key" not in told.out + json.dumps(report)


def test_doctor_says_what_keeps_a_server_from_starting(cli: Cli) -> None:
    cli("jobs", "create", "x", "--delay", "60")
    write(cli, "grpc_port = 70000")
    answer = cli("doctor")
    assert answer.code == 1
    assert "a server would not start: grpc_port (file everwork.toml): must be a whole number from 0 to" in answer.out


@pytest.mark.parametrize(
    "command",
    [*EVERY_COMMAND, "jobs reschedule", "jobs priority", "types pause", "keys revoke", "workers off", "triggers fire"],
)
def test_every_command_s_help_has_an_example(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    words = [word for word in command.split()[:2] if not word.startswith("-")]
    assert run([*words, "--help"]) == 0
    helped = capsys.readouterr().out
    for part in ("Example", f"everwork {' '.join(words)}", "--config", "--json"):
        assert part in helped
