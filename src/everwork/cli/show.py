"""Jobs and statistics, formatted for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from everwork.cli.output import Column, command_name, delay_text, one_line, span, state_text, table
from everwork.codec.fields import TEXTS
from everwork.core.instants import utc_text
from everwork.core.job import HistoryEntry, StoredJob, attempt_numbers
from everwork.core.limits import DEFAULT_TENANT
from everwork.core.outcome import label_of
from everwork.core.queries import Explanation
from everwork.core.states import State

NOTE_CHARS_MAX = 200
VALUE_CHARS_MAX = 2_000
_ERRORS = ("error_code", "last_error")
PLAIN_FIELDS = (
    *(name for name in TEXTS if name not in _ERRORS), "copy_of", "variables", "headers", "result", *_ERRORS
)  # fmt: skip
"""The fields that are shown unchanged, in this order."""

JOB_COLUMNS = (
    Column("KEY", whole=True, right=True),
    Column("STATE", whole=True),
    Column("TYPE", width_min=30),
    Column("ATTEMPTS", whole=True),
    Column("AGE", whole=True, right=True),
    Column("NOTE", one_line=True),
)
HISTORY_COLUMNS = (
    Column("ATTEMPT", whole=True, right=True),
    Column("OUTCOME", whole=True),
    Column("TIME (UTC)", whole=True),
    Column("RUN TIME", whole=True, right=True),
    Column("ERROR", width_min=20),
)


_WITHOUT_ATTEMPT = ("requeue", "cancel", "expire")
"""Events of a job that end an attempt only if one was running."""


def job_table(jobs: Sequence[StoredJob], now_ms: int) -> Table:
    """One line per job."""
    return table(
        JOB_COLUMNS,
        [
            (
                str(job.key),
                state_text(job.state.label),
                one_line(job.type),
                f"{job.attempts}/{job.max_attempts}",
                span(now_ms - job.created_at_ms),
                note(job, now_ms),
            )
            for job in jobs
        ],
    )


def note(job: StoredJob, now_ms: int) -> str:
    """The most important facts about a job in a few words."""
    parts = []
    if job.state is State.PENDING and job.run_at_ms > now_ms:
        parts.append(f"runs in {span(job.run_at_ms - now_ms + 999)}")
    if job.state is State.PROCESSING and job.worker:
        parts.append(f"on {job.worker}")
    if job.last_error and job.state is not State.COMPLETED:
        parts.append(job.last_error)
    return one_line("; ".join(parts))[:NOTE_CHARS_MAX]


def job_page(
    job: StoredJob, history: Sequence[HistoryEntry], explanation: Explanation, *, now_ms: int, engine: str, every: bool
) -> list[RenderableType]:
    """Everything about one job, with its last traceback or all its tracebacks."""
    title = Text.assemble(("job ", "bold"), (str(job.key), "bold"), f"  {one_line(job.type)}  ")
    title.append_text(state_text(job.state.label))
    page: list[RenderableType] = [title, "", _fields(job, now_ms), ""]
    page.append(Text.assemble(("Why: ", "bold"), one_line(explanation.text)))
    if job.state is State.FAILED:
        command = f"{command_name()} jobs requeue {job.key}{engine}"
        page.append(Text(f"To requeue it: {command}", style="dim", no_wrap=True))
    if history:
        page += ["", table(HISTORY_COLUMNS, _history_rows(job, history))]
    return page + _tracebacks(job, history, every=every)


def stats_page(report: dict[str, Any], hours: int) -> list[RenderableType]:
    """Counts by type and state, and recent results of workers."""
    states = [state.label for state in State]
    rows: list[list[str | Text]] = [
        [one_line(type), *(_count(state, counts[state]) for state in states)]
        for type, counts in sorted(report["by_type"].items())
    ]
    if len(rows) != 1:
        rows.append(["all types", *(_count(state, report["by_state"][state]) for state in states)])
    columns = [Column("TYPE", width_min=20), *(Column(state.upper(), whole=True, right=True) for state in states)]
    done = report["performance"]
    finished = (
        f"Last {hours} h: {done['completed']:,} completed, {done['failed']:,} failed, {done['retried']:,} retried; "
        f"success rate {done['success_rate']:g} %; average queue wait {done['avg_wait_ms']:,.0f} ms, "
        f"run time {done['avg_execution_ms']:,.0f} ms"
    )
    if not (done["completed"] or done["failed"] or done["retried"]):
        finished = f"Last {hours} h: no finished attempts"
    page: list[RenderableType] = [table(columns, rows), "", Text(finished)]
    if report["by_worker"]:
        workers = sorted(report["by_worker"].items(), key=lambda item: (-item[1], item[0]))
        page.append(Text("Jobs by worker: " + ", ".join(f"{one_line(name)} {jobs:,}" for name, jobs in workers[:10])))
    return page


def _count(state: str, jobs: int) -> Text:
    return state_text(state, f"{jobs:,}") if jobs else Text("-", style="dim")


def _fields(job: StoredJob, now_ms: int) -> Table:
    shown: list[tuple[str, str | int | None]] = [
        ("tenant", None if job.tenant == DEFAULT_TENANT else job.tenant),
        ("group", job.group or None),
        ("attempts", f"{job.attempts} of {job.max_attempts}" + (" (rejected)" if job.rejected else "")),
        ("priority", str(job.priority) if job.priority else None),
        ("created", _when(job.created_at_ms, now_ms)),
        ("run at", _when(job.run_at_ms, now_ms) if job.state is State.PENDING else None),
        ("started", _when(job.activated_at_ms, now_ms)),
        ("lease until", _when(job.lease_until_ms, now_ms)),
        ("finished", _when(job.finished_at_ms, now_ms)),
        ("expires", _when(job.expires_at_ms, now_ms)),
        ("timeout", None if job.timeout_ms is None else f"{job.timeout_ms / 1000:g} s"),
        *((name.replace("_", " "), getattr(job, name)) for name in PLAIN_FIELDS),
    ]
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, found in shown:
        if found is not None:
            value = str(found)
            cut = f"… ({len(value):,} characters; --json shows all)" if len(value) > VALUE_CHARS_MAX else ""
            grid.add_row(name, Text(_clean(value[:VALUE_CHARS_MAX]) + cut))
    return grid


def _history_rows(job: StoredJob, history: Sequence[HistoryEntry]) -> list[tuple[str, ...]]:
    return [_history_row(number, event) for number, event in zip(attempt_numbers(job, history), history, strict=True)]


def _history_row(number: int, event: HistoryEntry) -> tuple[str, ...]:
    took = "" if event.activated_at_ms is None else f"{event.at_ms - event.activated_at_ms:,} ms"
    retried = "" if event.retry_at_ms is None else f" (retry in {delay_text(event.retry_at_ms - event.at_ms)})"
    at = utc_text(event.at_ms)[:19].replace("T", " ")
    shown = "" if event.kind in _WITHOUT_ATTEMPT and event.activated_at_ms is None else str(number)
    return shown, label_of(event.kind), at, took, one_line(event.error or "")[:NOTE_CHARS_MAX] + retried


def _tracebacks(job: StoredJob, history: Sequence[HistoryEntry], *, every: bool) -> list[RenderableType]:
    """The traceback of the last error, if it has one, or the tracebacks of all attempts."""
    numbered = zip(attempt_numbers(job, history), history, strict=True)
    traced = [(number, event.traceback) for number, event in numbered if event.traceback]
    last = next((event for event in reversed(history) if event.kind != "release"), None)
    is_wanted = job.state is not State.COMPLETED and last is not None and last.traceback
    wanted = traced if every else traced[-1:] if is_wanted else []
    page: list[RenderableType] = []
    for attempt, traceback in wanted:
        page += ["", Text(f"Traceback of attempt {attempt}:", style="bold"), Text(_clean(traceback), overflow="fold")]
    if len(traced) > len(wanted):
        page += ["", Text(f"tracebacks: {len(traced)}; show all with --tracebacks", style="dim")]
    return page


def _when(instant_ms: int | None, now_ms: int) -> str | None:
    if instant_ms is None:
        return None
    away = instant_ms - now_ms
    return f"{utc_text(instant_ms)} ({f'in {span(away)}' if away > 0 else f'{span(away)} ago'})"


def _clean(text: str) -> str:
    """The text without control characters other than newlines."""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)
