"""everwork sessions: list and end the dashboard's sessions."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from everwork.aio.clocks import host_clock_ms
from everwork.cli.options import AsJson, EngineUrl, listing_app
from everwork.cli.output import Column, one_line, span, table, write, write_json, write_rich
from everwork.cli.session import use_admin
from everwork.exceptions import InvalidInput
from everwork.service.access.sessions import OpenSession
from everwork.service.reports import session_report

COLUMNS = (
    Column("ID", whole=True),
    Column("OPENED BY", width_min=16),
    Column("LOGIN", whole=True),
    Column("FROM", width_min=12),
    Column("AGE", whole=True, right=True),
    Column("EXPIRES IN", whole=True, right=True),
)

app = listing_app()


@app.callback()
def sessions() -> None:
    """List and end dashboard sessions.

    Example:
        everwork sessions end --all
    """


@app.command("list")
def list_sessions(engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """List open dashboard sessions, newest first.

    Example:
        everwork sessions list
    """
    found = use_admin(engine, lambda admin: admin.sessions())
    if as_json:
        write_json({"sessions": [session_report(one) for one in found]})
    elif found:
        write_rich(table(COLUMNS, [_row(one) for one in found]))
    else:
        write("no open sessions\n")


@app.command()
def end(
    id: Annotated[
        str | None, typer.Argument(help="Id of the session, as everwork sessions list shows it.", show_default=False)
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="End all sessions, and invalidate unused login links.")] = False,
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """End a dashboard session, or all of them.

    The next page or click in that browser leads to the login page.

    Examples:
        everwork sessions end 5d1f0c9b6a2e4f73
        everwork sessions end --all
    """
    if (id is None) == (not all):
        raise InvalidInput(
            "id", "is required, unless --all is given" if id is None else "cannot be combined with --all"
        )
    if id is None:
        ended = use_admin(engine, lambda admin: admin.end_sessions())
        if as_json:
            write_json(asdict(ended))
        else:
            write(f"ended {ended.ended:,} session{'' if ended.ended == 1 else 's'}\n")
        return
    one = use_admin(engine, lambda admin: admin.end_session(id))
    if as_json:
        write_json(session_report(one))
    else:
        write(f"ended session {one.id} ({one_line(one.who)})\n")


def _row(session: OpenSession) -> tuple[str, ...]:
    now = host_clock_ms()
    return (
        session.id,
        one_line(session.who),
        "link" if session.is_by_link else "key",
        one_line(session.origin),
        span(now - session.opened_at_ms),
        span(session.expires_at_ms - now),
    )
