"""everwork version."""

from __future__ import annotations

import platform
import sqlite3
from importlib.metadata import version as installed_version

import typer

from everwork.cli.options import AsJson
from everwork.cli.output import write, write_json

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command()
def version(as_json: AsJson = False) -> None:
    """Show the versions of Everwork, Python and SQLite.

    [bold]Example:[/bold] everwork version --json
    """
    versions = {
        "everwork": installed_version("everwork"),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }
    if as_json:
        write_json(versions)
    else:
        write(f"everwork {versions['everwork']} (Python {versions['python']}, SQLite {versions['sqlite']})\n")
