"""everwork types: list, pause, resume, policy, reset-breaker."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from everwork.cli.jobs import now_ms
from everwork.cli.options import AsJson, EngineUrl, number
from everwork.cli.output import Column, one_line, span, table, write, write_json, write_rich
from everwork.cli.session import administer
from everwork.core import checks
from everwork.core.policy import DEFAULT_TYPE_POLICY, TypePolicy, policy_from, said_of
from everwork.core.states import State
from everwork.engines.codec import decode_policy
from everwork.exceptions import InvalidInput
from everwork.service.admin_report import policy_report, type_report
from everwork.service.administration import PolicyView, TypeView

COLUMNS = (
    Column("TYPE", width_min=20),
    Column("STATUS", whole=True),
    *(Column(state.name, whole=True, right=True) for state in State),
    Column("LAST ASKED", whole=True, right=True),
    Column("POLICY", one_line=True),
)
TypeName = Annotated[str, typer.Argument(metavar="TYPE", help="The type.", show_default=False)]

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.callback(invoke_without_command=True)
def types(ctx: typer.Context) -> None:
    """List types, pause and resume them, and set their retry policies.

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


@app.command("reset-breaker")
def reset_breaker(type: TypeName, engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """Close a type's breaker, so that its jobs may start at once.

    [bold]Example:[/bold] everwork types reset-breaker http-request
    """
    was_open = administer(engine, lambda desk: desk.reset_breaker(type))
    done = "its breaker is closed again" if was_open else "its breaker was not open; nothing to do"
    _tell_done(type, {"was_open": was_open}, done, as_json)


@app.command()
def policy(
    type: TypeName,
    *,
    max_attempts: Annotated[str | None, typer.Option(metavar="NUMBER", help="1 to 100.")] = None,
    base: Annotated[str | None, typer.Option(metavar="SECONDS", help="The first delay.")] = None,
    factor: Annotated[str | None, typer.Option(metavar="NUMBER", help="How much longer each delay is.")] = None,
    cap: Annotated[str | None, typer.Option(metavar="SECONDS", help="The longest delay.")] = None,
    jitter: Annotated[str | None, typer.Option(metavar="SHARE", help="0 to 1.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Go back to the default policy.")] = False,
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show a type's retry policy, or change what is given of it.

    [bold]Examples:[/bold]
    everwork types policy email-send
    everwork types policy email-send --max-attempts 10 --base 2 --cap 60
    everwork types policy email-send --clear
    """
    said = {"max_attempts": max_attempts, "base": base, "factor": factor, "cap": cap, "jitter": jitter}
    given = {name: number(text) for name, text in said.items() if text is not None}
    view = _policy(engine, type, given, clear=clear)
    if as_json:
        write_json(policy_report(type, view))
    else:
        own = "" if view.is_own else " (the default)"
        write(f"{one_line(type)}: {_told(view.policy)}{own}\n")


def _policy(engine: str | None, type: str, given: dict[str, Any], *, clear: bool) -> PolicyView:
    """The policy in force, after what was asked for."""
    if clear and given:
        raise InvalidInput("clear", f"must not be given together with {', '.join(given)}")
    if clear:
        administer(engine, lambda desk: desk.clear_policy(type))
        return PolicyView(DEFAULT_TYPE_POLICY, {})
    if given:
        checks.name("type", type)
        policy_from(given)
        # A policy may be there before the first job, and so may the store; a slip must not bring it into being.
        return administer(engine, lambda desk: desk.set_policy(type, given, changes_only=True), creates=True)
    return administer(engine, lambda desk: desk.policy(type))


def _tell_done(type: str, report: dict[str, Any], done: str, as_json: bool) -> None:
    if as_json:
        write_json({"type": type, **report})
    else:
        write(f"{one_line(type)}: {done}\n")


def _row(view: TypeView) -> tuple[str, ...]:
    info = view.info
    asked = "never" if info.last_asked_ms is None else f"{span(now_ms() - info.last_asked_ms)} ago"
    own = "" if info.policy is None else _told(decode_policy(info.policy))
    counts = (f"{view.counts[state]:,}" if view.counts[state] else "-" for state in State)
    return one_line(info.type), _status(view), *counts, asked, own


def _status(view: TypeView) -> str:
    info = view.info
    if info.paused:
        return "paused"
    open_until = info.breaker_open_until_ms
    return "active" if open_until is None or open_until <= now_ms() else "breaker open"


def _told(policy: TypePolicy) -> str:
    said = asdict(policy.retry) | said_of(policy)
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in said.items()
    )
