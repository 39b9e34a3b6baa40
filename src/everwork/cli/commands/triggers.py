"""everwork triggers: list, show, on, off, fire."""

from __future__ import annotations

from typing import Annotated

import typer

from everwork.cli.commands.jobs import now_ms
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
    Column("CATCHES UP", whole=True),
    Column("LAST POINT", whole=True, right=True),
    Column("NEXT", whole=True, right=True),
    Column("NAME", whole=True),
)
FIRE_COLUMNS = (
    Column("JOB", whole=True, right=True),
    Column("STATE", whole=True),
    Column("CREATED", whole=True, right=True),
    Column("POINT", whole=True),
)
TriggerName = Annotated[
    str, typer.Argument(metavar="TRIGGER", help="The trigger's title or its name.", show_default=False)
]

app = listing_app()


@app.callback()
def triggers() -> None:
    """List triggers, switch them on and off, and fire them by hand.

    Example:
        everwork triggers fire nightly-report
    """


@app.command("list")
def list_triggers(engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """List triggers with their schedules and the last time points that have passed, also while they were off.

    Example:
        everwork triggers list
    """
    found, titles = use_admin(engine, _read_triggers)
    if as_json:
        write_json({"triggers": [trigger_report(view) for view in found]})
    elif found:
        write_rich(table(COLUMNS, [_row(view, titles) for view in found]))
    else:
        write("no worker has declared a trigger yet\n")


@app.command()
def show(trigger: TriggerName, engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """Show a trigger: when it fires next, and the latest jobs that it has made.

    Example:
        everwork triggers show nightly-report
    """
    view, fires = use_admin(engine, lambda admin: _read_trigger(admin, trigger))
    if as_json:
        write_json(trigger_report(view) | fires_report(view.entry, fires))
        return
    write(f"{one_line(view.entry.title)}: {view.status}, {one_line(view.entry.schedule)}; {_outlook(view)}\n")
    if fires:
        write_rich(table(FIRE_COLUMNS, [_fire_row(fire) for fire in fires]))
    else:
        write("none of the latest jobs of its type is its own\n")


@app.command()
def on(trigger: TriggerName, engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """Let a trigger fire again; the times that it missed while it was off are not caught up.

    Example:
        everwork triggers on nightly-report
    """
    _switch(trigger, engine, is_on=True, as_json=as_json)


@app.command()
def off(trigger: TriggerName, engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """Let a trigger fire no more, in whatever manager.

    Example:
        everwork triggers off nightly-report
    """
    _switch(trigger, engine, is_on=False, as_json=as_json)


@app.command()
def fire(trigger: TriggerName, engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """Let a trigger create its job now, also if it is off; its schedule stays as it is.

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
        "on" if view.is_on else "off",
        one_line(entry.schedule),
        "yes" if entry.is_catchup else "no",
        "never" if view.last_ms is None else f"{span(now_ms() - view.last_ms)} ago",
        _next(view),
        one_line(entry.name),
    )


def _next(view: TriggerView) -> str:
    if view.next_ms is None:
        return "-"
    return f"in {span(view.next_ms - now_ms())}" if view.is_served else "nobody runs it"


def _outlook(view: TriggerView) -> str:
    if view.next_ms is None:
        return f"no next time point: {one_line(view.next_unknown or 'none is known')}"
    if not view.is_served:
        return f"would fire at {utc_text(view.next_ms)}, but nobody runs it"
    return f"fires next at {utc_text(view.next_ms)}, in {span(view.next_ms - now_ms())}"


def _fire_row(fire: TriggerFire) -> tuple[str, ...]:
    return (
        str(fire.key),
        fire.state.label,
        f"{span(now_ms() - fire.created_at_ms)} ago",
        "by hand" if fire.point_ms is None else utc_text(fire.point_ms),
    )
