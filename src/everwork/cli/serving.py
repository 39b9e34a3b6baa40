"""A server in this process: opened, announced, and stopped by a signal."""

from __future__ import annotations

import asyncio
import gc
import os
import shlex
import sys
from contextlib import suppress
from typing import Any, Final, NamedTuple

from everwork.aio.clocks import host_clock_ms
from everwork.cli.commands.login import dashboard_url, new_link, site_url
from everwork.cli.output import command_name, write, write_json
from everwork.cli.session import local_caller
from everwork.codec.urls import shown_url
from everwork.exceptions import BadConfiguration, EngineUnavailable, EverworkError
from everwork.runtime.shutdown import on_stop_signals
from everwork.server.server import Ports, Server
from everwork.server.settings import Settings, engine_url
from everwork.service.access.api_key import KeyState
from everwork.service.admin import Admin

SURVIVED: Final = {"power-loss": "power loss", "process-crash": "process crash, not a power loss"}
"""What accepted jobs survive, by durability."""

FULL_COLLECTION_EVERY: Final = 100
"""How many collections of the middle generation precede a full one, at least; Python's default is 10.

Some versions (3.14.0 to 3.14.4) collect incrementally and ignore it.
"""
SWITCH_SECONDS: Final = 0.005, 0.0005
"""How long a busy event loop may keep the interpreter lock (GIL) from SQLite's threads: while one tenant is active, and
while several are. A query needs the lock several times: with 5 ms, one busy tenant makes every query of the others take
tens of milliseconds. But more switches cost more, about 15 us a query on an idle server.
"""


class RunningServer(NamedTuple):
    """A listening server, and its first API key if that was just created.

    `durability` is None in offline mode while the engine is unavailable. `login` is the token of a link that opens the
    dashboard once; None if this terminal must not show such a link.
    """

    server: Server
    ports: Ports
    durability: str | None
    new_key: str | None
    login: str | None

    @property
    def dashboard(self) -> str:
        """The URL of the dashboard, without secrets."""
        return dashboard_url(site_url(self.server.settings, self.ports.http), None)

    @property
    def login_url(self) -> str | None:
        """The URL with which the user who started the server can log in without an API key."""
        site = site_url(self.server.settings, self.ports.http)
        return None if self.login is None else dashboard_url(site, self.login)


async def serve(settings: Settings, *, as_json: bool, makes_key: bool, seconds: float | None) -> None:
    """Run a server until SIGINT or SIGTERM; a second signal does not wait for callers."""
    stop = stop_event()
    running = await open_server(settings, makes_key=makes_key)
    running.server.service.budgets.requests.on_contention = switch_threads
    keep_loaded_objects()
    announce(running, as_json=as_json)
    if seconds is not None:
        asyncio.get_running_loop().call_later(seconds, stop.set)
    await stop.wait()
    if not as_json:
        write("\nStopping after open requests have finished; press Ctrl-C again to stop immediately\n")
    stop.clear()
    closing = asyncio.ensure_future(running.server.stop())
    again = asyncio.ensure_future(stop.wait())
    await asyncio.wait([closing, again], return_when=asyncio.FIRST_COMPLETED)
    again.cancel()
    if not closing.done():
        await running.server.stop(0.0)
    await closing


def keep_loaded_objects() -> None:
    """Exclude everything loaded so far from garbage collection, and make full collections rare: they pause all callers.

    The modules have about 70,000 objects, so such a pause takes tens of milliseconds; with 2,000 waiting polls, 100 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], FULL_COLLECTION_EVERY)


def stop_event() -> asyncio.Event:
    """An event that SIGINT and SIGTERM set."""
    stop = asyncio.Event()
    on_stop_signals(stop.set)
    return stop


def switch_threads(is_contended: bool) -> None:
    """Let threads take turns more often while several tenants are active."""
    sys.setswitchinterval(SWITCH_SECONDS[is_contended])


async def open_server(settings: Settings, *, makes_key: bool) -> RunningServer:
    """Open a server; without a valid API key, create one or raise an error that says how."""
    server = Server(settings)
    try:
        await server.open()
        if not server.service.is_connected:
            return await _without_store(server)
        try:
            new_key = await _first_key(server, makes_key=makes_key)
            health = await server.health()
        except EngineUnavailable:
            if settings.spool is None:
                raise
            return await _without_store(server)
        ports, login = await server.listen(), await _login_token(server, is_requested=makes_key)
        return RunningServer(server, ports, health.durability.value, new_key, login)
    except BaseException:
        await server.stop(0.0)
        raise


async def _without_store(server: Server) -> RunningServer:
    """A server in offline mode whose store is unavailable."""
    return RunningServer(server, await server.listen(), None, None, None)


async def _first_key(server: Server, *, makes_key: bool) -> str | None:
    if not server.settings.has_auth or server.settings.api_key is not None:
        return None
    if any(key.state(host_clock_ms()) is KeyState.LIVE for key in await server.keys.list()):
        return None
    if not makes_key:
        raise BadConfiguration(
            "the server needs an API key: run everwork keys create --name first --permission '*', "
            "or set EVERWORK_API_KEY"
        )
    admin = Admin(server.service, server.keys, local_caller())
    return (await admin.create_key("first", ["*"])).text


async def _login_token(server: Server, *, is_requested: bool) -> str | None:
    """A login token for the user who starts a server on a loopback address.

    `serve` creates one only on a terminal, because others may read its output in a file or a journal. `up` needs no
    terminal, because it prints a key, too.
    """
    if not server.settings.has_auth or not server.settings.is_loopback:
        return None
    if not is_requested and not sys.stdout.isatty():
        return None
    return await new_link(server.service)


def announce(running: RunningServer, *, as_json: bool) -> None:
    """Print where the server listens: a JSON line for programs, a few lines for people."""
    if as_json:
        write_json(facts(running))
    else:
        write("".join(f"{line}\n" for line in lines(running)))


def lines(running: RunningServer) -> list[str]:
    """The announcement of a server for people."""
    settings, ports = running.server.settings, running.ports
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme, tls = ("https", " (TLS)") if settings.tls_certificate else ("http", "")
    rows = {
        "Dashboard": running.login_url or running.dashboard,
        "REST API": f"{scheme}://{host}:{ports.http}/docs",
        "gRPC": f"{host}:{ports.grpc}{tls}",
        "Store": f"{shown_url(settings.engine)} ({_durability_text(running)})",
    }
    if running.new_key is not None:
        rows["API key"] = running.new_key
    if not settings.has_auth:
        rows["API key"] = "not required: every program on this host can call the server"
    facts = [f"  {name:<9}  {value}" for name, value in rows.items()]
    return ["Everwork is running; press Ctrl-C to stop", "", *facts, *_hints(running)]


def _hints(running: RunningServer) -> list[str]:
    """How to get another link or key, because each is shown only once."""
    settings, hints = running.server.settings, []
    if running.login_url is not None:
        hints.append(f"The dashboard link works once. For another: {_command(settings, 'login')}")
    if running.new_key is not None:
        words = "keys create --name ci --permission jobs"
        hints.append(f"The API key is shown only now. For another: {_command(settings, words)}")
    return ["", *hints] if hints else []


def _command(settings: Settings, words: str) -> str:
    """A command that can be copied as shown and uses the same engine; passwords are left out."""
    with suppress(EverworkError):
        if engine_url(None, os.environ, None) == settings.engine:
            return f"{command_name()} {words}"
    url = shown_url(settings.engine)
    return f"{command_name()} {words} --engine {shlex.quote(url) if url == settings.engine else '...'}"


def _durability_text(running: RunningServer) -> str:
    if running.durability is None:
        return f"unavailable: new jobs are kept in {running.server.settings.offline}"
    return (
        f"accepted jobs survive a {SURVIVED[running.durability]}" if running.durability in SURVIVED else "not durable"
    )


def facts(running: RunningServer) -> dict[str, Any]:
    """The announcement of a server for programs."""
    settings, ports = running.server.settings, running.ports
    return {
        "host": settings.host,
        "grpc_port": ports.grpc,
        "http_port": ports.http,
        "engine": shown_url(settings.engine),
        "durability": running.durability,
        "api_key": running.new_key,
        "dashboard_url": running.dashboard,
        "login_url": running.login_url,
    }
