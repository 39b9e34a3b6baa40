"""everwork login: a link that opens the dashboard, once."""

from __future__ import annotations

import os
import socket
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer

from everwork.aio.clocks import host_clock_ms
from everwork.cli.options import AsJson, EngineUrl, config_path
from everwork.cli.output import write, write_json, write_stderr
from everwork.cli.session import ORIGIN, local_principal, resolved_url, use
from everwork.core.instants import utc_text
from everwork.core.limits import LOGIN_LINK_MS
from everwork.exceptions import BadConfiguration, InvalidInput
from everwork.server.settings import Settings, load
from everwork.service.service import JobService

CONNECT_SECONDS: Final = 1.0
LOCAL_ADDRESSES: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - not used to listen
"""The address at which this host reaches a server that listens on all addresses."""

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command()
def login(
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Server.", show_default="from the settings")
    ] = None,
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """Print a link that signs you in to the dashboard.

    The link works once, within an hour; the session has all permissions and lasts 12 hours. No API key is needed,
    because the command opens the store directly. The audit log records who created the link.

    Examples:
        everwork login
        everwork login --url https://jobs.example.org
    """
    settings = load(config_path(), os.environ, {"engine": engine})
    site = _site(settings) if url is None else _checked_site(url)
    token = use(resolved_url(engine), new_link) if settings.has_auth else None
    if url is None:
        _warn_unless_listening(site)
    if as_json:
        expires = None if token is None else utc_text(host_clock_ms() + LOGIN_LINK_MS)
        write_json({"url": dashboard_url(site, token), "expires_at": expires})
    else:
        write(f"{dashboard_url(site, token)}\n")


def site_url(settings: Settings, port: int) -> str:
    """The URL of a server for browsers on this host."""
    name = LOCAL_ADDRESSES.get(settings.host, settings.host)
    host = f"[{name}]" if ":" in name else name
    return f"{'https' if settings.tls_certificate else 'http'}://{host}:{port}"


def dashboard_url(site: str, token: str | None) -> str:
    """The URL of the dashboard; with a token, a link that opens it once."""
    return f"{site}/ui" if token is None else f"{site}/ui/login?token={token}"


async def new_link(service: JobService) -> str:
    """The token of a link that can be used once; the audit log records its creation."""
    who = local_principal()
    token = await service.sessions.new_link(who.name)
    await service.audit.record(who, "ui.link", "dashboard", ORIGIN)
    return token


def _site(settings: Settings) -> str:
    if settings.http_port == 0:
        raise BadConfiguration("http_port: is 0, so each server picks its own; name the server with --url")
    return site_url(settings, settings.http_port)


def _checked_site(url: str) -> str:
    found = urlsplit(url)
    if found.scheme not in ("http", "https") or not found.hostname:
        raise InvalidInput("url", f"must start with http:// or https:// and name a host, not '{url[:80]}'")
    return f"{found.scheme}://{found.netloc}"


def _warn_unless_listening(site: str) -> None:
    """Warn if no server is listening; the link will work once one is."""
    address = urlsplit(site)
    try:
        socket.create_connection((address.hostname, address.port), CONNECT_SECONDS).close()
    except OSError:
        write_stderr(f"no server is listening at {site}; if it runs elsewhere, use --url")
