"""everwork types: list, pause, resume, open-breaker, reset-breaker; `policy` is in a file of its own."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from everwork.cli.commands.jobs import now_ms
from everwork.cli.commands.policy import policy, told
from everwork.cli.options import AsJson, EngineUrl, TypeName, number
from everwork.cli.output import Column, one_line, span, table, write, write_json, write_rich
from everwork.cli.session import administer
from everwork.codec.json import decode_policy
from everwork.core.breaker import BreakerState
from everwork.core.instants import utc_text
from everwork.core.states import State
from everwork.service.admin import TypeView
from everwork.service.policies import stored_fields
from everwork.service.reports import type_report

COLUMNS = (
    Column("TYPE", width_min=20),
    Column("STATUS", whole=True),
    *(Column(state.name, whole=True, right=True) for state in State),
    Column("LAST ASKED", whole=True, right=True),
    Column("POLICY", one_line=True),
)

app = typer.Typer(add_completion=False, rich_markup_mode="rich")
app.command("policy")(policy)


@app.callback(invoke_without_command=True)
def types(ctx: typer.Context) -> None:
    """List types, pause and resume them, set their policies, open and close their breakers.

    [bold]Example:[/bold] everwork types pause email-send
    """
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@app.command("list")
def list_types(engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """List types with the numbers of their jobs.

    [bold]Example:[/bold] everwork types list
    """
    found = administer(engine, lambda desk: desk.types())
    if as_json:
        write_json({"types": [type_report(view) for view in found]})
    elif found:
        write_rich(table(COLUMNS, [_row(view) for view in found]))
    else:
        write("no type has been seen yet\n")


@app.command()
def pause(type: TypeName, engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """Let no job of a type start; what runs goes on.

    [bold]Example:[/bold] everwork types pause email-send
    """
    administer(engine, lambda desk: desk.pause(type))
    _tell_done(type, {"paused": True}, "paused", as_json)


@app.command()
def resume(type: TypeName, engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """Let jobs of a type start again.

    [bold]Example:[/bold] everwork types resume email-send
    """
    administer(engine, lambda desk: desk.resume(type))
    _tell_done(type, {"paused": False}, "resumed", as_json)


@app.command("open-breaker")
def open_breaker(
    type: TypeName,
    seconds: Annotated[str, typer.Option(metavar="NUMBER", help="For so long, 1 to 86,400.")] = "60",
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """Open a type's breaker by hand: nothing of it starts meanwhile; then one job tries whether things work again.

    [bold]Example:[/bold] everwork types open-breaker http-request --seconds 600
    """
    opened = administer(engine, lambda desk: desk.open_breaker(type, number(seconds)))
    _tell_done(type, {"seconds": opened}, f"its breaker is open for {opened:g} s", as_json)


@app.command("reset-breaker")
def reset_breaker(type: TypeName, engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """Close a type's breaker, so that its jobs may start at once.

    [bold]Example:[/bold] everwork types reset-breaker http-request
    """
    was_open = administer(engine, lambda desk: desk.reset_breaker(type))
    done = "its breaker is closed again" if was_open else "its breaker was not open; nothing to do"
    _tell_done(type, {"was_open": was_open}, done, as_json)


def _tell_done(type: str, report: dict[str, Any], done: str, as_json: bool) -> None:
    if as_json:
        write_json({"type": type, **report})
    else:
        write(f"{one_line(type)}: {done}\n")


def _row(view: TypeView) -> tuple[str, ...]:
    info = view.info
    asked = "never" if info.last_asked_ms is None else f"{span(now_ms() - info.last_asked_ms)} ago"
    own = "" if info.policy is None else told(stored_fields(info.policy))
    counts = (f"{view.counts[state]:,}" if view.counts[state] else "-" for state in State)
    return one_line(info.type), _status(view), *counts, asked, own


def _status(view: TypeView) -> str:
    """What keeps the type's jobs from starting, or may; the first of it is what holds now."""
    info = view.info
    if info.paused:
        return "paused"
    match info.breaker:
        case BreakerState.OPEN:
            return f"breaker open until {_clock(info.breaker_open_until_ms)}"
        case BreakerState.HALF_OPEN if info.breaker_probe_key is not None:
            return f"breaker half-open, probe {info.breaker_probe_key}"
        case BreakerState.HALF_OPEN:
            return "breaker half-open"
        case BreakerState.CLOSED if info.rate_full_until_ms is not None:
            return f"rate full until {_clock(info.rate_full_until_ms)}"
        case _:
            return "at its limit" if _is_full(view) else "active"


def _is_full(view: TypeView) -> bool:
    """Whether as many run as may; groups have limits of their own, which their sum does not show."""
    most = decode_policy(view.info.policy).max_running
    return most is not None and not view.info.groups and view.counts[State.PROCESSING] >= most


def _clock(instant_ms: int | None) -> str:
    """A time of day; breakers and windows end soon."""
    return "" if instant_ms is None else f"{utc_text(instant_ms)[11:19]} UTC"
