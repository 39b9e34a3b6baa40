"""Commands that need no store: everwork init, everwork completion and everwork version."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sqlite3
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated

import typer

from everwork.cli.completion import SHELLS, candidates, script
from everwork.cli.options import AsJson
from everwork.cli.output import command_name, write, write_json
from everwork.cli.scaffold import CHOICES, NAMES, write_project
from everwork.core import checks
from everwork.exceptions import InvalidInput

init_app = typer.Typer(add_completion=False, rich_markup_mode="rich")
version_app = typer.Typer(add_completion=False, rich_markup_mode="rich")
completion_app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@init_app.command()
def init(
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Folder of the project; created if it does not exist.")
    ] = ".",
    engine: Annotated[
        str, typer.Option(metavar="ENGINE", help="Store of the project: sqlite, postgres or redis.")
    ] = "sqlite",
) -> None:
    """Create a starter project.

    Writes jobs.py, test_jobs.py, everwork.toml, compose.yaml and README.md. If one of them exists, nothing is written.

    Examples:
        everwork init shop
        everwork init shop --engine postgres
    """
    if engine not in CHOICES:
        raise InvalidInput("engine", f"must be one of {', '.join(CHOICES)}, not {checks.shown(engine)}")
    target = Path(folder)
    write_project(target, engine)
    write(f"Created {', '.join(str(target / name) for name in NAMES)}\n\n{_next_steps(target)}")


def _next_steps(folder: Path) -> str:
    command = command_name()
    beside = shutil.which("pytest") == str(Path(sys.executable).parent / "pytest")  # Others may lack Everwork.
    pytest = "pytest" if beside else f"{shlex.quote(sys.executable)} -m pytest"
    if folder != Path() and command != "everwork":
        command = shlex.quote(str(Path(shlex.split(command)[0]).absolute()))
    steps = [
        *([] if folder == Path() else [(f"cd {shlex.quote(str(folder))}", "")]),
        (pytest, "run the tests, in memory"),
        (f"{command} worker jobs", "run the jobs, until Ctrl-C"),
        (f"{command} jobs create greet --var name=Ada", "in another terminal: create a job"),
    ]
    width = max(len(text) for text, _ in steps)
    return "Next:\n" + "".join(f"  {text:{width}}  # {what}".rstrip(" #") + "\n" for text, what in steps)


@version_app.command()
def version(as_json: AsJson = False) -> None:
    """Show the versions of Everwork, Python and SQLite.

    Example:
        everwork version --json
    """
    versions = installed_versions()
    if as_json:
        write_json(versions)
    else:
        write(version_text(versions))


def installed_versions() -> dict[str, str]:
    """The versions that a bug report should name."""
    return {
        "everwork": installed_version("everwork"),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }


def version_text(versions: dict[str, str]) -> str:
    """One line for people."""
    return f"everwork {versions['everwork']} (Python {versions['python']}, SQLite {versions['sqlite']})\n"


@completion_app.command()
def completion(
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="Shell: bash, zsh or fish.", show_default=False)],
    words: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
) -> None:
    """Print a completion script for bash, zsh or fish.

    It completes commands, options, job types, states and worker targets. Job types are read from the configured store,
    if it responds within one second.

    Examples:
        eval "$(everwork completion bash)"
        eval "$(everwork completion zsh)"
        everwork completion fish > ~/.config/fish/completions/everwork.fish
    """
    if shell == "words":  # Called by the completion scripts.
        from everwork.cli.main import app  # noqa: PLC0415 - it loads this module

        found = candidates(typer.main.get_command(app), words or [])
        write("".join(f"{word}\t{' '.join(text.split())}\n" for word, text in found))
        sys.stdout.flush()
        os._exit(0)  # A store that does not answer must not keep the prompt waiting.
    if shell not in SHELLS:
        raise InvalidInput("shell", f"must be one of {', '.join(SHELLS)}, not {checks.shown(shell)}")
    write(script(shell))
