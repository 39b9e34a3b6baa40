"""Shell completion: what may come next, from the commands themselves and from the store."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer

from everwork.cli import completion
from everwork.cli.completion import SHELLS, candidates, script
from everwork.cli.main import COMMANDS, app
from everwork.engines.contract import Engine
from tests.cli.conftest import COMMAND, DEADLINE_SECONDS
from tests.factories import a_new_job

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


def words(line: str) -> list[str]:
    """What may stand in place of the last word of a line."""
    return [word for word, _ in candidates(typer.main.get_command(app), line.split(" ")[1:])]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("everwork ", list(COMMANDS)),
        ("everwork wor", ["worker", "workers"]),
        ("everwork jobs re", ["requeue", "reschedule"]),
        ("everwork jobs list --sta", ["--state"]),
        ("everwork jobs list --state p", ["pending", "processing"]),
        ("everwork jobs list --state = p", ["pending", "processing"]),
        ("everwork jobs list --state =", ["pending", "processing", "completed", "failed", "cancelled", "activatable"]),
        ("everwork jobs list --state failed --ord", ["--order"]),
        ("everwork jobs list --json --order n", ["newest"]),
        ("everwork jobs --sta", ["--state"]),
        ("everwork jobs --state p", ["pending", "processing"]),
        ("everwork worker shop : app --log-level d", ["debug"]),
        ("everwork completion ", list(SHELLS)),
        ("everwork nothing ", []),
        ("everwork jobs get ", []),
        ("everwork copy ", []),
    ],
)
def test_the_words_that_may_come_next(line: str, expected: list[str]) -> None:
    assert words(line) == expected


def test_targets_are_found_without_running_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text("import everwork\napp = everwork.Everwork('x')\nraise SystemExit\n")
    (tmp_path / "broken.py").write_text("app = Everwork(")
    (tmp_path / "other.py").write_text("manager = ProcessManager(uuid='m')\nx = 5\n")
    assert words("everwork worker ") == ["other:manager", "shop:app"]
    assert words("everwork worker shop : a") == ["shop:app"]
    assert words("everwork tick --app-dir nowhere ") == []


async def test_types_are_those_of_the_store_that_the_command_would_use(
    cli: Cli, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.create([a_new_job(type="email-send"), a_new_job(type="report")])
    monkeypatch.chdir(cli.folder)
    monkeypatch.setattr(completion, "STORE_SECONDS", DEADLINE_SECONDS)
    monkeypatch.setattr(logging, "disable", lambda: None)  # The other tests of this process want their lines.
    assert words("everwork types pause ") == ["email-send", "report"]
    assert words("everwork jobs list --type ema") == ["email-send"]
    assert words("everwork types pause --engine sqlite : ///none.db ") == []
    assert not (cli.folder / "none.db").exists()


def test_a_store_that_does_not_answer_has_no_types_and_the_prompt_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(completion, "STORE_SECONDS", 0.01)
    monkeypatch.setattr(logging, "disable", lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert words(f"everwork types pause -e postgresql://127.0.0.1:{silent.getsockname()[1]}/jobs ") == []


def test_bash_completes_commands_values_and_targets(cli: Cli) -> None:
    (cli.folder / "shop.py").write_text("app = Everwork('sqlite:///everwork.db')\n")
    assert _in_bash(cli, "everwork jobs li", "everwork worker shop : a", "everwork jobs list --state = can") == [
        "list",
        "app",
        "cancelled",
    ]


def _in_bash(cli: Cli, *lines: str) -> list[str]:
    """The replies of the function that bash calls; spaces around : and = are those between words as bash parts them."""
    bash = shutil.which("bash")
    assert bash is not None
    program = """
        eval "$(everwork completion bash)"
        complete -p everwork > /dev/null || exit 1
        for line in "$@"; do
            COMP_LINE=${line// : /:} COMP_LINE=${COMP_LINE// = /=} COMP_POINT=${#COMP_LINE}
            IFS=' ' read -ra COMP_WORDS <<< "$line"
            [[ $line == *' ' ]] && COMP_WORDS+=("")
            COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
            _everwork everwork
            echo "${COMPREPLY[*]}"
        done
    """
    environment = cli.environment(PATH=f"{Path(COMMAND).parent}{os.pathsep}{os.environ['PATH']}")
    done = subprocess.run(
        [bash, "--norc", "-c", program, "bash", *lines],
        cwd=cli.folder, env=environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_bash_quotes_types_so_that_none_of_them_is_a_command(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    types = ["mail $(touch ran);`touch ran` & 'x' \"y\"", "mail-*"]
    (tmp_path / "mail-file").touch()
    program = f"""{script("bash")}
        everwork() {{ printf '%s\t\n' {" ".join(map(shlex.quote, types))}; }}
        COMP_WORDS=(everwork types pause mail) COMP_CWORD=3 COMP_LINE="everwork types pause mail" COMP_POINT=25
        _everwork everwork
        printf '%s\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        [bash, "--norc", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_SECONDS,
        check=True,
    )  # fmt: skip
    assert [shlex.split(line) for line in done.stdout.splitlines()] == [[one] for one in types]
    assert not (tmp_path / "ran").exists()


def test_every_shell_has_a_script_and_another_is_refused(cli: Cli) -> None:
    for shell in SHELLS:
        assert "completion words -- " in cli("completion", shell).out
    assert cli("completion", "csh").complaint == "shell: must be one of bash, zsh, fish, not 'csh'"


def test_version_is_an_option_too(cli: Cli) -> None:
    assert cli("--version").out == cli("version").out
