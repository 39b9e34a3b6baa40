"""everwork up: the server, and with --demo sample workers and traffic."""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import suppress
from typing import Annotated, Any, Final

import typer

from everwork import Everwork
from everwork.cli.commands.serve import (
    GrpcPort,
    Host,
    HttpPort,
    NoAuth,
    OfflinePath,
    load_settings,
    run_server,
    serving,
)
from everwork.cli.demo import Journal, Lines, Snapshot, Traffic, demo_app, duration_text, view_for
from everwork.cli.options import ConfigFile, number
from everwork.cli.output import command_name, write
from everwork.codec.urls import shown_url
from everwork.core import checks
from everwork.core.queries import Count, JobFilter, Page
from everwork.core.states import State
from everwork.runtime.shutdown import on_stop_signals
from everwork.server.settings import Settings
from everwork.service.service import JobService

DEMO_URL: Final = "sqlite:///everwork-demo.db"
SECONDS_MAX: Final = 7 * 86_400
DEAD_MAX: Final = 50

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command()
def up(
    *,
    demo: Annotated[
        bool, typer.Option("--demo", help="Also run sample workers and create sample jobs, some of which fail.")
    ] = False,
    seconds: Annotated[
        str | None, typer.Option(metavar="SECONDS", help="Stop after this time.", show_default="run until Ctrl-C")
    ] = None,
    engine: Annotated[
        str | None,
        # --demo ignores the environment: sample jobs belong in a store that was chosen for them.
        typer.Option(
            "--engine",
            "-e",
            metavar="URL",
            help="Store.",
            show_default=f"sqlite:///everwork.db, or {DEMO_URL} with --demo",
        ),
    ] = None,
    host: Host = None,
    grpc_port: GrpcPort = None,
    http_port: HttpPort = None,
    offline: OfflinePath = None,
    no_auth: NoAuth = False,
    config: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text, one object per line.")] = False,
) -> None:
    """Run the server for development, with the dashboard.

    Stores jobs in a SQLite file unless --engine is given. Creates an API key if there is none, and prints a link that
    signs you in to the dashboard.

    Examples:
        everwork up
        everwork up --demo
        everwork up --http-port 8000 --grpc-port 8001
    """
    stops_after = None if seconds is None else checks.number("seconds", number(seconds), 0.1, SECONDS_MAX)
    flags = {
        "engine": engine or (DEMO_URL if demo else None),
        "host": host,
        "grpc_port": grpc_port,
        "http_port": http_port,
        "offline": offline,
        "auth": "off" if no_auth else None,
    }
    settings = load_settings(config, flags)
    if demo:
        asyncio.run(Demo(settings, as_json=as_json).run(stops_after))
    else:
        run_server(settings, as_json=as_json, makes_key=True, seconds=stops_after)


class Demo:
    """Sample workers, traffic, and a view of both, until it is stopped."""

    def __init__(self, settings: Settings, *, as_json: bool = False) -> None:
        self._settings = settings
        self._url = url = settings.engine
        self._as_json = as_json
        self._journal = Journal()
        self._app: Everwork = demo_app(url, self._journal)
        self._traffic = Traffic(self._app)
        self._types = list(self._app.functions)
        self._view = view_for(url, self._types, self._journal, as_json=as_json)
        logs_to: Any = sys.stderr if isinstance(self._view, Lines) else self._journal
        handler = logging.StreamHandler(logs_to)
        handler.addFilter(_is_not_job_failure)
        logging.basicConfig(handlers=[handler], level=logging.WARNING, format="%(message)s")

    async def run(self, seconds: float | None) -> None:
        """Run until the time has passed or a signal arrives, then stop cleanly."""
        loop = asyncio.get_running_loop()
        self._started_at = loop.time()
        self._stop = asyncio.Event()
        on_stop_signals(self._request_stop)
        server = serving()
        running = await server.open_server(self._settings, makes_key=True)
        if seconds is not None:
            loop.call_later(seconds, self._stop.set)  # Excludes the time to open.
        try:
            self._view.greet(server.lines(running), server.facts(running))
            async with self._app:
                with self._view:
                    await self._work_and_show()
                self._write_summary(await self._snapshot())
        finally:
            await running.server.stop()

    def _request_stop(self) -> None:
        """Stop the demo; the second signal cancels running jobs."""
        if self._stop.is_set():
            self._app.stop()
        self._stop.set()

    async def _work_and_show(self) -> None:
        tasks = [asyncio.create_task(self._app.work()), asyncio.create_task(self._traffic.run(self._stop))]
        try:
            while not self._stop.is_set() and not any(task.done() for task in tasks):
                self._view.update(await self._snapshot())
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), self._view.period)
            self._view.update(await self._snapshot())
        finally:
            self._stop.set()
            self._app.stop()
            await asyncio.gather(*tasks)

    async def _snapshot(self) -> Snapshot:
        service, seconds = self._app.service, asyncio.get_running_loop().time() - self._started_at
        reading = asyncio.run_coroutine_threadsafe(_read_counts(service), self._app.loop)
        counts, dead = await asyncio.wrap_future(reading)
        shown_counts = [count for count in counts if count.type in self._types]
        dead_letters = [job for job in dead.jobs if job.type in self._types]
        return Snapshot(seconds, shown_counts, dead_letters, self._traffic.created, self._stop.is_set())

    def _write_summary(self, snapshot: Snapshot) -> None:
        if self._as_json:
            return
        ran_for, created = duration_text(snapshot.seconds), self._traffic.created
        completed, failed = snapshot.of_state(State.COMPLETED), snapshot.of_state(State.FAILED)
        waiting = snapshot.of_state(State.PENDING) + snapshot.of_state(State.PROCESSING)
        write(
            f"\nStopped after {ran_for}; {created:,} jobs created. In the store:\n"
            f"  {completed:,} completed, {failed:,} failed, {waiting:,} waiting for the next run\n"
            f"Show the dead letters: {command_name()} dead list --engine {shown_url(self._url)}\n"
        )


def _is_not_job_failure(record: logging.LogRecord) -> bool:
    """Keep a log line unless it is about a failed job, which the view already shows."""
    return getattr(record, "everwork_facts", {}).get("outcome") not in ("failed", "retried", "rejected")


async def _read_counts(service: JobService) -> tuple[list[Count], Page]:
    failed = JobFilter(states=frozenset([State.FAILED]))
    page = await service.find(failed, DEAD_MAX)
    return await service.count(), page._replace(jobs=[job for job in page.jobs if not job.rejected])
