"""everwork stats."""

from __future__ import annotations

from typing import Annotated

import typer

from everwork.cli import show
from everwork.cli.options import AsJson, EngineUrl, number
from everwork.cli.output import write_json, write_rich
from everwork.cli.session import use
from everwork.core import checks
from everwork.core.limits import STATISTICS_KEEP_HOURS
from everwork.service.reports import stats_report

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command()
def stats(
    hours: Annotated[str, typer.Option(metavar="NUMBER", help="How far back, 1 to 720.")] = "24",
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """Count jobs by type and state, and show what workers did lately.

    Example:
        everwork stats --hours 1
    """
    back = checks.whole_number("hours", number(hours), 1, STATISTICS_KEEP_HOURS)
    report = stats_report(use(engine, lambda service: service.stats(back)))
    if as_json:
        write_json(report)
    else:
        write_rich(*show.stats_page(report, back))
