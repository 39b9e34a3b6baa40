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
from everwork.server.settings import Settings, load, suspicious_variables

app = typer.Typer(add_completion=False, rich_markup_mode="rich")

Engine = Annotated[str | None, typer.Option("--engine", "-e", metavar="URL", help="The engine.", show_default=False)]
Host = Annotated[str | None, typer.Option(metavar="ADDRESS", help="Where to listen.", show_default="127.0.0.1")]
GrpcPort = Annotated[str | None, typer.Option(metavar="PORT", help="0 takes a free one.", show_default="27500")]
HttpPort = Annotated[str | None, typer.Option(metavar="PORT", help="0 takes a free one.", show_default="27555")]
Certificate = Annotated[str | None, typer.Option("--tls-certificate", metavar="PATH", help="TLS on both ports (PEM).")]
CertificateKey = Annotated[str | None, typer.Option("--tls-key", metavar="PATH", help="The certificate's key (PEM).")]
ClientCa = Annotated[
    str | None, typer.Option("--tls-client-ca", metavar="PATH", help="Callers must show a certificate of these (PEM).")
]
OfflinePath = Annotated[
    str | None,
    typer.Option("--offline", metavar="PATH", help="Keep new jobs in this file while the engine is unavailable."),
]
NoAuth = Annotated[bool, typer.Option("--no-auth", help="Require no API key; on a loopback address only.")]


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
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Run the server: gRPC jobs API, Zeebe gateway and worker stream on one port, REST on another.

    Settings come from flags, then EVERWORK_... variables, then everwork.toml. At least one API key must exist:
    make one by everwork keys create, or set EVERWORK_API_KEY.

    Examples:
        everwork serve --engine postgresql://app@db.example.org/jobs --host 0.0.0.0
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
    }
    run_server(load_settings(config, flags), as_json=as_json)


def load_settings(config: str | None, flags: Mapping[str, object]) -> Settings:
    """The settings of a server; variables that resemble one, but are ignored, are reported."""
    settings = load(config, os.environ, flags)
    for warning in suspicious_variables(os.environ):
        write_stderr(f"warning: {warning}")
    return settings


def run_server(
    settings: Settings, *, as_json: bool = False, makes_key: bool = False, seconds: float | None = None
) -> None:
    """Run a server until it is stopped, or for some time."""
    logs.configure(settings.log_format, settings.log_level)
    until_stopped = serving().serve(settings, as_json=as_json, makes_key=makes_key, seconds=seconds)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(until_stopped)


def serving() -> Any:
    """The module that runs a server, loaded on demand: other commands start without it."""
    # Errors are reported by Everwork; gRPC would add its own lines, and reads this when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    return importlib.import_module("everwork.cli.serving")
