"""The entry point: finds the command, runs it, and turns every error into one line and an exit code."""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from everwork.cli.help import lay_out
from everwork.cli.options import with_config
from everwork.cli.output import OutputClosed, write, write_stderr
from everwork.exceptions import EverworkError, JobError, NotFound

OK: Final = 0
REFUSED: Final = 1
BAD_REQUEST: Final = 2
UNEXPECTED: Final = 70
INTERRUPTED: Final = 130
OUTPUT_CLOSED: Final = 141

PANELS: Final = {
    "Start": ("init", "up", "serve", "worker", "tick"),
    "Jobs": ("jobs", "dead", "types", "groups", "stats"),
    "Workers": ("workers", "triggers", "spool"),
    "Access": ("login", "sessions", "keys", "audit"),
    "Stores": ("doctor", "probe", "migrate", "copy", "bench"),
    "Installation": ("completion", "version"),
}
"""The commands, grouped as in the help."""
COMMANDS: Final = {name: f"{name}.app" for names in PANELS.values() for name in names} | {
    "tick": "worker.tick_app",
    "groups": "types.groups_app",
    "init": "setup.init_app",
    "completion": "setup.completion_app",
    "version": "setup.version_app",
}
"""Commands and where they are defined. A module is loaded only when its command is called, to keep startup fast."""

UsageError: Final[Any] = typer.BadParameter.__base__
"""Taken from a class that typer exports: newer versions of typer bundle their own click."""

_APPLICATION: Final = "name the application as an argument: everwork worker MODULE:NAME"
_CONCURRENCY: Final = "set concurrency= of each function, or start more processes with --processes"
_TYPES: Final = "each type is a queue: everwork worker MODULE:NAME --types a,b"
_SCHEDULES: Final = "schedules run in every worker, and each run is started once"
_DASHBOARD: Final = "everwork up and everwork serve include the dashboard"
CELERY: Final = {
    "-A": _APPLICATION,
    "--app": _APPLICATION,
    "-c": _CONCURRENCY,
    "--concurrency": _CONCURRENCY,
    "-Q": _TYPES,
    "--queues": _TYPES,
    "-B": _SCHEDULES,
    "--beat": _SCHEDULES,
    "beat": _SCHEDULES,
    "flower": _DASHBOARD,
}
"""What Celery users type, and the equivalent here."""


class Commands(TyperGroup):
    """The commands by name, each loaded on demand."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        lay_out(self, inner=False)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature is typer's
        """The names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - the signature is typer's
        """The command with this name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, place = COMMANDS[cmd_name].partition(".")
        found = getattr(importlib.import_module(f"everwork.cli.commands.{module}"), place)
        command = lay_out(with_config(typer.main.get_command(found)))
        command.name = cmd_name
        command.rich_help_panel = next(title for title, names in PANELS.items() if cmd_name in names)
        return command


app = typer.Typer(cls=Commands, add_completion=False, rich_markup_mode="rich")


def _print_version(wanted: bool) -> None:
    if wanted:
        from everwork.cli.commands.setup import installed_versions, version_text  # noqa: PLC0415 - loaded on demand

        write(version_text(installed_versions()))
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version",
        help="Show the versions of Everwork, Python and SQLite, and exit.",
        callback=_print_version,
        is_eager=True,
    ),
]


@app.callback(invoke_without_command=True)
def overview(ctx: typer.Context, version: Version = False) -> None:  # noqa: ARG001 - handled by its callback
    """Run and manage durable background jobs.

    Commands use the store given by --engine, EVERWORK_ENGINE or the settings file (everwork.toml), in this order. The
    default is sqlite:///everwork.db.

    Examples:
        everwork init shop
        everwork up --demo
        everwork worker shop.jobs:app
        everwork jobs create email-send --var to=ann@example.org
        everwork jobs list --state failed
    """
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def main() -> None:
    """Run one command and exit."""
    _fill_closed_streams()
    code = run(sys.argv[1:])
    if code == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # From here on, a second signal would only change the exit code.
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = OUTPUT_CLOSED
    if code == OUTPUT_CLOSED:
        # Python flushes once more at exit, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    try:
        code = typer.main.get_command(app).main(arguments, prog_name="everwork", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except OutputClosed:
        return OUTPUT_CLOSED
    except Exception as error:
        if os.environ.get("EVERWORK_DEBUG"):
            raise
        code, message = _explained(error)
        write_stderr(message)
    return code if isinstance(code, int) else OK


def _explained(error: Exception) -> tuple[int, str]:
    """The exit code for an error, and the line to print."""
    match error:
        case UsageError(ctx=context):
            where = f" (see {context.command_path} --help)" if context else ""
            message = _with_hint(error.format_message(), context)
            return BAD_REQUEST, f"{message[:1].lower()}{message[1:].rstrip('.')}{where}"
        case JobError() | NotFound():
            return REFUSED, str(error)
        case EverworkError() | OSError():
            return BAD_REQUEST, str(error)
        case ModuleNotFoundError():
            return UNEXPECTED, f"{error}: the installation is incomplete; reinstall Everwork with its dependencies"
        case _:
            return UNEXPECTED, f"unexpected {type(error).__name__}: {error} (set EVERWORK_DEBUG=1 to see where)"


def _with_hint(message: str, context: Any) -> str:
    """The message, with the equivalent of Celery's option or command."""
    unknown = re.match(r"No such (?:option|command):? '?([\w-]+)", message)
    is_worker = context is not None and context.command_path in ("everwork", "everwork worker")
    hint = CELERY.get(unknown[1]) if unknown and is_worker else None
    return f"{message.rstrip('.')}: {hint}" if hint else message


def _fill_closed_streams() -> None:
    """Replace streams that the caller has closed: a file opened later must not get their descriptors."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - open to the end
