"""everwork tick: runs a few jobs of an application and exits, for cron and the like."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import asdict
from typing import Annotated

import typer

from everwork import logs
from everwork.aio.loops import new_loop
from everwork.app.app import Everwork
from everwork.app.tick import VARIABLE, TickResult, jobs_per_tick
from everwork.cli.commands.worker import AppDir, Logging, folder_of
from everwork.cli.options import AsJson, ConfigFile, number
from everwork.cli.output import write, write_json
from everwork.cli.target import Target, UserCode
from everwork.core.limits import TICK_JOBS_DEFAULT
from everwork.manager.manager import ProcessManager
from everwork.runtime.shutdown import run_loop
from everwork.server.settings import declared_settings
from everwork.service.policies import hold_settings

app = typer.Typer(add_completion=False, rich_markup_mode="rich")

WhatToTick = Annotated[
    str,
    typer.Argument(metavar="MODULE[:NAME]", help="What to run; NAME defaults to manager or app.", show_default=False),
]
MaxJobs = Annotated[
    str | None,
    typer.Option(metavar="NUMBER", help="How many jobs at most.", show_default=f"{VARIABLE}, or {TICK_JOBS_DEFAULT}"),
]


@app.command()
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
    program = _load(UserCode(Target.parse(target), folder_of(app_dir)))
    logs.configure(logging_options.format or "console", logging_options.level or "WARNING")
    result = run_loop(_run_tick(program, most))
    if as_json:
        write_json(asdict(result))
    else:
        write(f"{_result_text(result)}\n")


def _load(user_code: UserCode) -> Everwork | ProcessManager:
    found = user_code.load()
    if isinstance(found, Everwork | ProcessManager):
        return found
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return user_code.call_factory(found, runner)


async def _run_tick(program: Everwork | ProcessManager, most: int) -> TickResult:
    """The first signal lets what runs finish, the second cancels it."""
    loop = asyncio.get_running_loop()
    tick_task = program.run_once(most)  # Before the signal handlers, because a stop must reach it.
    for number_ in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number_, program.stop)
    try:
        return await tick_task
    finally:
        if isinstance(program, Everwork):
            await program.close()


def _result_text(result: TickResult) -> str:
    ends = [f"{count:,} {end}" for end, count in asdict(result).items() if count and end != "ran"]
    return f"{result.ran:,} ran: {', '.join(ends)}" if ends else "nothing was due"
