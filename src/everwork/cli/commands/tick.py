"""everwork tick: runs a few jobs of an application and exits, for cron and the like."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import asdict
from typing import Annotated

import typer

from everwork.aio.loops import new_loop
from everwork.app.app import Everwork
from everwork.app.tick import VARIABLE, TickResult, jobs_per_tick
from everwork.cli.commands.worker import AppDir, Logging, folder_of
from everwork.cli.options import AsJson, ConfigFile, number
from everwork.cli.output import write, write_json
from everwork.cli.target import Target, UserCode
from everwork.core.limits import TICK_JOBS_DEFAULT
from everwork.exceptions import BadConfiguration
from everwork.runtime.shutdown import run_loop
from everwork.server.settings import declared_settings
from everwork.service.policies import hold_settings

app = typer.Typer(add_completion=False, rich_markup_mode="rich")

WhatToTick = Annotated[
    str,
    typer.Argument(metavar="MODULE[:NAME]", help="The application; NAME is app, if absent.", show_default=False),
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

    NAME is an Everwork application, or a function without arguments that returns one. The store is the one that it
    names itself; what the settings file says of types holds there.

    [bold]Examples:[/bold]
    everwork tick app
    everwork tick shop.jobs:app --max-jobs 100 --json
    """
    most = jobs_per_tick(number(max_jobs))
    logging_options = Logging.from_flags(log_format, log_level)
    hold_settings(declared_settings(config, os.environ))
    application = _load_app(UserCode(Target.parse(target), folder_of(app_dir), ("app",)), target)
    logging_options.apply_to(application)
    result = run_loop(_run_tick(application, most))
    if as_json:
        write_json(asdict(result))
    else:
        write(f"{_result_text(result)}\n")


def _load_app(user_code: UserCode, target: str) -> Everwork:
    found = user_code.load()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        application = found if not callable(found) else user_code.call_factory(found, runner)
    if not isinstance(application, Everwork):
        raise BadConfiguration(
            f"{target} is a ProcessManager, whose workers have processes that stay: run it by everwork worker; "
            "a tick takes an Everwork application"
        )
    return application


async def _run_tick(application: Everwork, most: int) -> TickResult:
    """The first signal lets what runs finish, the second cancels it."""
    loop = asyncio.get_running_loop()
    tick_task = application.run_once(most)  # Before the signal handlers, because a stop must reach it.
    for number_ in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number_, application.stop)
    try:
        return await tick_task
    finally:
        await application.close()


def _result_text(result: TickResult) -> str:
    ends = [f"{count:,} {end}" for end, count in asdict(result).items() if count and end != "ran"]
    return f"{result.ran:,} ran: {', '.join(ends)}" if ends else "nothing was due"
