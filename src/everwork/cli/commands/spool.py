"""everwork spool: list, deliver and delete the entries of a spool."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final, NamedTuple

import typer

from everwork.cli.options import AsJson, EngineUrl, number, require_terminal
from everwork.cli.output import Column, one_line, span, table, write, write_json, write_rich, write_stderr
from everwork.cli.progress import Step, shown_progress
from everwork.cli.session import resolved_url, run, use
from everwork.client.address import KEY_VARIABLE, Address, Tls, is_remote, server_address
from everwork.codec.urls import shown_url, store_name
from everwork.core import checks
from everwork.exceptions import BadConfiguration, EngineBusy, EngineUnavailable, InvalidInput, Unauthenticated
from everwork.spool import contents
from everwork.spool.courier import Courier, SpoolThread, Target, Turn
from everwork.spool.entries import Moment
from everwork.spool.file import SpoolCounts, SpoolFile
from everwork.spool.settings import PATIENCE_SECONDS_DEFAULT, Offline, Spool

LIMIT_DEFAULT: Final = 50
LIMIT_MAX: Final = 10_000
TURN_SECONDS: Final = 30.0
"""How long a command waits for another process that delivers from the spool."""
CHECK_SECONDS: Final = 0.1
REASON_CHARS_MAX: Final = 200
COLUMNS: Final = (
    Column("ID", whole=True),
    Column("KIND", whole=True),
    Column("TYPE", width_min=20),
    Column("STATE", whole=True),
    Column("AGE", whole=True, right=True),
    Column("REASON", one_line=True, width_min=20),
)

SpoolPath = Annotated[str, typer.Argument(metavar="PATH", help="Spool file.", show_default=False)]

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.callback(invoke_without_command=True)
def spool(ctx: typer.Context) -> None:
    """List, deliver and delete the entries of a spool.

    A spool is a file in which offline mode keeps jobs and outcomes while the store is unavailable.

    Example:
        everwork spool list spool.db
    """
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@app.command("list")
def list_entries(
    path: SpoolPath,
    *,
    limit: Annotated[str, typer.Option(metavar="NUMBER", help=f"Number of entries to show, 1 to {LIMIT_MAX:,}.")] = str(
        LIMIT_DEFAULT
    ),
    as_json: AsJson = False,
) -> None:
    """List the entries of a spool.

    Outcomes come first, then jobs in order of delivery. Entries that the store refused are set aside, with the reason.

    Examples:
        everwork spool list spool.db
        everwork spool list /var/lib/shop/spool.db --limit 1000 --json
    """
    most = checks.whole_number("limit", number(limit), 1, LIMIT_MAX)
    with _opened(path) as file:
        found, counts = contents.entries(file, most), file.counts()
    if as_json:
        write_json(_summary(file, counts) | {"entries": [_entry_report(one) for one in found]})
        return
    write("".join(f"{name:<9} {value}\n" for name, value in _facts(file, counts)))
    if found:
        write("\n")
        write_rich(table(COLUMNS, [_row(one) for one in found]))
    if (left := counts.jobs + counts.outcomes + counts.aside - len(found)) > 0:
        write_stderr(f"{left:,} more entries; raise --limit to see them")


@app.command()
def flush(
    path: SpoolPath,
    *,
    engine: EngineUrl = None,
    retry_aside: Annotated[bool, typer.Option("--retry-aside", help="Also retry entries that were set aside.")] = False,
    rebind: Annotated[
        bool, typer.Option("--rebind", help="Deliver to this store although the spool belongs to another.")
    ] = False,
    tls_ca: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="TLS",
            metavar="PATH",
            help="CA certificates to trust, for grpcs:// (PEM).",
            show_default="the system's",
        ),
    ] = None,
    tls_certificate: Annotated[
        str | None, typer.Option(rich_help_panel="TLS", metavar="PATH", help="Client certificate (PEM).")
    ] = None,
    tls_key: Annotated[
        str | None,
        typer.Option(rich_help_panel="TLS", metavar="PATH", help="Private key of the client certificate (PEM)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Deliver the entries of a spool now.

    The exit code is 1 if entries are left, waiting or set aside.

    To deliver to a server, use --engine grpc://HOST:PORT and set its API key in EVERWORK_API_KEY.

    Use --rebind only for the same store at another address, or a copy of it: outcomes are reported for the same job
    keys, and jobs whose delivery was not confirmed can be created twice.

    Examples:
        everwork spool flush spool.db --engine postgresql://ann@db.example.org/jobs
        everwork spool flush spool.db --retry-aside
        everwork spool flush spool.db --engine grpc://jobs.example.org:27500
    """
    url, tls = resolved_url(engine), Tls(tls_ca or False, tls_certificate, tls_key)
    address = _server(url, tls)
    store = store_name(url) if address is None else address.store
    with _opened(path) as file:  # Report a mistake in the path or URL before opening the engine.
        _require_store(file, url, store, rebind=rebind)

    def deliver(target: Target) -> Awaitable[_Flushed]:
        return _flush(target, path, store, retry_aside=retry_aside, rebind=rebind)

    # Create the store if needed, as programs with this spool do, but not with --rebind: its URL could be mistyped.
    flushed = use(url, deliver, creates=not rebind) if address is None else run(_with_server(address, url, deliver))
    if flushed.error:
        write_stderr(flushed.error)
    if as_json:
        write_json(flushed.report)
    else:
        write(_flushed_text(flushed))
    if flushed.counts.jobs or flushed.counts.outcomes or flushed.counts.aside:
        raise typer.Exit(1)


@app.command()
def drop(
    path: SpoolPath,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="Entries to delete.", show_default=False)
    ] = None,
    *,
    aside: Annotated[bool, typer.Option("--aside", help="Delete every entry that is set aside.")] = False,
    all: Annotated[bool, typer.Option("--all", help="Delete every entry, including waiting ones.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete entries of a spool without delivering them.

    Examples:
        everwork spool drop spool.db 5f1c0a9be2d47310-17
        everwork spool drop spool.db --aside --yes
    """
    if bool(ids) + aside + all != 1:
        raise InvalidInput("id", "pass entry ids, --aside or --all")
    with _opened(path) as file:
        counts = file.counts()
        chosen = len(set(ids)) if ids else counts.aside if aside else counts.jobs + counts.outcomes + counts.aside
        if chosen:
            _confirm(chosen, yes=yes)
        # Wait while another process is sending these entries; otherwise, their jobs would be created anyway.
        with _turn(file):
            found = contents.drop(file, ids) if ids else []
            dropped = len(found) if ids else contents.drop_all(file, waiting=all)
    missing = [id for id in dict.fromkeys(ids or ()) if id not in found]
    for id in missing:
        write_stderr(f"no entry '{id}' in the spool")
    if as_json:
        write_json({"path": file.spool.path, "dropped": dropped, "not_found": missing})
    else:
        write(f"{_number(dropped, 'entry', 'entries')} deleted\n")
    if missing:
        raise typer.Exit(1)


# The file -----------------------------------------------------------------------------------------


@contextmanager
def _opened(path: str) -> Iterator[SpoolFile]:
    file = SpoolFile(Spool(path), None)
    try:
        yield file
    finally:
        file.close()


@contextmanager
def _turn(file: SpoolFile) -> Iterator[None]:
    turn, until = Turn(file.spool.path), time.monotonic() + TURN_SECONDS
    while not turn.take():
        if time.monotonic() > until:
            raise EngineBusy(f"spool: {file.spool.path} is being delivered by another process; try again later")
        time.sleep(CHECK_SECONDS)
    try:
        yield
    finally:
        turn.give_back()


def _confirm(entries: int, *, yes: bool) -> None:
    if yes:
        return
    require_terminal()
    typer.confirm(f"Delete {_number(entries, 'entry', 'entries')} permanently?", abort=True, err=True)


# Flush --------------------------------------------------------------------------------------------


class _Flushed(NamedTuple):
    """The delivered and the remaining entries."""

    file: SpoolFile
    delivered: int
    reported: int
    counts: SpoolCounts
    error: str | None

    @property
    def report(self) -> dict[str, Any]:
        done = {"delivered": self.delivered, "reported": self.reported, "error": self.error}
        return done | _summary(self.file, self.counts)


def _server(url: str, tls: Tls) -> Address | None:
    """The address of the server that a URL names; None if it names a store."""
    if is_remote(url):
        return server_address(url, None, tls)
    if tls != Tls():
        raise InvalidInput("tls_ca, tls_certificate, tls_key", "are for servers: grpcs://host:port")
    return None


async def _with_server(address: Address, url: str, deliver: Callable[[Target], Awaitable[_Flushed]]) -> _Flushed:
    from everwork.client.remote import RemoteTransport  # noqa: PLC0415 - only what is used is loaded

    transport = RemoteTransport(address)
    await transport.open()
    try:
        target = transport.target(PATIENCE_SECONDS_DEFAULT)
        try:
            await asyncio.wait_for(target.connect(), PATIENCE_SECONDS_DEFAULT)
        except (EngineUnavailable, TimeoutError):
            tls = ", with TLS and a certificate that is trusted here" if address.is_secure else ""
            raise EngineUnavailable(f"cannot reach the server at {shown_url(url)}; is it running{tls}?") from None
        return await deliver(target)
    finally:
        await transport.close()


async def _flush(target: Target, path: str, store: str, *, retry_aside: bool, rebind: bool) -> _Flushed:
    with _opened(path) as file:
        if rebind:
            _rebind(file, store)
        if retry_aside:
            contents.retry_aside(file)
        before, offline = file.counts(), Offline(file.spool, file.store)
        thread = SpoolThread(offline)
        await thread.open()
        courier, error = Courier(offline, thread, target), None
        try:
            with shown_progress() as show:
                await _deliver(courier, file, lambda: show(Step(courier.delivered, before.jobs)))
        except EngineUnavailable as away:
            hint = f"; it is taken from {KEY_VARIABLE}" if isinstance(away.__cause__, Unauthenticated) else ""
            error = f"{away}{hint}"
        finally:
            await thread.close()
        return _Flushed(file, courier.delivered, courier.reported, file.counts(), error)


def _require_store(file: SpoolFile, url: str, store: str, *, rebind: bool) -> None:
    if not rebind and store != file.store:
        raise BadConfiguration(
            f"spool: {file.spool.path} belongs to {file.store}, not to {shown_url(url)}; pass its engine with"
            " --engine, or deliver to this one with --rebind"
        )


def _rebind(file: SpoolFile, store: str) -> None:
    with _turn(file):
        in_doubt = sum(entry.is_in_doubt for entry in contents.entries(file, LIMIT_MAX))
        contents.move_to(file, store)
    if in_doubt:
        write_stderr(f"{_number(in_doubt, 'job', 'jobs')} in doubt may be created twice")


async def _deliver(courier: Courier, file: SpoolFile, show: Any) -> None:
    """Deliver all waiting entries, even if another process is delivering, too."""
    until = time.monotonic() + TURN_SECONDS
    while file.has_waiting():
        delivery = asyncio.ensure_future(courier.deliver())
        try:
            while not delivery.done():
                await asyncio.wait([delivery], timeout=CHECK_SECONDS)
                show()
        finally:
            delivery.cancel()
            await asyncio.wait([delivery])
        if not delivery.result():
            if time.monotonic() > until:
                raise EngineUnavailable("another process is delivering this spool; try again later")
            await asyncio.sleep(CHECK_SECONDS)


# Output -------------------------------------------------------------------------------------------


def _summary(file: SpoolFile, counts: SpoolCounts) -> dict[str, Any]:
    return {
        "path": file.spool.path,
        "store": file.store,
        "jobs": counts.jobs,
        "outcomes": counts.outcomes,
        "aside": counts.aside,
        "bytes": counts.bytes,
        "max_bytes": file.spool.max_bytes,
        "oldest_ms": counts.oldest_ms,
        "max_age": file.spool.max_age,
    }


def _facts(file: SpoolFile, counts: SpoolCounts) -> Iterator[tuple[str, str]]:
    yield "spool", one_line(file.spool.path)
    yield "engine", one_line(file.store)
    yield "size", f"{counts.bytes:,} of {file.spool.max_bytes:,} bytes"
    oldest = "none" if counts.oldest_ms is None else span(counts.oldest_ms)
    yield "oldest", f"{oldest}; set aside after {span(int(file.spool.max_age * 1000))}"
    yield "waiting", f"{_number(counts.jobs, 'job', 'jobs')}, {_number(counts.outcomes, 'outcome', 'outcomes')}"
    yield "set aside", _number(counts.aside, "entry", "entries")


def _state(entry: contents.Entry) -> str:
    return "aside" if entry.is_aside else "in doubt" if entry.is_in_doubt else "waiting"


def _row(entry: contents.Entry) -> Sequence[str]:
    kind, age = "outcome" if entry.is_outcome else "job", span(entry.since.elapsed_ms(Moment.now()))
    reason = one_line(entry.reason or "")[:REASON_CHARS_MAX]
    state = "set aside" if entry.is_aside else _state(entry)
    return entry.id, kind, one_line(entry.what), state, age, reason


def _entry_report(entry: contents.Entry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "kind": "outcome" if entry.is_outcome else "job",
        "type": entry.what,
        "state": _state(entry),
        "age_ms": entry.since.elapsed_ms(Moment.now()),
        "reason": entry.reason,
    }


def _flushed_text(flushed: _Flushed) -> str:
    counts = flushed.counts
    parts = [
        f"{_number(flushed.delivered, 'job', 'jobs')} and {_number(flushed.reported, 'outcome', 'outcomes')} delivered"
    ]
    if counts.jobs or counts.outcomes:
        parts.append(
            f"{_number(counts.jobs, 'job', 'jobs')} and {_number(counts.outcomes, 'outcome', 'outcomes')} left"
        )
    if counts.aside:
        parts.append(f"{_number(counts.aside, 'entry', 'entries')} set aside: see everwork spool list")
    return f"{'; '.join(parts)}\n"


def _number(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"
