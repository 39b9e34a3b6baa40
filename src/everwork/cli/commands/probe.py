"""everwork probe: checks whether a server, or a manager on this host, is ready; for containers and units."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

import typer

from everwork.cli.options import AsJson, EngineUrl, config_path, number
from everwork.cli.output import write, write_json, write_stderr
from everwork.core import checks
from everwork.exceptions import BadConfiguration, EverworkError, InvalidInput

if TYPE_CHECKING:
    import ssl

    from everwork.service.admin import Admin

NOT_READY: Final = 1
TIMEOUT_MAX: Final = 60.0
BODY_BYTES_MAX: Final = 65_536
PORTS: Final = {"http": 27555, "https": 27555, "grpc": 27500, "grpcs": 27500}
SERVING: Final = b"\x08\x01"
"""`status: SERVING` of grpc.health.v1.HealthCheckResponse."""
EXAMPLE: Final = "must look like http://host:27555, https://, grpc://host:27500 or grpcs://"

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


class Tls(NamedTuple):
    """Certificates for a probe over TLS. With `is_own`, the server runs on this host, and its certificate is verified
    only if `ca` is given.
    """

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    is_own: bool = False


class Probed(NamedTuple):
    """The target of a probe, and the reason why it is not ready; None if it is ready."""

    target: str
    problem: str | None


@app.command()
def probe(
    *,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Server: http://, https://, grpc:// or grpcs://HOST:PORT.",
            show_default="this host's, from the settings",
        ),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Check only that the server responds, even if it is not ready.")
    ] = False,
    manager: Annotated[
        str | None,
        typer.Option(
            metavar="UUID", help="Check a ProcessManager on this host instead of a server.", show_default=False
        ),
    ] = None,
    timeout: Annotated[str, typer.Option(metavar="SECONDS", help="Time to wait for a response, 0.1 to 60.")] = "5",
    tls_ca: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="TLS", metavar="PATH", help="CA certificates to trust (PEM).", show_default="the system's"
        ),
    ] = None,
    tls_certificate: Annotated[
        str | None, typer.Option(rich_help_panel="TLS", metavar="PATH", help="Client certificate (PEM).")
    ] = None,
    tls_key: Annotated[
        str | None,
        typer.Option(rich_help_panel="TLS", metavar="PATH", help="Private key of the client certificate (PEM)."),
    ] = None,
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """Check whether a server or a manager is ready.

    Prints one line; the exit code is 0 if ready, 1 if not. A server is ready when its store responds and maintenance
    runs; a manager, when it is registered on this host and all its workers have started. No API key is needed.

    Examples:
        everwork probe
        everwork probe --address grpc://jobs.example.org:27500 --timeout 2
        everwork probe --manager shop --engine redis://localhost:6379/0
    """
    seconds = checks.number("timeout", number(timeout), 0.1, TIMEOUT_MAX)
    tls = Tls(tls_ca, tls_certificate, tls_key)
    if manager is not None:
        if address is not None or live or tls != Tls():
            raise InvalidInput("manager", "cannot be combined with --address, --live or --tls-...")
        ask = _manager_probe(manager, engine)
    else:
        ask = _server_probe(address, tls, seconds, is_live=live)
    _report(_within(seconds, ask), "alive" if live else "ready", as_json=as_json)


def _report(probed: Probed, word: str, *, as_json: bool) -> None:
    if as_json:
        write_json({"target": probed.target, word: probed.problem is None, "problem": probed.problem})
    elif probed.problem is None:
        write(f"{word}: {probed.target}\n")
    else:
        write_stderr(f"not {word}: {probed.target}: {probed.problem}")
    if probed.problem is not None:
        _exit(NOT_READY)


def _exit(code: int) -> None:
    """Exit without waiting for threads, because one of them may still be stuck in the probe."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Ask(NamedTuple):
    """A probe and its target."""

    target: str
    put: Callable[[], str | None]


def _within(seconds: float, ask: Ask) -> Probed:
    """Probe in a thread, because resolving a name or connecting has no time limit of its own."""
    answer: Future[str | None] = Future()

    def put() -> None:
        try:
            answer.set_result(ask.put())
        except BaseException as error:  # noqa: BLE001 - raised again below
            answer.set_exception(error)

    threading.Thread(target=put, daemon=True).start()
    try:
        return Probed(ask.target, answer.result(seconds))
    except TimeoutError:
        return Probed(ask.target, f"no answer within {seconds:g} s")
    except (BadConfiguration, InvalidInput):
        raise
    except (EverworkError, OSError) as error:
        return Probed(ask.target, getattr(error, "strerror", None) or str(error) or type(error).__name__)


# A server ---------------------------------------------------------------------------------------------


def _server_probe(address: str | None, tls: Tls, seconds: float, *, is_live: bool) -> Ask:
    if address is None:
        address, tls = _own_address(), tls._replace(is_own=True)
    found = _parsed(address)
    target = f"{found.scheme}://{found.netloc}"
    if found.scheme.startswith("grpc"):
        return Ask(target, lambda: _ask_grpc(target, tls, seconds, is_live=is_live))
    return Ask(target, lambda: _ask_http(found, tls, seconds, is_live=is_live))


def _own_address() -> str:
    """The server that these settings describe."""
    from everwork.cli.commands.login import site_url  # noqa: PLC0415 - a named address needs no settings
    from everwork.server.settings import load  # noqa: PLC0415

    settings = load(config_path(), os.environ, {})
    if settings.http_port == 0:
        raise BadConfiguration("http_port: is 0, so the port is not known; pass --address")
    return site_url(settings, settings.http_port)


def _parsed(address: str) -> SplitResult:
    try:
        found = urlsplit(address if "://" in address else "")
        is_valid = bool(found.hostname) and found.port != 0 and not (found.username or found.query or found.fragment)
    except ValueError:
        found, is_valid = SplitResult("", "", "", "", ""), False
    if found.scheme not in PORTS or not is_valid or found.path not in ("", "/"):
        raise InvalidInput("address", f"{EXAMPLE}, not {checks.shown(address)}")
    host = f"[{found.hostname}]" if ":" in (found.hostname or "") else found.hostname
    return found._replace(netloc=f"{host}:{found.port or PORTS[found.scheme]}")


def _ask_http(found: SplitResult, tls: Tls, seconds: float, *, is_live: bool) -> str | None:
    import http.client  # noqa: PLC0415 - only what is used is loaded

    host, port = found.hostname or "", found.port
    connection = (
        http.client.HTTPSConnection(host, port, timeout=seconds, context=_context(tls))
        if found.scheme == "https"
        else http.client.HTTPConnection(host, port, timeout=seconds)
    )
    try:
        connection.request("GET", "/healthz" if is_live else "/readyz", headers={"Connection": "close"})
        response = connection.getresponse()
        return _http_problem(response.status, response.read(BODY_BYTES_MAX))
    except http.client.HTTPException as error:
        return f"not an Everwork server: {type(error).__name__}"
    finally:
        connection.close()


def _http_problem(status: int, body: bytes) -> str | None:
    import orjson  # noqa: PLC0415 - only what is used is loaded

    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        answer = None
    said = answer if isinstance(answer, dict) else {}
    if status == 200 and said.get("status") in ("ok", "ready"):
        return None
    return str(said.get("detail") or f"not an Everwork server: status {status}")


def _context(tls: Tls) -> ssl.SSLContext:
    import ssl  # noqa: PLC0415 - only what is used is loaded

    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.certificate or tls.key:
            context.load_cert_chain(tls.certificate or "", tls.key, password="")
    except (OSError, ValueError) as error:
        raise BadConfiguration(f"tls_ca, tls_certificate, tls_key: cannot be used: {error}") from None
    if tls.is_own and tls.ca is None:
        # The certificate is for the name that other hosts use. Nothing secret is sent.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _ask_grpc(target: str, tls: Tls, seconds: float, *, is_live: bool) -> str | None:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import grpc  # noqa: PLC0415 - only what is used is loaded

    from everwork.client import address  # noqa: PLC0415

    trust = address.Tls(tls.ca or target.startswith("grpcs"), tls.certificate, tls.key)
    server = address.server_address(target, None, trust)
    private, chain = server.identity or (None, None)
    channel = (
        grpc.secure_channel(server.target, grpc.ssl_channel_credentials(server.authorities, private, chain))
        if server.is_secure
        else grpc.insecure_channel(server.target)
    )
    with channel:
        try:
            check = channel.unary_unary("/grpc.health.v1.Health/Check", bytes, bytes)
            answer = check(b"", timeout=seconds)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    return None if is_live or answer == SERVING else "its health service is not SERVING"


# A manager --------------------------------------------------------------------------------------------


def _manager_probe(uuid: str, engine: str | None) -> Ask:
    import socket  # noqa: PLC0415 - only what is used is loaded

    from everwork.cli.session import resolved_url, use_admin  # noqa: PLC0415

    url, host = resolved_url(engine), socket.gethostname()
    return Ask(f"manager {uuid} on {host}", lambda: use_admin(url, lambda admin: _manager_problem(admin, uuid, host)))


async def _manager_problem(admin: Admin, uuid: str, host: str) -> str | None:
    managers = {one.name for one in await admin.managers() if (one.uuid, one.host) == (uuid, host)}
    if not managers:
        return "not running on this host"
    processes = [one.entry for one in await admin.processes() if one.entry.manager in managers]
    running = [one for one in processes if one.state == "running"]
    if not running:
        return "no process is running yet" if processes else "no processes"
    broken = [problem for one in running for problem in one.broken.values()]
    return f"a worker failed to start: {broken[0]}" if broken else None
