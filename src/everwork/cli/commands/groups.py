"""everwork groups: list, drop."""

from __future__ import annotations

from typing import Annotated

import typer

from everwork.cli.commands.jobs import now_ms
from everwork.cli.options import AsJson, EngineUrl
from everwork.cli.output import Column, one_line, span, table, write, write_json, write_rich
from everwork.cli.session import use_admin
from everwork.core.states import State
from everwork.service.admin import GroupView
from everwork.service.reports import group_report

COLUMNS = (
    Column("TYPE", width_min=20),
    Column("GROUP", width_min=20),
    *(Column(state.name, whole=True, right=True) for state in State),
    Column("TYPE LAST ASKED", whole=True, right=True),
)

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.callback(invoke_without_command=True)
def groups(ctx: typer.Context) -> None:
    """List and drop groups: further readers of a type, each with a copy of every job.

    [bold]Example:[/bold] everwork groups list
    """
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@app.command("list")
def list_groups(
    type: Annotated[
        str | None, typer.Argument(metavar="[TYPE]", help="Only those of this type.", show_default=False)
    ] = None,
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """List groups with the numbers of their jobs.

    [bold]Example:[/bold] everwork groups list email-send
    """
    found = [view for view in use_admin(engine, lambda admin: admin.groups()) if type in (None, view.type)]
    if as_json:
        write_json({"groups": [group_report(view) for view in found]})
    elif found:
        write_rich(table(COLUMNS, [_row(view) for view in found]))
    else:
        write("no type has further groups\n" if type is None else f"{one_line(type)} has no further groups\n")


@app.command()
def drop(
    type: Annotated[str, typer.Argument(metavar="TYPE", help="The type.", show_default=False)],
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Its group.", show_default=False)],
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """Forget a group: its pending jobs are cancelled, running ones go on.

    [bold]Example:[/bold] everwork groups drop order-placed reporting
    """
    cancelled = use_admin(engine, lambda admin: admin.drop_group(type, group))
    if as_json:
        write_json({"type": type, "group": group, "cancelled": cancelled})
    else:
        write(f"dropped group {one_line(group)} of {one_line(type)}; {cancelled:,} pending jobs cancelled\n")


def _row(view: GroupView) -> tuple[str, ...]:
    last_asked = "never" if view.last_asked_ms is None else f"{span(now_ms() - view.last_asked_ms)} ago"
    counts = (f"{view.counts[state]:,}" if view.counts[state] else "-" for state in State)
    return one_line(view.type), one_line(view.group), *counts, last_asked
