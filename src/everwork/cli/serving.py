"""A server in this process: opened, announced, and stopped by a signal."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any, NamedTuple

from everwork.cli.commands.login import dashboard_url, new_link, site_url
from everwork.cli.output import write, write_json
from everwork.cli.session import ORIGIN, local_principal
from everwork.codec.urls import shown_url
from everwork.exceptions import BadConfiguration
from everwork.server.server import Ports, Server
from everwork.server.settings import Settings
from everwork.service.access.api_key import KeyState
from everwork.service.access.keys import host_clock
from everwork.service.admin import Admin


class RunningServer(NamedTuple):
    """A server that listens; the text of its first key, if it was just made.

    `login` is the token of a link that opens the dashboard once; None if that is not for this terminal to have.
    """

    server: Server
    ports: Ports
    durability: str
    new_key: str | None
    login: str | None

    @property
    def dashboard(self) -> str:
        """Where the dashboard is; this says nothing secret."""
        return dashboard_url(site_url(self.server.settings, self.ports.http), None)

    @property
    def login_url(self) -> str | None:
        """Where whoever started the server gets in without a key."""
        site = site_url(self.server.settings, self.ports.http)
        return None if self.login is None else dashboard_url(site, self.login)


async def serve(settings: Settings, *, as_json: bool, makes_key: bool, seconds: float | None) -> None:
    """Run a server until SIGINT or SIGTERM; a second signal does not wait for callers."""
    stop = stop_event()
    opened = await open_server(settings, makes_key=makes_key)
    announce(opened, as_json=as_json)
    if seconds is not None:
        asyncio.get_running_loop().call_later(seconds, stop.set)
    await stop.wait()
    if not as_json:
        write("\nstopping: long polls end, what is in flight is finished (once more: at once)\n")
    stop.clear()
    closing = asyncio.ensure_future(opened.server.stop())
    again = asyncio.ensure_future(stop.wait())
    await asyncio.wait([closing, again], return_when=asyncio.FIRST_COMPLETED)
    again.cancel()
    if not closing.done():
        await opened.server.stop(0.0)
    await closing


def stop_event() -> asyncio.Event:
    """Set by SIGINT and SIGTERM."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop


async def open_server(settings: Settings, *, makes_key: bool) -> RunningServer:
    """Open a server; without any key that lets anybody in, make one, or say how."""
    server = Server(settings)
    try:
        await server.open()
        new_key = await _first_key(server, makes_key=makes_key)
        health = await server.health()
        ports, login = await server.listen(), await _login_token(server, is_asked_for=makes_key)
        return RunningServer(server, ports, health.durability.value, new_key, login)
    except BaseException:
        await server.stop(0.0)
        raise


async def _first_key(server: Server, *, makes_key: bool) -> str | None:
    if not server.settings.has_auth or server.settings.api_key is not None:
        return None
    if any(key.state(host_clock()) is KeyState.LIVE for key in await server.keys.list()):
        return None
    if not makes_key:
        raise BadConfiguration(
            "nobody could call this server, for there is no API key: "
            "run everwork keys create --name first --permission '*', or set EVERWORK_API_KEY"
        )
    administration = Admin(server.service, server.keys, server.audit, local_principal(), ORIGIN)
    return (await administration.create_key("first", ["*"])).text


async def _login_token(server: Server, *, is_asked_for: bool) -> str | None:
    """On a loopback address, whoever starts the server is the one who will look at it.

    What `serve` writes to a file or a journal is read by others, and later: it needs a terminal. `up` tells a key, too.
    """
    if not server.settings.has_auth or not server.settings.is_loopback:
        return None
    if not is_asked_for and not sys.stdout.isatty():
        return None
    return await new_link(server.service)


def announce(opened: RunningServer, *, as_json: bool) -> None:
    """Say where the server listens: a JSON line for programs, a few lines for people."""
    if as_json:
        write_json(facts(opened))
    else:
        write("".join(f"{line}\n" for line in lines(opened)))


def lines(opened: RunningServer) -> list[str]:
    """What people are told of a server that has just begun."""
    settings, ports = opened.server.settings, opened.ports
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme, tls = ("https", " (TLS)") if settings.tls_certificate else ("http", "")
    told = [
        f"Everwork on {shown_url(settings.engine)} (an accepted job survives: {opened.durability})",
        f"  UI    {_way_in(opened)}",
        f"  gRPC  {host}:{ports.grpc}  jobs API, Zeebe gateway, worker stream{tls}",
        f"  REST  {scheme}://{host}:{ports.http}/docs",
    ]
    if opened.new_key is not None:
        told.append(f"  key   {opened.new_key}  (shown this once; more by everwork keys create)")
    if not settings.has_auth:
        told.append("  keys are not asked for: every program on this host may call")
    return told


def _way_in(opened: RunningServer) -> str:
    if opened.login_url is not None:
        return f"{opened.login_url}  (opens once; another by everwork login)"
    return opened.dashboard


def facts(opened: RunningServer) -> dict[str, Any]:
    """The same for programs."""
    settings, ports = opened.server.settings, opened.ports
    return {
        "host": settings.host,
        "grpc_port": ports.grpc,
        "http_port": ports.http,
        "engine": shown_url(settings.engine),
        "durability": opened.durability,
        "api_key": opened.new_key,
        "dashboard_url": opened.dashboard,
        "login_url": opened.login_url,
    }
