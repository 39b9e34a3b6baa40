"""everwork jobs create: one job, many identical ones, or jobs from a file."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import orjson
import typer

from everwork.cli.options import AsJson, EngineUrl, number, parse_pairs, parse_seconds, parse_time
from everwork.cli.output import write, write_json, write_stderr
from everwork.cli.session import use
from everwork.codec.job_reports import job_report
from everwork.codec.json import decode_typed_object
from everwork.codec.new_job import new_job
from everwork.core import checks
from everwork.core.job import NewJob
from everwork.core.leasing import Created
from everwork.core.limits import CREATE_BATCH_MAX, PAYLOAD_BYTES_MAX
from everwork.exceptions import EngineError, InvalidInput
from everwork.service.service import JobService

if TYPE_CHECKING:
    from rich.progress import Progress


COUNT_MAX = 1_000_000
BATCH_BYTES_MAX = 64 * 1024 * 1024
"""The maximum size of variables in one transaction, so that memory stays bounded whatever the file contains."""
PROGRESS_FROM = 5_000
INT_DIGITS_SAFE = 18


VariablesJson = Annotated[
    str | None, typer.Option(metavar="JSON", help="Variables as a JSON object; - reads it from standard input.")
]
VariablePairs = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="One variable; VALUE is JSON if it parses, otherwise text. Repeatable."),
]


class Bulk(NamedTuple):
    """The result of creating many jobs."""

    keys: list[int]
    deduplicated: int


def create(  # noqa: PLR0913 - the fields of a job
    *,
    type: Annotated[
        str | None, typer.Argument(help="Job type, such as email-send. Not needed with --file.", show_default=False)
    ] = None,
    variables: VariablesJson = None,
    var: VariablePairs = None,
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="Tenant that owns the job.")] = None,
    priority: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Scheduling",
            metavar="NUMBER",
            help="Priority, -512 to 511; higher runs first.",
            show_default="0",
        ),
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Scheduling", metavar="DURATION", help="Earliest start from now: seconds, or 30m, 12h, 7d."
        ),
    ] = None,
    run_at: Annotated[
        str | None,
        typer.Option(rich_help_panel="Scheduling", metavar="TIME", help="Earliest start as a time (RFC 3339)."),
    ] = None,
    max_attempts: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Retries and limits",
            metavar="NUMBER",
            help="Attempts before the job fails, 1 to 100.",
            show_default="the type's policy, or 5",
        ),
    ] = None,
    dedupe_key: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Retries and limits",
            metavar="TEXT",
            help="Creating a job with a key that exists returns the existing job.",
        ),
    ] = None,
    limit_key: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Retries and limits", metavar="TEXT", help="Key for the per-key limits of the type."
        ),
    ] = None,
    correlation_id: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Id to search for, such as an order number.")
    ] = None,
    expires_at: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Scheduling",
            metavar="TIME",
            help="Time to cancel the job if it has not started (RFC 3339).",
        ),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Retries and limits",
            metavar="DURATION",
            help="Timeout of an attempt: seconds, or 90s, 5m, 1h.",
            show_default="the worker's",
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TEXT", help="One header, returned unchanged with the job. Repeatable."),
    ] = None,
    count: Annotated[
        str,
        typer.Option(
            rich_help_panel="Bulk creation", metavar="NUMBER", help=f"Number of identical jobs, 1 to {COUNT_MAX:,}."
        ),
    ] = "1",
    file: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Bulk creation",
            metavar="PATH",
            help="Create jobs from a file with one JSON object per line; - is standard input.",
        ),
    ] = None,
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """Create one job or many.

    Each line of a --file is a JSON object with the fields of a job, such as type, variables and priority. All lines are
    validated first: if one is invalid, the error names it and no job is created.

    Examples:
        everwork jobs create email-send --var to=ann@example.org --delay 30m
        everwork jobs create resize --variables '{"width": 800}' --count 100
        everwork jobs create --file jobs.jsonl
    """
    fields = {
        "type": type,
        "tenant": tenant,
        "priority": number(priority),
        "delay": parse_seconds("delay", delay),
        "run_at": None if run_at is None else parse_time("run_at", run_at),
        "max_attempts": number(max_attempts),
        "dedupe_key": dedupe_key,
        "limit_key": limit_key,
        "correlation_id": correlation_id,
        "expires_at": None if expires_at is None else parse_time("expires_at", expires_at),
        "timeout": parse_seconds("timeout", timeout),
        "headers": parse_pairs("header", header) if header else None,
        "variables": parse_variables(variables, var),
    }
    given = {name: value for name, value in fields.items() if value is not None}
    copies = checks.whole_number("count", number(count), 1, COUNT_MAX)
    if file is not None:
        if given or copies > 1:
            raise InvalidInput(
                "file", f"cannot be combined with {', '.join(given) or 'count'}: the file sets the fields of each job"
            )
        with checked_jobs(file) as jobs:
            _show_many(use(engine, lambda service: _create_many(service, jobs, jobs.total), creates=True), as_json)
        return
    job = _one_job(given, copies)
    if copies > 1:
        _show_many(
            use(engine, lambda service: _create_many(service, (job for _ in range(copies)), copies), creates=True),
            as_json,
        )
    else:
        _show_one(*use(engine, lambda service: _create_one(service, job), creates=True), as_json)


def _one_job(given: dict[str, Any], copies: int) -> NewJob:
    if "type" not in given:
        raise InvalidInput("type", "is required: everwork jobs create TYPE, or --file PATH")
    if copies > 1 and "dedupe_key" in given:
        raise InvalidInput("count", "must be 1 with a dedupe_key, which allows one job only")
    return new_job(**({"variables": {}} | given))


def parse_variables(text: str | None, var: list[str] | None) -> dict[str, Any] | None:
    """The variables of a job from `--variables` or `--var`; None if neither is given."""
    if text is None:
        return {name: _variable(name, value) for name, value in parse_pairs("var", var).items()} if var else None
    if var:
        raise InvalidInput("variables", "cannot be combined with var")
    if text != "-":
        return decode_typed_object("variables", text.encode("utf-8", "surrogateescape"), PAYLOAD_BYTES_MAX)
    raw = sys.stdin.buffer.read(PAYLOAD_BYTES_MAX + 1)
    if len(raw) > PAYLOAD_BYTES_MAX:
        raise InvalidInput("variables", f"must be at most {PAYLOAD_BYTES_MAX:,} bytes of JSON; standard input has more")
    return decode_typed_object("variables", raw, PAYLOAD_BYTES_MAX)


def _variable(name: str, text: str) -> Any:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    # A whole number of more than 64 bits would become a float and lose its last digits.
    if isinstance(value, float) and text.strip().lstrip("-").isdigit() and len(text.strip()) > INT_DIGITS_SAFE:
        raise InvalidInput("var", f"{name} must be a number of at most 64 bits, or a string: --var '{name}=\"{text}\"'")
    return value


async def _create_one(service: JobService, job: NewJob) -> tuple[Created, dict[str, Any]]:
    created = (await service.create([job]))[0]
    return created, job_report(await service.get(created.key))


async def _create_many(service: JobService, jobs: Iterable[NewJob], total: int) -> Bulk:
    keys: list[int] = []
    deduplicated = 0
    try:
        with _progress(total) as progress:
            task = progress.add_task("creating jobs", total=total) if progress else None
            for batch in _batches(jobs):
                created = await service.create(batch)
                keys += [one.key for one in created if not one.deduplicated]
                deduplicated += sum(one.deduplicated for one in created)
                if progress and task is not None:
                    progress.advance(task, len(batch))
    except EngineError as error:
        done = len(keys) + deduplicated
        raise EngineError(f"{error}; {done:,} of {total:,} jobs had been created") from error
    except asyncio.CancelledError:
        write_stderr(f"stopped: at least {len(keys) + deduplicated:,} of {total:,} jobs had been created")
        raise
    return Bulk(keys, deduplicated)


def _batches(jobs: Iterable[NewJob]) -> Iterator[list[NewJob]]:
    batch: list[NewJob] = []
    size = 0
    for job in jobs:
        batch.append(job)
        size += len(job.variables)
        if len(batch) == CREATE_BATCH_MAX or size > BATCH_BYTES_MAX:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _progress(total: int) -> AbstractContextManager[Progress | None]:
    if total < PROGRESS_FROM or not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console  # noqa: PLC0415 - only what is used is loaded
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _show_one(created: Created, report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        write_json(report | {"deduplicated": created.deduplicated})
    elif created.deduplicated:
        write(f"job {created.key} already has this dedupe key and is {report['state']}; nothing was created\n")
    else:
        write(f"created job {created.key} ({report['type']})\n")


def _show_many(bulk: Bulk, as_json: bool) -> None:
    keys, deduplicated = bulk
    if as_json:
        write_json({"created": len(keys), "deduplicated": deduplicated, "keys": [str(key) for key in keys]})
        return
    which = f", keys {keys[0]} to {keys[-1]}" if len(keys) > 1 else f", key {keys[0]}" if keys else ""
    known = f"; {deduplicated:,} already existed (dedupe key)" if deduplicated else ""
    write(f"created {len(keys):,} job{'' if len(keys) == 1 else 's'}{which}{known}\n")


LINE_BYTES_MAX: Final = 4 * PAYLOAD_BYTES_MAX
"""The maximum size of a line: enough for a full payload and headers, with escapes and spaces."""
FIELDS: Final = tuple(name for name in signature(new_job).parameters if name not in ("retry", "extra"))


@dataclass(frozen=True, slots=True)
class CheckedJobs:
    """The jobs of a file whose lines have all been checked. They are read from the file again, not kept in memory."""

    lines: IO[bytes]
    total: int

    def __iter__(self) -> Iterator[NewJob]:
        self.lines.seek(0)
        return _jobs(self.lines)


@contextmanager
def checked_jobs(path: str) -> Iterator[CheckedJobs]:
    """Check every line of a file; an error names the first invalid line."""
    try:
        source = sys.stdin.buffer if path == "-" else Path(path).open("rb")  # noqa: SIM115 - closed below
    except (OSError, ValueError) as error:
        raise InvalidInput("file", f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    with source, tempfile.TemporaryFile() as copy:
        # Read from a copy, so that the jobs created are the ones checked, and because a pipe can be read only once.
        try:
            shutil.copyfileobj(source, copy)
        except OSError as error:
            raise InvalidInput("file", f"cannot read {path}: {error.strerror}") from None
        copy.seek(0)
        total = sum(1 for _ in _jobs(copy))
        if total == 0:
            raise InvalidInput("file", f"{path} contains no jobs; it must have one JSON object per line")
        yield CheckedJobs(copy, total)


def _jobs(lines: IO[bytes]) -> Iterator[NewJob]:
    number = 0
    while line := lines.readline(LINE_BYTES_MAX + 1):
        number += 1
        if line.isspace():
            continue
        try:
            yield _job(line)
        except InvalidInput as error:
            raise InvalidInput(f"line {number}: {error.field}", error.problem) from None


def _job(line: bytes) -> NewJob:
    fields = decode_typed_object("job", line, LINE_BYTES_MAX)
    unknown = fields.keys() - set(FIELDS)
    if unknown:
        raise InvalidInput(min(unknown), f"unknown field; allowed: {', '.join(FIELDS)}")
    given: dict[str, Any] = {"variables": {}} | {name: value for name, value in fields.items() if value is not None}
    for field in ("run_at", "expires_at"):
        if field in given:
            given[field] = parse_time(field, given[field])
    if "type" not in given:
        raise InvalidInput("type", "is required")
    return new_job(**given)
