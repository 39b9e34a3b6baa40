"""everwork keys: create, list, revoke."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from everwork.aio.clocks import host_clock_ms
from everwork.cli.options import AsJson, EngineUrl, listing_app, number, parse_instant
from everwork.cli.output import Column, one_line, span, table, write, write_json, write_rich
from everwork.cli.session import use_admin
from everwork.service.access.api_key import ApiKey, KeyState, new_key
from everwork.service.reports import key_report

COLUMNS = (
    Column("ID", whole=True),
    Column("NAME", width_min=20),
    Column("STATE", whole=True),
    Column("PERMISSIONS", whole=True),
    Column("TENANTS"),
    Column("AGE", whole=True, right=True),
    Column("NOTE", one_line=True),
)

app = listing_app()


@app.callback()
def keys() -> None:
    """List, create and revoke API keys.

    Example:
        everwork keys create --name ci --permission jobs
    """


@app.command()
def create(
    *,
    name: Annotated[str, typer.Option(metavar="TEXT", help="Name, such as the program that uses the key.")],
    permission: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Permission: * (all), jobs, jobs:read, admin or tick. Repeatable."),
    ] = None,
    tenant: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Restrict the key to this tenant. Repeatable.", show_default="all tenants"),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Expiry: 90d, 12h, 30m from now, or a time (RFC 3339).", show_default="never"
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER", help="Rate limit in requests per second.", show_default="the server's rate_limit"
        ),
    ] = None,
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """Create an API key and print it once.

    The store keeps only a hash of it.

    Examples:
        everwork keys create --name ci --permission jobs --expires 90d
        everwork keys create --name acme --permission jobs --tenant acme --rate 100
        everwork keys create --name ops --permission jobs:read --permission admin
    """
    options: dict[str, Any] = {
        "tenants": tenant or [],
        "expires_at_ms": None if expires is None else parse_instant("expires", expires, host_clock_ms()),
        "rate_per_second": number(rate),
    }
    # Validate before opening the store: a mistake must not create a file.
    new_key("", host_clock_ms(), {"name": name, "permissions": permission or [], **options})
    new = use_admin(engine, lambda admin: admin.create_key(name, permission or [], **options), creates=True)
    if as_json:
        write_json({"key": new.text, **key_report(new.key, host_clock_ms())})
    else:
        write(f"created API key {new.key.id} ({_facts(new.key)}):\n\n  {new.text}\n\n")
        write("Store it now: it is not shown again.\n")


@app.command("list")
def list_keys(engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """List API keys, including revoked and expired ones.

    Example:
        everwork keys list
    """
    found = use_admin(engine, lambda admin: admin.list_keys())
    if as_json:
        write_json({"keys": [key_report(key, host_clock_ms()) for key in found]})
    elif found:
        write_rich(table(COLUMNS, [_row(key) for key in found]))
    else:
        write("no API keys; create one: everwork keys create --name ci --permission jobs\n")


@app.command()
def revoke(
    id: Annotated[str, typer.Argument(help="Id of the key, as everwork keys list shows it.", show_default=False)],
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """Revoke an API key.

    Servers refuse it within a second.

    Example:
        everwork keys revoke 4f6a1c02b9d3
    """
    key = use_admin(engine, lambda admin: admin.revoke_key(id))
    if as_json:
        write_json(key_report(key, host_clock_ms()))
    else:
        write(f"revoked API key {key.id} ({one_line(key.name)})\n")


def _facts(key: ApiKey) -> str:
    allowed = " ".join(permission.value for permission in key.permissions)
    until = "" if key.expires_at_ms is None else f"; expires in {span(key.expires_at_ms - host_clock_ms() + 999)}"
    return f"{one_line(key.name)}: {allowed}; {_tenants(key)}{until}"


def _tenants(key: ApiKey) -> str:
    return f"tenants {one_line(', '.join(key.tenants))}" if key.tenants else "all tenants"


def _row(key: ApiKey) -> tuple[str, ...]:
    now = host_clock_ms()
    return (
        key.id,
        one_line(key.name),
        key.state(now).value,
        " ".join(permission.value for permission in key.permissions),
        one_line(", ".join(key.tenants)) or "all",
        span(now - key.created_at_ms),
        _note(key, now),
    )


def _note(key: ApiKey, now: int) -> str:
    notes = []
    if key.revoked_at_ms is not None:
        notes.append(f"revoked {span(now - key.revoked_at_ms)} ago")
    elif key.expires_at_ms is not None:
        away = span(key.expires_at_ms - now)
        notes.append(f"expires in {away}" if key.state(now) is KeyState.LIVE else f"expired {away} ago")
    if key.rate_per_second is not None:
        notes.append(f"{key.rate_per_second:g} requests/s")
    return "; ".join(notes)
