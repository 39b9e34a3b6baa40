"""everwork jobs: list, get, and changes; `create` has its own file."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

import typer

from everwork.aio.clocks import host_clock_ms
from everwork.cli import show
from everwork.cli.commands.create import VariablePairs, VariablesJson, create, parse_variables
from everwork.cli.options import (
    ENGINE_VARIABLE,
    AsJson,
    EngineUrl,
    JobKeys,
    config_path,
    job_keys,
    listing_app,
    number,
    parse_duration_ms,
    parse_instant,
    parse_time,
)
from everwork.cli.output import write, write_json, write_rich, write_stderr
from everwork.cli.session import jobs_of, use
from everwork.codec.job_reports import explanation_report, job_report
from everwork.codec.new_job import search_text
from everwork.codec.urls import shown_url
from everwork.core import checks
from everwork.core.instants import instant_ms
from everwork.core.job import HistoryEntry, StoredJob
from everwork.core.limits import (
    ERROR_CHARS_MAX,
    LIST_LIMIT_DEFAULT,
    LIST_LIMIT_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
)
from everwork.core.queries import CURSOR_MAX, Explanation, JobFilter, Order, Page, order_named
from everwork.core.states import State
from everwork.exceptions import InvalidInput, JobError
from everwork.service.jobs import Jobs, in_process
from everwork.service.service import JobService

ORDER_HELP = "newest; due: pending jobs, earliest first; failed: dead letters, latest failure first."

app = listing_app()
app.command("create")(create)


@app.callback()
def jobs() -> None:
    """List, create, cancel, requeue and delete jobs.

    Example:
        everwork jobs list --state failed
    """


@app.command("list")
def list_jobs(  # noqa: PLR0913 - the filters of a list
    *,
    state: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel="Filters",
            metavar="STATE",
            help="State: pending, processing, completed, failed, cancelled, or activatable (due now). Repeatable.",
        ),
    ] = None,
    type: Annotated[str | None, typer.Option(rich_help_panel="Filters", metavar="TYPE", help="Job type.")] = None,
    tenant: Annotated[
        list[str] | None, typer.Option(rich_help_panel="Filters", metavar="NAME", help="Tenant. Repeatable.")
    ] = None,
    worker: Annotated[
        str | None, typer.Option(rich_help_panel="Filters", metavar="NAME", help="Worker of the latest attempt.")
    ] = None,
    correlation_id: Annotated[
        str | None, typer.Option(rich_help_panel="Filters", metavar="TEXT", help="Correlation id.")
    ] = None,
    dedupe_key: Annotated[
        str | None, typer.Option(rich_help_panel="Filters", metavar="KEY", help="Dedupe key.")
    ] = None,
    created_after: Annotated[
        str | None,
        typer.Option(rich_help_panel="Filters", metavar="TIME", help="Created at or after this time (RFC 3339)."),
    ] = None,
    created_before: Annotated[
        str | None, typer.Option(rich_help_panel="Filters", metavar="TIME", help="Created before this time (RFC 3339).")
    ] = None,
    error: Annotated[
        str | None, typer.Option(rich_help_panel="Filters", metavar="TEXT", help="Text contained in the last error.")
    ] = None,
    variables: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Filters",
            metavar="TEXT",
            help="Text contained in the variables (compact JSON); case-sensitive.",
        ),
    ] = None,
    limit: Annotated[
        str, typer.Option(metavar="NUMBER", help=f"Number of jobs to show, 1 to {LIST_LIMIT_MAX:,}.")
    ] = str(LIST_LIMIT_DEFAULT),
    order: Annotated[str, typer.Option(metavar="ORDER", help=f"Order: {ORDER_HELP}")] = Order.NEWEST.label,
    cursor: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Position to continue from, as printed by the previous page.")
    ] = None,
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first.

    Examples:
        everwork jobs list --state failed --error timeout
        everwork jobs list --order due
        everwork jobs list --dedupe-key order-1520
        everwork jobs list --type email-send --variables ann@example.org
        everwork jobs list --type email-send --limit 200 --json
    """
    states, due = checks.state_filters(state or ())
    wanted = JobFilter(
        type=optional_name("type", type),
        states=states,
        due=due,
        tenants=tuple(checks.name("tenant", name) for name in tenant or ()),
        worker=optional_name("worker", worker),
        correlation_id=optional_name("correlation_id", correlation_id),
        dedupe_key=optional_name("dedupe_key", dedupe_key),
        created_after_ms=_instant("created_after", created_after),
        created_before_ms=_instant("created_before", created_before),
        error_text=error_part(error),
        variables_text=None if variables is None else search_text("variables", variables),
        order=order_named(order),
    )
    rows = checks.whole_number("limit", number(limit), 1, LIST_LIMIT_MAX)
    below = None if cursor is None else checks.whole_number("cursor", number(cursor), 1, CURSOR_MAX)
    page = use(engine, lambda service: service.find(wanted, rows, below))
    if as_json:
        write_json({"jobs": [job_report(job) for job in page.jobs], "next": page.next and str(page.next)})
    else:
        _show_page(page, is_filtered=wanted != JobFilter(order=wanted.order) or below is not None)


EveryTraceback = Annotated[bool, typer.Option("--tracebacks", help="Show the traceback of every failed attempt.")]


@app.command()
def get(
    key: Annotated[str, typer.Argument(help="Job key.", show_default=False)],
    tracebacks: EveryTraceback = False,
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show a job with its history and why it is not running.

    Includes the traceback of the last failure.

    Example:
        everwork jobs get 17
    """
    wanted = checks.known_key(key)
    job, history, explanation = use(engine, lambda service: job_details(service, wanted))
    if as_json:
        write_json(job_report(job, history) | {"explanation": explanation_report(explanation)})
    else:
        hint = engine_hint(engine)
        write_rich(*show.job_page(job, history, explanation, now_ms=host_clock_ms(), engine=hint, every=tracebacks))


@app.command()
def cancel(
    keys: JobKeys,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Reason, shown with the job.")] = "",
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """Cancel pending and processing jobs.

    Example:
        everwork jobs cancel 17 18 --reason "ordered twice"
    """
    if len(reason) > ERROR_CHARS_MAX:
        raise InvalidInput("reason", f"must have at most {ERROR_CHARS_MAX:,} characters, not {len(reason):,}")
    change_each(keys, "cancelled", lambda jobs, key: jobs.cancel(key, reason), engine, as_json)


@app.command()
def requeue(
    keys: JobKeys,
    variables: VariablesJson = None,
    var: VariablePairs = None,
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """Requeue dead letters and jobs waiting for a retry.

    Requeued jobs are due now, with attempts reset to 0. --variables and --var replace all variables of a job; they work
    for one job at a time and are validated when the job runs.

    Examples:
        everwork jobs requeue 17 18
        everwork jobs requeue 17 --variables '{"to": "ann@example.org"}'
    """
    given = parse_variables(variables, var)
    if given is None:
        change_each(keys, "requeued", lambda jobs, key: jobs.requeue(key), engine, as_json)
        return
    if len(set(keys)) > 1:
        raise InvalidInput("variables", f"can be replaced for only one job: pass one key, not {len(keys):,}")
    done = "requeued with other variables"
    change_each(keys, done, lambda jobs, key: jobs.requeue(key, variables=given), engine, as_json)
    if not as_json:
        write("a worker checks them when the job runs: arguments that do not fit its handler fail the job\n")


@app.command("run-now")
def run_now(
    keys: JobKeys,
    reset: Annotated[
        bool,
        typer.Option("--reset", help="Also reset attempts to 0 and clear the last error; works for dead letters too."),
    ] = False,
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make scheduled jobs and jobs waiting for a retry due now.

    Examples:
        everwork jobs run-now 17
        everwork jobs run-now 17 18 --reset
    """
    change_each(keys, "due now", lambda jobs, key: jobs.run_now(key, reset=reset), engine, as_json)


@app.command()
def reschedule(
    keys: JobKeys,
    at: Annotated[
        str, typer.Option(metavar="TIME", help="New start: a duration from now (90d, 12h, 30m) or a time (RFC 3339).")
    ],
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """Change when pending jobs start.

    Examples:
        everwork jobs reschedule 17 18 --at 12h
        everwork jobs reschedule 17 --at 2030-01-31T12:00:00Z
    """
    if (found := parse_duration_ms(at)) is not None:  # Use the engine's clock, not this host's.
        change_each(keys, "rescheduled", lambda jobs, key: jobs.reschedule(key, delay_ms=found), engine, as_json)
        return
    instant = parse_instant("at", at, 0)
    change_each(keys, "rescheduled", lambda jobs, key: jobs.reschedule(key, run_at_ms=instant), engine, as_json)


@app.command()
def priority(
    keys: JobKeys,
    priority: Annotated[
        str, typer.Option("--to", metavar="NUMBER", help="New priority, -512 to 511; higher runs first.")
    ],
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """Change the priority of pending jobs.

    Example:
        everwork jobs priority 17 18 --to 100
    """
    wanted = checks.whole_number("priority", number(priority), PRIORITY_MIN, PRIORITY_MAX)
    done = f"priority {wanted}"
    change_each(keys, done, lambda jobs, key: jobs.set_priority(key, wanted), engine, as_json)


@app.command()
def delete(keys: JobKeys, engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """Delete finished jobs and their history permanently.

    Example:
        everwork jobs delete 17 18
    """
    change_each(keys, "deleted", lambda jobs, key: jobs.delete(key), engine, as_json)


def change_each(
    texts: Sequence[str],
    done: str,
    change: Callable[[Jobs, int], Awaitable[State]],
    engine: str | None,
    as_json: bool,
) -> None:
    """Change each job separately: refusals are printed, and the remaining jobs are still changed."""
    keys = job_keys(texts)

    async def change_all(service: JobService) -> list[State | BaseException]:
        jobs = jobs_of(service)
        return await asyncio.gather(*(change_one(jobs, key) for key in keys), return_exceptions=True)

    async def change_one(jobs: Jobs, key: str) -> State:
        return await change(jobs, checks.known_key(key))

    results = use(engine, change_all)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, JobError):
            raise result
    if as_json:
        write_json({"jobs": [_change_report(key, result) for key, result in zip(keys, results, strict=True)]})
    else:
        _show_changes(keys, results, done)
    refused = [result for result in results if isinstance(result, JobError)]
    for error in refused:
        write_stderr(str(error))
    if refused:
        raise typer.Exit(1)


def _change_report(key: str, result: State | BaseException) -> dict[str, Any]:
    if isinstance(result, State):
        return {"key": key, "ok": True, "previous_state": result.label, "error": None}
    return {"key": key, "ok": False, "previous_state": None, "error": str(result)}


def _show_changes(keys: Sequence[str], results: Sequence[State | BaseException], done: str) -> None:
    outcomes = zip(keys, results, strict=True)
    write("".join(f"job {key}: {done} (was {state.label})\n" for key, state in outcomes if isinstance(state, State)))


def _show_page(page: Page, *, is_filtered: bool) -> None:
    if page.jobs:
        write_rich(show.job_table(page.jobs, host_clock_ms()))
    elif page.next is not None:
        write("no matching jobs so far; older ones were not scanned\n")
    else:
        write("no matching jobs\n" if is_filtered else "no jobs; create one: everwork jobs create email-send\n")
    if page.next is not None:
        write(next_page(str(page.next)))


def next_page(cursor: str) -> str:
    """The command for the next page: the current one with another cursor. A password is not repeated."""
    return f"\nmore: everwork {shlex.join(_without_secrets(sys.argv[1:]))} --cursor {shlex.quote(cursor)}\n"


def _without_secrets(arguments: Sequence[str]) -> list[str]:
    """The arguments without the cursor, and with the password of an engine's URL hidden."""
    kept: list[str] = []
    before = ""
    for argument in arguments:
        if "--cursor" not in (argument, before) and not argument.startswith("--cursor="):
            kept.append(_without_password(argument, is_engine=before in ("--engine", "-e")))
        before = argument
    return kept


def _without_password(argument: str, *, is_engine: bool) -> str:
    """An argument as typed, but with the password hidden in the URL of `--engine URL`, `--engine=URL` or `-eURL`."""
    flag = next((one for one in ("--engine=", "-e") if argument.startswith(one)), "")
    return flag + shown_url(argument.removeprefix(flag)) if is_engine or flag else argument


def engine_hint(engine: str | None) -> str:
    """The options that a suggested command needs to reach the same engine; a password is hidden."""
    if engine is None:
        config = config_path()
        return "" if config is None else f" --config {shlex.quote(config)}"
    return "" if engine == os.environ.get(ENGINE_VARIABLE) else f" --engine {shlex.quote(shown_url(engine))}"


async def job_details(service: JobService, key: int) -> tuple[StoredJob, list[HistoryEntry], Explanation]:
    """A job, its history, and why it is not running."""
    jobs = in_process(service)
    return await jobs.get(key), await jobs.history(key), await jobs.explain(key)


def optional_name(field: str, text: str | None) -> str | None:
    """A name, if one was given."""
    return None if text is None else checks.name(field, text)


def _instant(field: str, text: str | None) -> int | None:
    return None if text is None else instant_ms(parse_time(field, text))


def error_part(text: str | None) -> str | None:
    """A text to search for in errors, if one was given."""
    return None if text is None else search_text("error", text)
