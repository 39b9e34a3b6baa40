"""everwork worker and everwork tick: run a process manager or an application, until it is stopped or for a few jobs."""

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
from everwork.app.workers import chosen as chosen_functions
from everwork.cli.file_watch import program_folders
from everwork.cli.options import AsJson, ConfigFile, number
from everwork.cli.output import write, write_json
from everwork.cli.supervised import Supervised
from everwork.cli.supervisor import supervise
from everwork.cli.target import Target, UserCode
from everwork.core import checks
from everwork.core.limits import PROCESSES_MAX, TICK_JOBS_DEFAULT
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
    typer.Argument(
        metavar="MODULE[:NAME]", help="Program to run. NAME defaults to manager or app.", show_default=False
    ),
]
AppDir = Annotated[str, typer.Option(metavar="PATH", help="Directory to import the module from.")]
LogFormat = Annotated[
    str | None,
    typer.Option(
        rich_help_panel="Logging",
        metavar="FORMAT",
        help="Log format: console or json.",
        show_default="the manager's, or console",
        envvar="EVERWORK_LOG_FORMAT",
    ),
]
LogLevel = Annotated[
    str | None,
    typer.Option(
        rich_help_panel="Logging",
        metavar="LEVEL",
        help="Log level: debug, info, warning, error or critical.",
        show_default="the manager's, or info",
    ),
]

WhatToTick = Annotated[
    str,
    typer.Argument(
        metavar="MODULE[:NAME]", help="Program to run. NAME defaults to manager or app.", show_default=False
    ),
]
MaxJobs = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER", help="Maximum number of jobs to run.", show_default=f"{VARIABLE}, or {TICK_JOBS_DEFAULT}"
    ),
]

Processes = Annotated[
    str | None,
    typer.Option(metavar="NUMBER", help="Number of worker processes.", show_default="1"),
]
Types = Annotated[
    str | None,
    typer.Option(
        metavar="TYPES",
        help="Types to run, separated by commas; patterns such as mail-* are allowed.",
        show_default="all",
    ),
]
Reload = Annotated[bool, typer.Option("--reload", help="Restart workers when Python files change; for development.")]


@app.command()
def worker(
    target: WhatToRun,
    *,
    processes: Processes = None,
    types: Types = None,
    reload: Reload = False,
    app_dir: AppDir = ".",
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    config: ConfigFile = None,
) -> None:
    """Run the workers of a program until stopped.

    NAME is an Everwork application, a ProcessManager, or a function without arguments that returns one. The program
    defines its store; type policies in the settings file apply to it.

    SIGINT or SIGTERM stops it after running jobs have finished; a second signal cancels them. With --processes or
    --reload, a third signal releases jobs that cannot be cancelled, and a fourth kills the processes.

    --processes and --types are for applications; a ProcessManager defines its own processes. A process that dies is
    restarted. After --reload restarts the workers, jobs that did not finish within 2 seconds run again; the interrupted
    attempt does not count.

    Examples:
        everwork worker shop:app
        everwork worker shop:app --processes 4
        everwork worker shop:app --types "mail-*,invoice-send"
        everwork worker shop:app --reload
        everwork worker shop.workers:manager --log-format json
    """
    supervised = Supervised.from_environment()
    logging_options = Logging.from_flags(log_format, log_level)
    parsed, folder = Target.parse(target), _folder_of(app_dir)
    given = supervised.processes if supervised else _processes(processes)
    chosen = None if types is None else _types(types)
    if supervised is None and (reload or (given or 1) > 1):
        logs.configure(logging_options.format or "console", logging_options.level or "INFO")
        options = {"--types": types, "--log-format": log_format, "--log-level": log_level, "--config": config}
        flags = [part for name, value in options.items() if value is not None for part in (name, value)]
        folders = program_folders(parsed.module, folder) if reload else None
        raise typer.Exit(supervise(["worker", target, "--app-dir", app_dir, *flags], given, folders))
    if supervised is not None:
        supervised.follow()
    hold_settings(declared_settings(config, os.environ))
    _replace_main_module()
    _run(UserCode(parsed, folder), logging_options, Wanted(given, chosen, supervised))


class Wanted(NamedTuple):
    """The options that the user passed, apart from the program."""

    processes: int | None
    types: list[str] | None
    supervised: Supervised | None

    def require_possible(self, program: ProcessManager | Everwork, target: Target) -> None:
        """Refuse options that only an application supports, and types that the application does not have."""
        if isinstance(program, Everwork):
            chosen_functions(program.functions, self.types)
            return
        if self.processes is not None:
            where = "declare them in ProcessManager(processes=[ProcessGroup(process=..., replicas=...)])"
            raise InvalidInput("processes", f"{target} is a ProcessManager, which declares its own processes; {where}")
        if self.types is not None:
            where = "set the types of each worker in WorkerSettings(sources=...)"
            raise InvalidInput("types", f"{target} is a ProcessManager, which runs worker classes; {where}")

    def report_ready(self, program: ProcessManager | Everwork) -> None:
        """Report to the parent, if there is one, that the program is loaded."""
        if self.supervised is not None:
            release = program._workers.release_running if isinstance(program, Everwork) else None  # noqa: SLF001
            self.supervised.report_ready(release)


def _processes(text: str | None) -> int | None:
    return None if text is None else checks.whole_number("processes", number(text), 1, PROCESSES_MAX)


def _types(text: str) -> list[str]:
    types = [one.strip() for one in text.split(",")]
    if not all(types):
        raise InvalidInput("types", f"must be names separated by commas, not {checks.shown(text)}")
    return types


class Logging(NamedTuple):
    """The requested format and level of logs; None stands for the default."""

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
        """Configure logging. Flags take precedence over a manager's settings, which its processes use, too."""
        if isinstance(program, Everwork):
            logs.configure(self.format or "console", self.level or "INFO")
        elif self.format or self.level:
            program.log_format = self.format or program.log_format or "console"
            program.log_level = self.level or program.log_level


def _run(user_code: UserCode, logging_options: Logging, wanted: Wanted) -> None:
    """Load the program and run it; a manager created by a coroutine runs in the same event loop."""
    loaded = user_code.load()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        program = user_code.program(loaded, runner)
        wanted.require_possible(program, user_code.found)
        logging_options.apply_to(program)
        if isinstance(program, ProcessManager) and program.log_format is not None:
            logs.configure(program.log_format, program.log_level)
        if wanted.supervised is None or wanted.supervised.number == 0:
            _mention_others("worker", user_code, program)
        wanted.report_ready(program)
        if isinstance(program, ProcessManager):
            runner.run(program.run())
            return
    types = sorted(chosen_functions(program.functions, wanted.types))
    which = {} if wanted.supervised is None else {"process": wanted.supervised.number + 1}
    log.info("worker started", **which, types=types)
    program.run(types=types)
    log.info("worker stopped", **which)


def _mention_others(command: str, user_code: UserCode, program: ProcessManager | Everwork) -> None:
    """Log which other programs of the module are not run, if the command did not name one."""
    if others := user_code.others(program):
        runs, more = str(user_code.found), [f"everwork {command} {one}" for one in others]
        log.warning("the module has more than one program; only one is run", runs=runs, not_run=more)


def _replace_main_module() -> None:
    """Replace the main module with an empty one. Child processes import it again, and so do not load the command line
    and its packages.
    """
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
    log_format: Annotated[str, typer.Option(metavar="FORMAT", help="Log format: console or json.")] = "console",
    log_level: Annotated[
        str, typer.Option(metavar="LEVEL", help="Log level: debug, info, warning, error or critical.")
    ] = "warning",
    config: ConfigFile = None,
) -> None:
    """Run due jobs once and exit, for cron.

    A tick first recovers jobs whose lease expired and fires due triggers. Ticks can overlap: each attempt of a job runs
    in one of them.

    NAME is an Everwork application, a ProcessManager, or a function without arguments that returns one. The workers of
    a manager run in this process. The program defines its store; type policies in the settings file apply to it.

    Examples:
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
    _mention_others("tick", user_code, program)
    result = run_loop(_run_tick(program, most))
    if as_json:
        write_json(asdict(result))
    else:
        write(f"{_result_text(result)}\n")


async def _run_tick(program: Everwork | ProcessManager, most: int) -> TickResult:
    """Run one tick. The first signal lets running jobs finish, the second cancels them."""
    tick_task = program.run_once(most)  # Created before the signal handlers, so that a stop reaches it.
    on_stop_signals(program.stop)
    try:
        return await tick_task
    finally:
        if isinstance(program, Everwork):
            await program.close()


def _result_text(result: TickResult) -> str:
    ends = [f"{count:,} {end}" for end, count in asdict(result).items() if count and end != "ran"]
    return f"{result.ran:,} ran: {', '.join(ends)}" if ends else "nothing was due"
