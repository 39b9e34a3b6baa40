"""everwork workers: list, processes, running, restart, on, off, forget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple

import typer

from everwork.aio.clocks import host_clock_ms
from everwork.cli.options import AsJson, EngineUrl, listing_app
from everwork.cli.output import Column, one_line, span, table, write, write_json, write_rich
from everwork.cli.session import use_admin
from everwork.service.admin import Admin
from everwork.service.fleet.entries import ManagerEntry, ProcessEntry, ProcessView, WorkerView, own_source
from everwork.service.fleet.running import RunningJob, RunningJobs
from everwork.service.reports import (
    forgotten_report,
    processes_report,
    restart_report,
    running_report,
    worker_report,
    worker_switch_report,
)

COLUMNS = (
    Column("WORKER CLASS", width_min=20),
    Column("ID", whole=True),
    Column("STATUS", whole=True),
    Column("PROCESSES", whole=True, right=True),
    Column("CONCURRENCY", whole=True, right=True),
    Column("TIMEOUT", whole=True, right=True),
    Column("SOURCES", width_min=20),
)
PROCESS_COLUMNS = (
    Column("NAME", width_min=20),
    Column("KIND", whole=True),
    Column("STATE", whole=True),
    Column("MANAGER", width_min=10),
    Column("HOST", width_min=10),
    Column("PID", whole=True, right=True),
    Column("UPTIME", whole=True, right=True),
    Column("RUNNING", whole=True, right=True),
    Column("FINISHED", whole=True, right=True),
    Column("RESTARTS", whole=True, right=True),
    Column("MEMORY", whole=True, right=True),
    Column("HEARTBEAT", whole=True, right=True),
    Column("TYPES", width_min=16),
)
OF_MANAGERS: Final = ("MANAGER", "RESTARTS")
LIVE_COLUMNS = (
    Column("NAME", width_min=20),
    Column("KIND", whole=True),
    Column("UPTIME", whole=True, right=True),
    Column("RUNNING", whole=True, right=True),
    Column("HEARTBEAT", whole=True, right=True),
    Column("TYPES", width_min=20),
)
RUNNING_COLUMNS = (
    Column("JOB", whole=True, right=True),
    Column("TYPE", width_min=16),
    Column("RUN TIME", whole=True, right=True),
    Column("ATTEMPT", whole=True, right=True),
    Column("LEASE LEFT", whole=True, right=True),
    Column("KIND", whole=True),
    Column("WORKER", width_min=20),
)
NO_WORKERS: Final = "no worker processes; start one: everwork worker MODULE:NAME\n"
WorkerName = Annotated[
    str, typer.Argument(metavar="WORKER", help="Title or id of the worker class.", show_default=False)
]

app = listing_app()


@app.callback()
def workers() -> None:
    """List workers; enable and disable worker classes.

    Example:
        everwork workers off mailer
    """


@app.command("list")
def list_workers(engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """List running workers and declared worker classes.

    Example:
        everwork workers list
    """
    found = use_admin(engine, _read_fleet)
    classes = found.classes
    if as_json:
        write_json({"workers": [worker_report(view) for view in classes], **found.report})
        return
    if found.processes:
        write_rich(table(LIVE_COLUMNS, [_live_row(view, found.titles) for view in found.processes]))
    if classes:
        write("\n" if found.processes else "")
        write_rich(table(COLUMNS, [_row(view) for view in classes]))
        for view in classes:
            for reason in view.broken:
                write(f"{one_line(view.entry.title)} failed to start in {one_line(reason)}\n")
    write(_left_out(found.left_out))
    if not (found.processes or classes):
        write(NO_WORKERS)


@app.command()
def processes(engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """List worker processes, streams and pollers in detail.

    KIND is manager (process of a ProcessManager), application (everwork worker, app.run()), stream (Client.work, worker
    stream) or poller (REST, gRPC, Zeebe).

    Example:
        everwork workers processes
    """
    found = use_admin(engine, _read_fleet)
    if as_json:
        write_json(found.report)
    elif found.processes:
        _show_processes(found)
        write(_left_out(found.left_out))
    else:
        write(NO_WORKERS)


@app.command()
def running(engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """List running jobs with their workers, longest first.

    Example:
        everwork workers running
    """
    found = use_admin(engine, lambda admin: admin.running())
    if as_json:
        write_json(running_report(found))
    elif found.jobs:
        write_rich(table(RUNNING_COLUMNS, [_running_row(job) for job in found.jobs]))
        write(_rest(found))
    else:
        write("no running jobs\n")


@app.command()
def restart(
    process: Annotated[
        str,
        typer.Argument(
            metavar="PROCESS", help="Process name, as everwork workers processes shows it.", show_default=False
        ),
    ],
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """Replace a process of a manager with a new one.

    Running jobs finish first.

    Example:
        everwork workers restart web1-0f3a5c7e91
    """
    entry = use_admin(engine, lambda admin: admin.restart_process(process))
    if as_json:
        write_json(restart_report(entry))
    else:
        write(f"{one_line(entry.name)}: its manager {one_line(entry.manager)} will replace it\n")


@app.command()
def on(worker: WorkerName, engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """Enable a worker class.

    Example:
        everwork workers on mailer
    """
    _switch(worker, engine, is_on=True, as_json=as_json)


@app.command()
def off(worker: WorkerName, engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """Disable a worker class in all managers.

    It takes no new jobs; running jobs continue.

    Example:
        everwork workers off mailer
    """
    _switch(worker, engine, is_on=False, as_json=as_json)


@app.command()
def forget(worker: WorkerName, engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """Delete a worker class that no manager runs.

    Deletes its triggers and groups too, and cancels the jobs waiting there.

    Example:
        everwork workers forget mailer
    """
    entry, cancelled = use_admin(engine, lambda admin: admin.forget_worker(worker))
    if as_json:
        write_json(forgotten_report(entry, cancelled))
    else:
        write(f"{one_line(entry.title)}: deleted; {cancelled:,} pending jobs cancelled\n")


class _Fleet(NamedTuple):
    """Running workers and declared worker classes."""

    managers: list[ManagerEntry]
    processes: list[ProcessView]
    classes: list[WorkerView]
    left_out: int

    @property
    def titles(self) -> dict[str, str]:
        """The titles of worker classes by their ids."""
        return {view.entry.id: view.entry.title for view in self.classes}

    @property
    def report(self) -> dict[str, Any]:
        """The running workers, as JSON."""
        return processes_report(self.managers, self.processes, self.left_out)


async def _read_fleet(admin: Admin) -> _Fleet:
    return _Fleet(await admin.managers(), await admin.processes(), await admin.workers(), await admin.left_out())


def _show_processes(found: _Fleet) -> None:
    """Print the processes. Terminals are narrow, so the columns of managers are shown only if there are managers."""
    has_managers = any(view.entry.manager for view in found.processes)
    shown = [at for at, one in enumerate(PROCESS_COLUMNS) if has_managers or one.title not in OF_MANAGERS]
    rows = [_process_row(view, found.titles) for view in found.processes]
    write_rich(table([PROCESS_COLUMNS[at] for at in shown], [[row[at] for at in shown] for row in rows]))


def _left_out(workers: int) -> str:
    return f"{workers:,} or more other streams and pollers are not listed\n" if workers else ""


def _switch(worker: str, engine: str | None, *, is_on: bool, as_json: bool) -> None:
    done = use_admin(engine, lambda admin: admin.switch_worker(worker, is_on))
    if as_json:
        write_json(worker_switch_report(done))
    else:
        write(f"{one_line(done.entry.title)}: {switched(is_on, done.is_changed)}\n")


def switched(is_on: bool, is_changed: bool) -> str:
    """The result of enabling or disabling, in words."""
    word = "enabled" if is_on else "disabled"
    return word if is_changed else f"already {word}"


def _row(view: WorkerView) -> tuple[str, ...]:
    entry = view.entry
    return (
        one_line(entry.title),
        one_line(entry.id),
        "enabled" if view.is_on else "disabled",
        f"{view.processes:,}" if view.processes else "-",
        f"{entry.concurrency:,}",
        f"{entry.execution_timeout_ms / 1000:g}s",
        one_line(", ".join(sorted(set(entry.sources) - {own_source(entry.id)}))),
    )


def _process_row(view: ProcessView, titles: Mapping[str, str]) -> tuple[str, ...]:
    entry = view.entry
    memory = "-" if entry.memory_bytes is None else f"{entry.memory_bytes / 1_048_576:,.0f} MB"
    return (
        one_line(entry.name),
        one_line(entry.kind),
        "restarting" if view.is_restarting and entry.state == "running" else one_line(entry.state),
        one_line(entry.manager) or "-",
        one_line(entry.host or entry.via),
        str(entry.pid or "-"),
        span(host_clock_ms() - entry.started_at_ms),
        f"{entry.running:,}",
        f"{entry.ended:,}",
        f"{entry.restarts:,}",
        memory,
        f"{span(host_clock_ms() - view.beat_ms)} ago",
        _takes(entry, titles),
    )


def _live_row(view: ProcessView, titles: Mapping[str, str]) -> tuple[str, ...]:
    entry = view.entry
    return (
        one_line(entry.name),
        one_line(entry.kind),
        span(host_clock_ms() - entry.started_at_ms),
        f"{entry.running:,}",
        f"{span(host_clock_ms() - view.beat_ms)} ago",
        _takes(entry, titles),
    )


def _takes(entry: ProcessEntry, titles: Mapping[str, str]) -> str:
    """The worker classes of a manager's process, or the job types of any other process."""
    return one_line(", ".join([*(titles.get(one, one) for one in entry.workers), *entry.types]))


def _running_row(job: RunningJob) -> tuple[str, ...]:
    return (
        str(job.key),
        one_line(job.type),
        span(host_clock_ms() - job.activated_at_ms),
        str(job.attempt),
        span(job.lease_until_ms - host_clock_ms()),
        job.kind or "-",
        one_line(job.worker),
    )


def _rest(found: RunningJobs) -> str:
    return f"showing only the newest {len(found.jobs):,} jobs\n" if found.is_cut else ""
