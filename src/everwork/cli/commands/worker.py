"""everwork worker and everwork tick: a process manager, or an application, until it is stopped or for a few jobs."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Annotated, Literal, NamedTuple

import typer

from everwork import logs
from everwork.aio.loops import new_loop
from everwork.app.app import Everwork
from everwork.app.tick import VARIABLE, TickResult, jobs_per_tick
from everwork.cli.options import AsJson, ConfigFile, number
from everwork.cli.output import write, write_json
from everwork.cli.target import Target, UserCode
from everwork.core import checks
from everwork.core.limits import TICK_JOBS_DEFAULT
from everwork.exceptions import InvalidInput
from everwork.manager.manager import ProcessManager
from everwork.runtime.shutdown import on_stop_signals, run_loop
from everwork.server.settings import declared_settings
from everwork.service.policies import hold_settings

log = logs.get_logger("everwork")

app = typer.Typer(add_completion=False, rich_markup_mode="rich")
tick_app = typer.Typer(add_completion=False, rich_markup_mode="rich")

WhatToRun = Annotated[
    str,
    typer.Argument(metavar="MODULE[:NAME]", help="What to run; NAME is manager or app, if absent.", show_default=False),
]
AppDir = Annotated[str, typer.Option(metavar="PATH", help="Where the module is looked for first.")]
LogFormat = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT",
        help="console or json.",
        show_default="the manager's, or console",
        envvar="EVERWORK_LOG_FORMAT",
    ),
]
LogLevel = Annotated[
    str | None,
    typer.Option(metavar="LEVEL", help="debug, info, warning or error.", show_default="the manager's, or info"),
]

WhatToTick = Annotated[
    str,
    typer.Argument(metavar="MODULE[:NAME]", help="What to run; NAME defaults to manager or app.", show_default=False),
]
MaxJobs = Annotated[
    str | None,
    typer.Option(metavar="NUMBER", help="How many jobs at most.", show_default=f"{VARIABLE}, or {TICK_JOBS_DEFAULT}"),
]


@app.command()
def worker(
    target: WhatToRun,
    *,
    app_dir: AppDir = ".",
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    config: ConfigFile = None,
) -> None:
    """Run workers until SIGINT or SIGTERM; a second one does not wait for jobs that run.

    NAME is a ProcessManager, an Everwork application, or a function without arguments that returns one. The store is
    the one that it names itself; what the settings file says of types holds there.

    [bold]Examples:[/bold]
    everwork worker app:manager
    everwork worker shop.workers:make_manager --app-dir src --log-format json
    """
    logging_options = Logging.from_flags(log_format, log_level)
    hold_settings(declared_settings(config, os.environ))
    user_code = UserCode(Target.parse(target), _folder_of(app_dir))
    _replace_main_module()
    _run(user_code, logging_options)


class Logging(NamedTuple):
    """The requested format and level of logs; None: the default."""

    format: Literal["console", "json"] | None
    level: str | None

    @classmethod
    def from_flags(cls, format: str | None, level: str | None) -> Logging:
        """The values of the flags, validated."""
        if level is not None and level.upper() not in logs.LEVELS:
            allowed = ", ".join(logs.LEVELS).lower()
            raise InvalidInput("log_level", f"must be one of {allowed}, not {checks.shown(level)}")
        match format:
            case None | "console" | "json":
                return cls(format, level and level.upper())
            case _:
                raise InvalidInput("log_format", f"must be one of console, json, not {checks.shown(format)}")

    def apply_to(self, program: ProcessManager | Everwork) -> None:
        """Configure logging; flags take precedence over a manager's settings, which its processes use, too."""
        if isinstance(program, Everwork):
            logs.configure(self.format or "console", self.level or "INFO")
        elif self.format or self.level:
            program.log_format = self.format or program.log_format or "console"
            program.log_level = self.level or program.log_level


def _run(user_code: UserCode, logging_options: Logging) -> None:
    """Load the program and run it; a manager created by a coroutine runs in the same event loop."""
    loaded = user_code.load()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        program = user_code.program(loaded, runner)
        logging_options.apply_to(program)
        if isinstance(program, ProcessManager):
            runner.run(program.run())
            return
    log.info("the application runs", types=sorted(program.functions))
    program.run()
    log.info("the application has stopped")


def _replace_main_module() -> None:
    """Child processes import the main module again: an empty one spares them the command line and its packages."""
    sys.modules["__main__"] = ModuleType("__main__")


def _folder_of(text: str) -> Path:
    """The directory that is searched first for a module."""
    folder = Path(text).absolute()
    if not folder.is_dir():
        raise InvalidInput("app_dir", f"must be a directory, not {checks.shown(text)}")
    return folder


# A tick ------------------------------------------------------------------------------------------------


@tick_app.command()
def tick(
    target: WhatToTick,
    *,
    max_jobs: MaxJobs = None,
    as_json: AsJson = False,
    app_dir: AppDir = ".",
    log_format: Annotated[str, typer.Option(metavar="FORMAT", help="console or json.")] = "console",
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "warning",
    config: ConfigFile = None,
) -> None:
    """Run what is due, up to a number of jobs, and exit; for cron, where nothing may stay.

    Before that, lapsed leases are taken back and due triggers fire. Ticks may overlap: no job runs twice.

    NAME is a ProcessManager, an Everwork application, or a function without arguments that returns one. The workers of
    a manager run in this process. The engine is the one that the program uses; policies in the settings file apply.

    [bold]Examples:[/bold]
    everwork tick app
    everwork tick shop.jobs:app --max-jobs 100 --json
    everwork tick shop.workers:manager
    """
    most = jobs_per_tick(number(max_jobs))
    logging_options = Logging.from_flags(log_format, log_level)
    hold_settings(declared_settings(config, os.environ))
    user_code = UserCode(Target.parse(target), _folder_of(app_dir))
    loaded = user_code.load()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        program = user_code.program(loaded, runner)
    logs.configure(logging_options.format or "console", logging_options.level or "WARNING")
    result = run_loop(_run_tick(program, most))
    if as_json:
        write_json(asdict(result))
    else:
        write(f"{_result_text(result)}\n")


async def _run_tick(program: Everwork | ProcessManager, most: int) -> TickResult:
    """The first signal lets what runs finish, the second cancels it."""
    tick_task = program.run_once(most)  # Before the signal handlers, because a stop must reach it.
    on_stop_signals(program.stop)
    try:
        return await tick_task
    finally:
        if isinstance(program, Everwork):
            await program.close()


def _result_text(result: TickResult) -> str:
    ends = [f"{count:,} {end}" for end, count in asdict(result).items() if count and end != "ran"]
    return f"{result.ran:,} ran: {', '.join(ends)}" if ends else "nothing was due"
