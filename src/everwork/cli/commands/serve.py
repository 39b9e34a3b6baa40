"""everwork serve: the server, for production."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from everwork import logs
from everwork.aio.loops import new_loop
from everwork.cli.options import AsJson, ConfigFile
from everwork.cli.output import write_stderr
from everwork.server.settings import Settings, load
from everwork.server.settings_warnings import clear_text_warning, file_warnings, suspicious_variables

app = typer.Typer(add_completion=False, rich_markup_mode="rich")

Engine = Annotated[
    str | None,
    typer.Option(
        "--engine",
        "-e",
        metavar="URL",
        help="Store: sqlite:///PATH, postgresql://... or redis://...",
        show_default="sqlite:///everwork.db",
    ),
]
Host = Annotated[
    str | None,
    typer.Option(rich_help_panel="Network", metavar="ADDRESS", help="Address to listen on.", show_default="127.0.0.1"),
]
GrpcPort = Annotated[
    str | None,
    typer.Option(
        rich_help_panel="Network", metavar="PORT", help="Port for gRPC; 0 picks a free one.", show_default="27500"
    ),
]
HttpPort = Annotated[
    str | None,
    typer.Option(
        rich_help_panel="Network",
        metavar="PORT",
        help="Port for REST and the dashboard; 0 picks a free one.",
        show_default="27555",
    ),
]
Certificate = Annotated[
    str | None,
    typer.Option(
        "--tls-certificate", rich_help_panel="TLS", metavar="PATH", help="Certificate for TLS on both ports (PEM)."
    ),
]
CertificateKey = Annotated[
    str | None,
    typer.Option("--tls-key", rich_help_panel="TLS", metavar="PATH", help="Private key of the certificate (PEM)."),
]
ClientCa = Annotated[
    str | None,
    typer.Option(
        "--tls-client-ca",
        rich_help_panel="TLS",
        metavar="PATH",
        help="Require client certificates signed by these CAs (PEM).",
    ),
]
OfflinePath = Annotated[
    str | None,
    typer.Option("--offline", metavar="PATH", help="Spool file for new jobs while the store is unavailable."),
]
NoAuth = Annotated[
    bool, typer.Option("--no-auth", help="Accept requests without an API key; only on a loopback address.")
]

Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure", rich_help_panel="TLS", help="Accept API keys from other hosts over unencrypted connections."
    ),
]


@app.command()
def serve(  # noqa: PLR0913 - one per flag
    *,
    engine: Engine = None,
    host: Host = None,
    grpc_port: GrpcPort = None,
    http_port: HttpPort = None,
    tls_certificate: Certificate = None,
    tls_key: CertificateKey = None,
    tls_client_ca: ClientCa = None,
    offline: OfflinePath = None,
    no_auth: NoAuth = False,
    insecure: Insecure = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Run the server for production.

    One port serves gRPC (jobs API, worker stream, Zeebe gateway), the other REST, the dashboard and metrics.

    Options override EVERWORK_... variables, which override the settings file. The server needs an API key: create one
    with everwork keys create, or set EVERWORK_API_KEY.

    Examples:
        everwork serve --engine postgresql://app@db.example.org/jobs
        everwork serve --config /etc/everwork.toml
    """
    flags = {
        "engine": engine,
        "host": host,
        "grpc_port": grpc_port,
        "http_port": http_port,
        "tls_certificate": tls_certificate,
        "tls_key": tls_key,
        "tls_client_ca": tls_client_ca,
        "offline": offline,
        "auth": "off" if no_auth else None,
        "insecure": "on" if insecure else None,
    }
    run_server(load_settings(config, flags), as_json=as_json)


def load_settings(config: str | None, flags: Mapping[str, object]) -> Settings:
    """The settings of a server; warns about dangerous ones, and about environment variables that are ignored."""
    settings = load(config, os.environ, flags)
    exposed = clear_text_warning(settings)
    for warning in [*suspicious_variables(os.environ), *file_warnings(config), *([exposed] if exposed else [])]:
        write_stderr(f"warning: {warning}")
    return settings


def run_server(
    settings: Settings, *, as_json: bool = False, makes_key: bool = False, seconds: float | None = None
) -> None:
    """Run a server until it is stopped, or for a limited time."""
    logs.configure(settings.log_format, settings.log_level)
    until_stopped = serving().serve(settings, as_json=as_json, makes_key=makes_key, seconds=seconds)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(until_stopped)


def serving() -> Any:
    """The module that runs a server, loaded on demand: other commands start without it."""
    # Everwork reports errors; gRPC would add lines of its own. It reads this variable when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    return importlib.import_module("everwork.cli.serving")
