"""everwork triggers: list, show, on, off, fire."""

from __future__ import annotations

from typing import Annotated

import typer

from everwork.aio.clocks import host_clock_ms
from everwork.cli.commands.workers import switched
from everwork.cli.options import AsJson, EngineUrl, listing_app
from everwork.cli.output import Column, one_line, span, table, write, write_json, write_rich
from everwork.cli.session import use_admin
from everwork.core.instants import utc_text
from everwork.service.admin import Admin
from everwork.service.fleet.entries import TriggerView
from everwork.service.reports import fired_report, fires_report, trigger_report, trigger_switch_report
from everwork.service.triggers.fires import TriggerFire

COLUMNS = (
    Column("TRIGGER", width_min=20),
    Column("WORKER", width_min=12),
    Column("STATUS", whole=True),
    Column("SCHEDULE", width_min=16),
    Column("CATCH-UP", whole=True),
    Column("LAST", whole=True, right=True),
    Column("NEXT", whole=True, right=True),
    Column("NAME", whole=True),
)
FIRE_COLUMNS = (
    Column("JOB", whole=True, right=True),
    Column("STATE", whole=True),
    Column("CREATED", whole=True, right=True),
    Column("SCHEDULED FOR", whole=True),
)
TriggerName = Annotated[
    str, typer.Argument(metavar="TRIGGER", help="Title or name of the trigger.", show_default=False)
]

app = listing_app()


@app.callback()
def triggers() -> None:
    """List triggers; enable, disable and fire them.

    Example:
        everwork triggers fire nightly-report
    """


@app.command("list")
def list_triggers(engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """List triggers with schedule and next run.

    LAST is the latest scheduled time, even if the trigger was disabled then.

    Example:
        everwork triggers list
    """
    found, titles = use_admin(engine, _read_triggers)
    if as_json:
        write_json({"triggers": [trigger_report(view) for view in found]})
    elif found:
        write_rich(table(COLUMNS, [_row(view, titles) for view in found]))
    else:
        write("no triggers; workers declare them with triggers= or cron=\n")


@app.command()
def show(trigger: TriggerName, engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """Show when a trigger fires next, and its latest jobs.

    Example:
        everwork triggers show nightly-report
    """
    view, fires = use_admin(engine, lambda admin: _read_trigger(admin, trigger))
    if as_json:
        write_json(trigger_report(view) | fires_report(view.entry, fires))
        return
    write(f"{one_line(view.entry.title)}: {_status(view)}, {one_line(view.entry.schedule)}; {_outlook(view)}\n")
    if fires:
        write_rich(table(FIRE_COLUMNS, [_fire_row(fire) for fire in fires]))
    else:
        write("no recent jobs of this trigger\n")


@app.command()
def on(trigger: TriggerName, engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """Enable a trigger.

    Runs missed while it was disabled are not caught up.

    Example:
        everwork triggers on nightly-report
    """
    _switch(trigger, engine, is_on=True, as_json=as_json)


@app.command()
def off(trigger: TriggerName, engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """Disable a trigger in all managers.

    Example:
        everwork triggers off nightly-report
    """
    _switch(trigger, engine, is_on=False, as_json=as_json)


@app.command()
def fire(trigger: TriggerName, engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """Create the job of a trigger now.

    Works for disabled triggers too; the schedule does not change.

    Example:
        everwork triggers fire nightly-report
    """
    entry, key = use_admin(engine, lambda admin: admin.fire_trigger(trigger))
    if as_json:
        write_json(fired_report(entry, key))
    else:
        write(f"{one_line(entry.title)}: fired, job {key}\n")


async def _read_triggers(admin: Admin) -> tuple[list[TriggerView], dict[str, str]]:
    """The triggers, and the titles of workers by their ids."""
    return await admin.triggers(), {view.entry.id: view.entry.title for view in await admin.workers()}


async def _read_trigger(admin: Admin, trigger: str) -> tuple[TriggerView, list[TriggerFire]]:
    view = await admin.trigger(trigger)
    return view, await admin.fires(view.entry.name)


def _switch(trigger: str, engine: str | None, *, is_on: bool, as_json: bool) -> None:
    done = use_admin(engine, lambda admin: admin.switch_trigger(trigger, is_on))
    if as_json:
        write_json(trigger_switch_report(done))
    else:
        write(f"{one_line(done.entry.title)}: {switched(is_on, done.is_changed)}\n")


def _row(view: TriggerView, titles: dict[str, str]) -> tuple[str, ...]:
    entry = view.entry
    return (
        one_line(entry.title),
        one_line(titles.get(entry.worker_id, entry.worker_id)),
        _status(view),
        one_line(entry.schedule),
        "yes" if entry.is_catchup else "no",
        "never" if view.last_ms is None else f"{span(host_clock_ms() - view.last_ms)} ago",
        _next(view),
        one_line(entry.name),
    )


def _status(view: TriggerView) -> str:
    return "enabled" if view.is_on else "disabled"


def _next(view: TriggerView) -> str:
    if view.next_ms is None:
        return "-"
    return f"in {span(view.next_ms - host_clock_ms())}" if view.is_served else "no worker"


def _outlook(view: TriggerView) -> str:
    if view.next_ms is None:
        return f"next run unknown: {one_line(view.next_unknown or 'no schedule')}"
    if not view.is_served:
        return f"scheduled for {utc_text(view.next_ms)}, but no running worker serves it"
    return f"next run at {utc_text(view.next_ms)}, in {span(view.next_ms - host_clock_ms())}"


def _fire_row(fire: TriggerFire) -> tuple[str, ...]:
    return (
        str(fire.key),
        fire.state.label,
        f"{span(host_clock_ms() - fire.created_at_ms)} ago",
        "manual" if fire.point_ms is None else utc_text(fire.point_ms),
    )
