"""everwork migrate."""

from __future__ import annotations

from typing import Annotated

import typer

from everwork.cli.options import AsJson, EngineUrl, StoreUrl, chosen_url
from everwork.cli.output import write, write_json, write_stderr
from everwork.cli.session import open_store, resolved_url, run
from everwork.codec.urls import shown_url
from everwork.engines.open import open_engine
from everwork.engines.values import Schema

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command()
def migrate(
    context: typer.Context,
    store: StoreUrl = None,
    engine: EngineUrl = None,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit 1 if the schema is not current.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Bring a store's schema up to date, or create it.

    Every program does so when it opens a store; with this command it happens before they start.

    Examples:
        everwork migrate postgresql://ann@db.example.org/jobs
        everwork migrate --check
    """
    url = resolved_url(chosen_url(context, store, engine))
    before = run(open_engine(url).schema())
    after = before if check else run(_migrate(url))
    if as_json:
        write_json({"engine": shown_url(url), "before": before.stored, "after": after.stored, "newest": after.newest})
    elif not check:
        write(f"{shown_url(url)}: {_result_text(before, after)}\n")
    elif before.stored == before.newest:
        write(f"{shown_url(url)}: schema version {before.stored} is current\n")
    if after.stored != after.newest:
        version = "there is no schema" if after.stored is None else f"schema version {after.stored}"
        write_stderr(f"{shown_url(url)}: {version}, this program knows {after.newest}; run: everwork migrate")
        raise typer.Exit(1)


async def _migrate(url: str) -> Schema:
    async with open_store(url, creates=True) as engine:
        return Schema((await engine.health()).schema_version, (await engine.schema()).newest)


def _result_text(before: Schema, after: Schema) -> str:
    if before.stored is None:
        return f"created, schema version {after.stored}"
    if before.stored == after.stored:
        return f"schema version {after.stored} is current, nothing to do"
    return f"brought from schema version {before.stored} to {after.stored}"
