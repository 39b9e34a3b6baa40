"""everwork audit."""

from __future__ import annotations

from typing import Annotated

import orjson
import typer

from everwork.cli.commands.jobs import next_page
from everwork.cli.options import AsJson, EngineUrl, number
from everwork.cli.output import Column, one_line, table, write, write_json, write_rich
from everwork.cli.session import use_admin
from everwork.core import checks
from everwork.core.instants import utc_text
from everwork.core.limits import LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX
from everwork.service.access.audit import AuditEntry
from everwork.service.reports import audit_report

COLUMNS = (
    Column("TIME", whole=True),
    Column("USER", width_min=12),
    Column("ORIGIN", width_min=12),
    Column("ACTION", whole=True),
    Column("TARGET", width_min=16),
    Column("DETAIL", one_line=True),
)

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command()
def audit(
    limit: Annotated[
        str, typer.Option(metavar="NUMBER", help=f"Number of entries to show, 1 to {LIST_LIMIT_MAX:,}.")
    ] = str(LIST_LIMIT_DEFAULT),
    cursor: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Position to continue from, as printed by the previous page.")
    ] = None,
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the audit log, newest first.

    It records who changed keys, types, groups, workers and triggers, deleted jobs, or requeued jobs in bulk.

    Example:
        everwork audit --limit 20
    """
    rows = checks.whole_number("limit", number(limit), 1, LIST_LIMIT_MAX)
    found = use_admin(engine, lambda admin: admin.audit(rows, cursor))
    following = found[-1].name if len(found) == rows else None
    if as_json:
        write_json({"entries": [audit_report(entry) for entry in found], "next": following})
        return
    if not found:
        write("no audit entries yet\n" if cursor is None else "no older audit entries\n")
        return
    write_rich(table(COLUMNS, [_row(entry) for entry in found]))
    if following is not None:
        write(next_page(following))


def _row(entry: AuditEntry) -> tuple[str, ...]:
    detail = orjson.dumps(dict(entry.detail)).decode() if entry.detail else ""
    return (
        utc_text(entry.at_ms),
        one_line(entry.who),
        one_line(entry.origin),
        one_line(entry.action),
        one_line(entry.target),
        one_line(detail),
    )
