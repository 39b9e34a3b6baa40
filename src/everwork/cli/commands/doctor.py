"""everwork doctor."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everwork.aio.clocks import host_clock_ms
from everwork.cli.options import AsJson, EngineUrl, StoreUrl, chosen_url, config_path
from everwork.cli.output import one_line, write_json, write_rich
from everwork.cli.session import open_store, resolved_url, run
from everwork.codec.urls import shown_url, store_name
from everwork.core.states import State
from everwork.exceptions import BadConfiguration, EngineError
from everwork.server.settings import Settings, load
from everwork.service.access.api_key import KeyState
from everwork.service.doctor import MEANING, Diagnosis, Finding, examine, of_spool
from everwork.spool.contents import status_of

if TYPE_CHECKING:
    from rich.console import RenderableType

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command()
def doctor(
    context: typer.Context,
    store: StoreUrl = None,
    engine: EngineUrl = None,
    *,
    spool: Annotated[
        str | None, typer.Option(metavar="PATH", help="Spool file to check as well.", show_default="the server's")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Skip the integrity check, which reads the whole store.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a store and the settings for problems.

    Checks the schema, durability, clock, latency, API keys, settings and spool, and looks for jobs that no worker is
    polling for. Also checks the integrity of the stored data, and who can read its files. The exit code is 1 if there
    is a problem.

    Examples:
        everwork doctor
        everwork doctor redis://localhost/0 --json
        everwork doctor --spool /var/lib/shop/spool.db
        everwork doctor --quick
    """
    url = resolved_url(chosen_url(context, store, engine))
    settings, findings = _settings(url)
    diagnosis = run(_examine(url, integrity=not quick))
    findings += diagnosis.findings + _spool_findings(spool, settings, url)
    diagnosis = replace(diagnosis, findings=sorted(findings, key=lambda finding: not finding.is_problem))
    if as_json:
        write_json(_report(url, diagnosis, settings))
    else:
        write_rich(*_page(url, diagnosis, settings))
    if not diagnosis.is_well:
        raise typer.Exit(1)


async def _examine(url: str, *, integrity: bool) -> Diagnosis:
    async with open_store(url) as engine:
        return await examine(engine, host_clock_ms, integrity=integrity)


def _spool_findings(path: str | None, settings: Settings | None, url: str) -> list[Finding]:
    """Findings about the given spool, or about the server's spool if it exists."""
    if path is None:
        of_server = getattr(settings, "spool", None)
        if of_server is None or not Path(of_server.path).exists():
            return []
        path = of_server.path
    try:
        status = status_of(path)
    except EngineError as error:
        text = f"the spool cannot be used: {str(error).removeprefix('spool: ')}"
        return [Finding(True, text, "check the path, or choose another file")]
    findings = of_spool(status)
    if status.store != store_name(url) and findings:
        text = f"the spool {status.path} has entries for {status.store}, not for this store"
        findings.insert(
            0, Finding(True, text, "run a program with that engine and this spool, or see everwork spool flush --help")
        )
    return findings


def _settings(url: str) -> tuple[Settings | None, list[Finding]]:
    """The settings of a server started here, or the error that would keep it from starting."""
    try:
        return load(config_path(), os.environ, {"engine": url}), []
    except BadConfiguration as error:
        return None, [Finding(True, f"a server would not start: {error}", "correct the setting")]


def _report(url: str, diagnosis: Diagnosis, settings: Settings | None) -> dict[str, Any]:
    health, trips = diagnosis.health, diagnosis.trips
    return {
        "engine": health.engine,
        "url": shown_url(url),
        "version": health.version,
        "schema_version": health.schema_version,
        "durability": health.durability.value,
        "settings": dict(health.details),
        "configuration": None if settings is None else settings.shown(),
        "api_keys": {state.value: diagnosis.keys[state] for state in KeyState},
        "clock_off_ms": trips.clock_off_ms,
        "read_ms": round(trips.read_ms, 2),
        "write_ms": round(trips.write_ms, 2),
        "jobs": {state.label: diagnosis.counts[state] for state in State},
        "ok": diagnosis.is_well,
        "problems": [_finding_report(one) for one in diagnosis.findings if one.is_problem],
        "notes": [_finding_report(one) for one in diagnosis.findings if not one.is_problem],
    }


def _finding_report(finding: Finding) -> dict[str, str]:
    return {"text": finding.text, "advice": finding.advice}


def _page(url: str, diagnosis: Diagnosis, settings: Settings | None) -> list[RenderableType]:
    from rich.table import Table  # noqa: PLC0415 - only what is used is loaded
    from rich.text import Text  # noqa: PLC0415

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in _facts(url, diagnosis, settings):
        grid.add_row(name, Text(one_line(value)))
    page: list[RenderableType] = [grid, ""]
    for finding in diagnosis.findings:
        mark = ("problem  ", "bold red") if finding.is_problem else ("note     ", "bold yellow")
        page.append(Text.assemble(mark, one_line(f"{finding.text}: {finding.advice}")))
    if diagnosis.is_well:
        page.append(Text("No problems found", style="green"))
    return page


def _facts(url: str, diagnosis: Diagnosis, server: Settings | None) -> list[tuple[str, str]]:
    health, trips = diagnosis.health, diagnosis.trips
    settings = ", ".join(f"{name} {value}" for name, value in health.details.items())
    jobs = ", ".join(f"{diagnosis.counts[state]:,} {state.label}" for state in State)
    return [
        ("engine", f"{health.engine} {health.version}, schema version {health.schema_version}"),
        ("URL", shown_url(url)),
        ("durability", f"{health.durability.value}: {MEANING[health.durability]}"),
        ("settings", settings),
        ("clock", f"{trips.clock_off_ms:+,} ms from this host's clock"),
        ("round trip", f"read {trips.read_ms:.2f} ms, write {trips.write_ms:.2f} ms"),
        ("jobs", jobs),
        ("API keys", _keys_text(diagnosis, server)),
        ("configuration", _configuration_text(server)),
    ]


def _keys_text(diagnosis: Diagnosis, server: Settings | None) -> str:
    has_another = server is not None and server.api_key is not None
    more = ", and EVERWORK_API_KEY" if has_another else ""
    if not diagnosis.keys[KeyState.LIVE] and not has_another:
        more = "; a server needs one: everwork keys create --name ops --permission '*'"
    return ", ".join(f"{diagnosis.keys[state]:,} {state.value}" for state in KeyState) + more


def _configuration_text(server: Settings | None) -> str:
    """The settings that differ from their defaults, except the engine, which has its own line."""
    if server is None:
        return "invalid"
    usual = Settings().shown()
    changed = {name: one for name, one in server.shown().items() if name != "engine" and one != usual[name]}
    return ", ".join(f"{name} {_setting_text(value)}" for name, value in changed.items()) or "defaults"


def _setting_text(value: object) -> str:
    return json.dumps(value) if isinstance(value, list | dict | bool) else str(value)
