"""everwork copy."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from everwork.cli.options import AsJson
from everwork.cli.output import write, write_json, write_stderr
from everwork.cli.progress import shown_progress
from everwork.cli.session import open_store, resolved_url, run
from everwork.codec.urls import shown_url
from everwork.exceptions import EngineBusy, EngineUnavailable
from everwork.service.store_copy import Copied, StoreCopy

INTERRUPTED = 130
AGAIN = "run the same command again to continue"

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command()
def copy(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Store to copy from.", show_default=False)],
    target: Annotated[str, typer.Argument(metavar="DST", help="Store to copy to.", show_default=False)],
    into_non_empty: Annotated[
        bool, typer.Option("--into-non-empty", help="Copy into a store that already has other jobs.")
    ] = False,
    while_running: Annotated[
        bool, typer.Option("--while-running", help="Copy a store that is in use; the copy may be inconsistent.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy a store into another one, of any engine.

    Copies jobs with their keys and history, types and the registry (API keys, workers, triggers). Stop all programs
    that use the source first. If the copy is interrupted, run the same command again to continue. At the end, the
    counts of both stores are compared.

    Examples:
        everwork copy sqlite:///jobs.db postgresql://ann@db.example.org/jobs
        everwork copy redis://localhost/0 sqlite:////var/backups/jobs.db
    """
    options = {"into_non_empty": into_non_empty, "while_running": while_running}
    started = time.monotonic()
    try:
        copied = run(_copy(resolved_url(source), resolved_url(target), options))
    except KeyboardInterrupt:
        write_stderr(f"interrupted; {AGAIN}")
        raise typer.Exit(INTERRUPTED) from None
    _show(copied, source, target, seconds=time.monotonic() - started, as_json=as_json)
    if copied.differences:
        raise typer.Exit(1)


async def _copy(source: str, target: str, options: dict[str, bool]) -> Copied:
    # Open the source first: a mistake in its URL must not leave an empty target behind.
    async with open_store(source) as here, open_store(target, creates=True) as there:
        try:
            with shown_progress() as show:
                return await StoreCopy(here, there, shown_url(source), show).copy(**options)
        except (EngineUnavailable, EngineBusy) as error:
            raise type(error)(f"{error}; when it is back, {AGAIN}") from None


def _show(copied: Copied, source: str, target: str, *, seconds: float, as_json: bool) -> None:
    for difference in copied.differences:
        write_stderr(f"{difference.what}: {difference.source:,} in the source, {difference.target:,} in the target")
    if as_json:
        write_json(_report(copied, source, target))
        return
    before = f" ({copied.present:,} more were already there)" if copied.present else ""
    write(
        f"copied to {shown_url(target)} in {seconds:.1f} s:\n"
        f"  {'jobs':<16}  {copied.jobs:>10,}{before}\n"
        f"  {'types':<16}  {copied.types:>10,}\n"
        f"  {'registry entries':<16}  {copied.entries:>10,}\n"
    )
    write(
        "the counts differ: one of the stores is in use; stop all programs and copy again\n"
        if copied.differences
        else "the counts match\n"
    )


def _report(copied: Copied, source: str, target: str) -> dict[str, Any]:
    return {
        "source": shown_url(source),
        "target": shown_url(target),
        "jobs": copied.jobs,
        "present": copied.present,
        "types": copied.types,
        "entries": copied.entries,
        "counts_agree": not copied.differences,
        "differences": [{"what": one.what, "source": one.source, "target": one.target} for one in copied.differences],
    }
