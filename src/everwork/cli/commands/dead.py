"""everwork dead: dead letters by error group; list, show, requeue, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import typer

from everwork.aio.clocks import host_clock_ms
from everwork.cli import show
from everwork.cli.commands.jobs import (
    EveryTraceback,
    change_each,
    engine_hint,
    error_part,
    job_details,
    optional_name,
)
from everwork.cli.options import AsJson, EngineUrl, listing_app, number, parse_past_instant, require_terminal
from everwork.cli.output import Column, one_line, span, table, write, write_json, write_rich, write_stderr
from everwork.cli.progress import Step, shown_progress
from everwork.cli.session import jobs_of, use
from everwork.codec.job_reports import explanation_report, job_report
from everwork.core import checks
from everwork.core.fingerprint import fingerprint as fingerprint_of
from everwork.core.queries import BulkChange
from everwork.core.states import State
from everwork.exceptions import InvalidInput, WrongState
from everwork.service.bulk import BulkFilter
from everwork.service.dead_letters import (
    GROUP_ORDERS,
    GROUPS_DEFAULT,
    GROUPS_MAX,
    DeadLetterAction,
    DeadLetterGroup,
    Grouped,
    dead_filter,
    grouped,
    newest,
    require_fingerprint,
)
from everwork.service.reports import dead_report
from everwork.service.service import JobService

SHOWN_MAX = 20
COLUMNS = (
    Column("JOBS", whole=True, right=True),
    Column("TYPE", width_min=20),
    Column("FINGERPRINT", whole=True),
    Column("FIRST", whole=True, right=True),
    Column("LAST", whole=True, right=True),
    Column("LATEST JOB", whole=True, right=True),
    Column("ERROR", one_line=True, width_min=20),
)
DONE = {DeadLetterAction.REQUEUE: "requeued", DeadLetterAction.PURGE: "deleted"}

Type = Annotated[str | None, typer.Option(rich_help_panel="Filters", metavar="TYPE", help="Job type.")]
Tenant = Annotated[
    list[str] | None, typer.Option(rich_help_panel="Filters", metavar="NAME", help="Tenant. Repeatable.")
]
Error = Annotated[
    str | None, typer.Option(rich_help_panel="Filters", metavar="TEXT", help="Text contained in the error.")
]
Fingerprint = Annotated[
    str | None,
    typer.Option(rich_help_panel="Filters", metavar="FINGERPRINT", help="Error group, as everwork dead list shows it."),
]
Since = Annotated[
    str | None,
    typer.Option(
        rich_help_panel="Filters",
        metavar="TIME",
        help="Failed at or after: 12h (ago), 2026-11-01 (UTC), or a time (RFC 3339).",
    ),
]
Before = Annotated[
    str | None, typer.Option(rich_help_panel="Filters", metavar="TIME", help="Failed before; same formats as --since.")
]
Keys = Annotated[list[str] | None, typer.Argument(metavar="KEY", help="Job keys.", show_default=False)]
Rejected = Annotated[
    bool, typer.Option("--rejected", rich_help_panel="Filters", help="Select rejected jobs instead of dead letters.")
]
All = Annotated[bool, typer.Option("--all", help="Select every dead letter.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print how many jobs match and change nothing.")]

app = listing_app()


@app.callback()
def dead() -> None:
    """List, show, requeue and delete dead letters.

    Example:
        everwork dead list
    """


@app.command("list")
def list_dead(
    *,
    type: Type = None,
    tenant: Tenant = None,
    error: Error = None,
    since: Since = None,
    before: Before = None,
    rejected: Rejected = False,
    limit: Annotated[
        str, typer.Option(metavar="NUMBER", help=f"Number of error groups to show, 1 to {GROUPS_MAX:,}.")
    ] = str(GROUPS_DEFAULT),
    order: Annotated[
        str, typer.Option(metavar="ORDER", help="Order: frequent (most jobs first) or failed (latest failure first).")
    ] = GROUP_ORDERS[0],
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters, grouped by type and error.

    Errors that differ only in numbers, ids and quoted names are one group, identified by a fingerprint.

    Examples:
        everwork dead list
        everwork dead list --type card-charge --since 12h
        everwork dead list --order failed
    """
    query = _filter(type, tenant, error, None, since=since, before=before, rejected=rejected)
    most = checks.whole_number("limit", number(limit), 1, GROUPS_MAX)
    found = use(engine, lambda service: grouped(jobs_of(service), query, most, order))
    if as_json:
        write_json(dead_report(found))
    else:
        _show_groups(found)


@app.command("show")
def show_dead(
    which: Annotated[
        str,
        typer.Argument(
            metavar="KEY|FINGERPRINT", help="Job key, or the fingerprint of an error group.", show_default=False
        ),
    ],
    tracebacks: EveryTraceback = False,
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show a dead letter with all its attempts.

    With a fingerprint, shows the newest job of the error group.

    Examples:
        everwork dead show 17
        everwork dead show hkndpheejd
    """
    found = use(engine, lambda service: _read_dead_letter(service, which))
    job, history, explanation = found.details
    fingerprint = fingerprint_of(job.last_error or "")
    if as_json:
        report = job_report(job, history) | {"explanation": explanation_report(explanation)}
        write_json(report | {"fingerprint": fingerprint, "others": [str(key) for key in found.others]})
        return
    hint = engine_hint(engine)
    write_rich(*show.job_page(job, history, explanation, now_ms=host_clock_ms(), engine=hint, every=tracebacks))
    others = f"; others: {', '.join(str(key) for key in found.others)}" if found.others else ""
    write(f"\nfingerprint {fingerprint}{others}\n")


@app.command()
def requeue(  # noqa: PLR0913 - the filters of dead letters
    keys: Keys = None,
    *,
    type: Type = None,
    tenant: Tenant = None,
    error: Error = None,
    fingerprint: Fingerprint = None,
    since: Since = None,
    before: Before = None,
    rejected: Rejected = False,
    all: All = False,
    dry_run: DryRun = False,
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """Requeue dead letters by key, by filter, or all.

    Requeued jobs are due now, with attempts reset to 0.

    Examples:
        everwork dead requeue 17 18
        everwork dead requeue --type card-charge --error refused --dry-run
        everwork dead requeue --all
    """
    query = _filter(type, tenant, error, fingerprint, since=since, before=before, rejected=rejected)
    if keys:
        _require_keys_alone(query, all=all, dry_run=dry_run)
        change_each(
            keys, DONE[DeadLetterAction.REQUEUE], lambda jobs, key: jobs.requeue(key, only_dead=True), engine, as_json
        )
        return
    _require_selection(query, all=all)
    action = DeadLetterAction.REQUEUE
    change = _change_letters(engine, action, query, all=all, dry_run=dry_run)
    _show_change(action, query, change, dry_run=dry_run, as_json=as_json)


@app.command()
def purge(  # noqa: PLR0913 - the filters of dead letters
    keys: Keys = None,
    *,
    type: Type = None,
    tenant: Tenant = None,
    error: Error = None,
    fingerprint: Fingerprint = None,
    since: Since = None,
    before: Before = None,
    rejected: Rejected = False,
    all: All = False,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete dead letters by key, by filter, or all.

    Deletes the jobs and their history permanently. Asks for confirmation unless --yes is given.

    Examples:
        everwork dead purge 17 18
        everwork dead purge --type card-charge --before 2026-11-01 --yes
    """
    query = _filter(type, tenant, error, fingerprint, since=since, before=before, rejected=rejected)
    if keys:
        _require_keys_alone(query, all=all, dry_run=dry_run)
        _confirm(len(keys), query, yes=yes)
        change_each(keys, DONE[DeadLetterAction.PURGE], lambda jobs, key: jobs.purge(key), engine, as_json)
        return
    _require_selection(query, all=all)
    if not dry_run and not yes:
        require_terminal()
        matched = _change_letters(engine, DeadLetterAction.PURGE, query, all=all, dry_run=True).matched
        _confirm(matched, query, yes=False)
    action = DeadLetterAction.PURGE
    change = _change_letters(engine, action, query, all=all, dry_run=dry_run)
    _show_change(action, query, change, dry_run=dry_run, as_json=as_json)


# Selection --------------------------------------------------------------------------------------------


def _filter(
    type: str | None,
    tenants: Sequence[str] | None,
    error: str | None,
    fingerprint: str | None,
    *,
    since: str | None,
    before: str | None,
    rejected: bool,
) -> BulkFilter:
    now = host_clock_ms()
    return dead_filter(
        type=optional_name("type", type),
        tenants=tuple(checks.name("tenant", name) for name in tenants or ()),
        error_text=error_part(error),
        fingerprint=None if fingerprint is None else require_fingerprint(fingerprint),
        failed_after_ms=None if since is None else parse_past_instant("since", since, now),
        failed_before_ms=None if before is None else parse_past_instant("before", before, now),
        rejected=rejected,
    )


def _require_keys_alone(query: BulkFilter, *, all: bool, dry_run: bool) -> None:
    if all or dry_run or query != dead_filter():
        raise InvalidInput("key", "cannot be combined with a filter, --all or --dry-run")


def _require_selection(query: BulkFilter, *, all: bool) -> None:
    if query == dead_filter() and not all:
        raise InvalidInput("key", "is required, unless you pass a filter, or --all for every dead letter")
    if all and query != dead_filter():
        raise InvalidInput("all", "cannot be combined with a filter")


def _confirm(jobs: int, query: BulkFilter, *, yes: bool) -> None:
    if not yes:
        require_terminal()
        typer.confirm(f"Delete {_jobs_text(jobs, query)} permanently?", abort=True, err=True)


# Changes ----------------------------------------------------------------------------------------------


class _DeadLetter(NamedTuple):
    """A dead letter, and the keys of others with the same fingerprint."""

    details: Any
    others: list[int]


async def _read_dead_letter(service: JobService, which: str) -> _DeadLetter:
    if not which.isdecimal():
        found = await newest(jobs_of(service), which, SHOWN_MAX)
        return _DeadLetter(await job_details(service, found[0].key), [job.key for job in found[1:]])
    details = await job_details(service, checks.known_key(which))
    state = details[0].state
    if state is not State.FAILED:
        raise WrongState(details[0].key, f"Job '{which}' is {state.label}, not a dead letter")
    return _DeadLetter(details, [])


def _change_letters(
    engine: str | None, action: DeadLetterAction, query: BulkFilter, *, all: bool, dry_run: bool
) -> BulkChange:
    async def change(service: JobService) -> BulkChange:
        done = BulkChange(0, 0)

        def on_step(step: BulkChange) -> None:
            nonlocal done
            done = step
            show_step(Step(done.matched, None))

        try:
            with shown_progress() as show_step:
                jobs = jobs_of(service)
                return await jobs.change_dead(action, query, all=all, dry_run=dry_run, progress=on_step)
        except asyncio.CancelledError:
            write_stderr("interrupted: nothing was changed" if dry_run else _interrupted(action, query, done.changed))
            raise

    return use(engine, change)


def _interrupted(action: DeadLetterAction, query: BulkFilter, changed: int) -> str:
    return f"interrupted: {_jobs_text(changed, query)} {DONE[action]}; run the command again for the rest"


# Output -----------------------------------------------------------------------------------------------


def _show_groups(found: Grouped) -> None:
    if found.groups:
        write_rich(table(COLUMNS, [_row(group) for group in found.groups]))
    else:
        write("no dead letters\n" if found.looked_at == found.rejected else "no matching dead letters\n")
    if found.is_cut:
        write_stderr(
            f"only the newest {found.looked_at:,} dead letters were scanned; narrow the search with --type or --error"
        )
    if found.rejected:
        jobs = "1 rejected job is" if found.rejected == 1 else f"{found.rejected:,} rejected jobs are"
        write_stderr(f"{jobs} not included; use --rejected to see them")
    if found.left_out:
        write_stderr(f"{found.left_out:,} more groups; raise --limit to see them")


def _row(group: DeadLetterGroup) -> tuple[str, ...]:
    first, last = (f"{span(host_clock_ms() - at)} ago" for at in (group.first_ms, group.last_ms))
    error = one_line(group.error)[: show.NOTE_CHARS_MAX]
    return f"{group.jobs:,}", one_line(group.type), group.fingerprint, first, last, str(group.key), error


def _show_change(
    action: DeadLetterAction, query: BulkFilter, change: BulkChange, *, dry_run: bool, as_json: bool
) -> None:
    if as_json:
        write_json({"matched": change.matched, "changed": change.changed, "dry_run": dry_run})
    elif dry_run:
        write(f"{_jobs_text(change.matched, query)} would be {DONE[action]}\n")
    elif change.changed == change.matched:
        write(f"{_jobs_text(change.changed, query)} {DONE[action]}\n")
    else:
        write(f"{change.changed:,} of {_jobs_text(change.matched, query)} {DONE[action]}; the others have changed\n")


def _jobs_text(jobs: int, query: BulkFilter) -> str:
    one = "rejected job" if query.rejected else "dead letter"
    return f"1 {one}" if jobs == 1 else f"{jobs:,} {one}s"
