"""The public views, asked by SQL as a user would, and what they must show of a job."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.rows import dict_row

from everwork.core.states import State
from tests.stores import schema_of, url_of

if TYPE_CHECKING:
    from pathlib import Path

    from everwork.core.job import HistoryEntry, StoredJob
    from everwork.engines.contract import Engine

SQL_ENGINES: Final = ["sqlite", "postgres"]
INSTANTS: Final = ["created_at", "run_at", "activated_at", "lease_until", "finished_at", "updated_at", "expires_at"]
COLUMNS: Final = [
    "key", "type", "group_name", "tenant", "state", "priority", "attempt", "attempts", "max_attempts", *INSTANTS,
    "worker", "last_error", "error_code", "ended_by", "correlation_id", "dedupe_key", "limit_key", "copy_of",
    "timeout_ms", "variables", "headers", "result", *(f"{name}_ms" for name in INSTANTS),
]  # fmt: skip
"""What version 1 of the views promises, in order. A later version may only append."""

Row = dict[str, Any]


def ask(engine_name: str, folder: Path, sql: str) -> list[Row]:
    """The rows that a program without Everwork reads from the store of this folder."""
    if engine_name == "sqlite":
        return ask_file(folder / "jobs.db", sql)
    url = url_of(engine_name, folder).partition("?")[0]
    return ask_server(url, schema_of(folder), sql)


def ask_file(file: Path, sql: str) -> list[Row]:
    """The rows that a connection of the user's own reads from a file."""
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(sql)]


def ask_server(url: str, schema: str, sql: str) -> list[Row]:
    """The rows that a connection of the user's own reads from a schema."""
    with psycopg.connect(url, row_factory=dict_row, options=f"-c search_path={schema}") as connection:
        return connection.execute(sql.encode()).fetchall()


async def shown_by_views(engine: Engine, jobs: list[StoredJob]) -> list[Row]:
    """What the view `jobs` must show of these jobs, without the readable instants."""
    return [_row_of(job, await engine.history(job.key)) for job in jobs]


def without_readable_instants(rows: list[Row]) -> list[Row]:
    """The rows with instants in milliseconds alone, after a check that the readable ones say the same."""
    for row in rows:
        for name in INSTANTS:
            assert _ms_of(row[name]) == row[f"{name}_ms"], (name, row)
    return [{name: value for name, value in row.items() if name not in INSTANTS} for row in rows]


def _ms_of(instant: str | datetime | None) -> int | None:
    if instant is None:
        return None
    moment = datetime.fromisoformat(instant) if isinstance(instant, str) else instant
    return round(moment.astimezone(UTC).timestamp() * 1_000)


def _row_of(job: StoredJob, history: list[HistoryEntry]) -> Row:
    plain = {name: getattr(job, name) for name in COLUMNS if name not in INSTANTS and hasattr(job, name)}
    last_ms = max([job.created_at_ms, job.activated_at_ms or 0, *(entry.at_ms for entry in history)])
    return {
        **plain,
        "group_name": job.group or None,
        "state": job.state.label,
        "ended_by": history[-1].kind if job.finished_at_ms is not None else None,
        "activated_at_ms": None if job.state is State.PENDING else job.activated_at_ms,
        "updated_at_ms": last_ms,
    }
