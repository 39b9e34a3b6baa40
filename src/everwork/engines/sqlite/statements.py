"""The SQL of this engine, one file per operation of the contract; how lanes and jobs are stored."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import chain, repeat
from typing import Any, Final

from everwork.core.job import LeasedJob, NewJob, StoredJob
from everwork.core.leasing import Demand
from everwork.core.limits import DEFAULT_TENANT

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def statements(operation: str) -> dict[str, str]:
    """The statements of `sql/<operation>.sql` by name."""
    text = (files(__package__) / "sql" / f"{operation}.sql").read_text("utf-8")
    _, *named = _NAME.split(text)
    return {name: _without_comments(body) for name, body in zip(named[::2], named[1::2], strict=True)}


def _without_comments(body: str) -> str:
    """A statement without its comments."""
    lines = [line for line in body.strip().splitlines() if not line.startswith("--")]
    return "\n".join(lines).rstrip(";")


PORTIONS: Final = (100, 10)
"""The numbers of rows of one INSERT statement, largest first."""


def insert_rows(
    cursor: sqlite3.Cursor, statement: str, rows: Sequence[tuple[object, ...]], same: tuple[object, ...] = ()
) -> None:
    """Insert many rows per statement: after each statement, this thread may have to wait for the GIL.

    `same`: the values of ?1, ?2, ..., which are the same in every row.
    """
    start = 0
    for portion in PORTIONS:
        while len(rows) - start >= portion:
            values = chain(same, chain.from_iterable(rows[start : start + portion]))
            cursor.execute(_wide(statement, portion), list(values))
            start += portion
    if start < len(rows):
        cursor.executemany(statement, [same + row for row in rows[start:]] if same else rows[start:])


@cache
def _wide(statement: str, rows: int) -> str:
    insert, values, rest = statement.partition("VALUES ")
    row, end, conflict = rest.partition(")")
    return f"{insert}{values}{', '.join([row + end] * rows)}{conflict}"


LANE_SEPARATOR = "\x1f"


def lane_of(tenant: str, limit_key: str | None) -> str:
    """The lane of a tenant and limit key, as it is stored."""
    if limit_key is None and tenant == DEFAULT_TENANT:
        return ""
    return f"{tenant}{LANE_SEPARATOR}{limit_key or ''}"


def tenant_of(lane: str) -> str:
    """The tenant of a stored lane."""
    return lane.partition(LANE_SEPARATOR)[0] if lane else DEFAULT_TENANT


def limit_key_of(lane: str) -> str | None:
    """The limit key of a stored lane."""
    return lane.partition(LANE_SEPARATOR)[2] or None if lane else None


def rare_columns(job: NewJob | StoredJob, retry: str | None) -> tuple[object, ...]:
    """The columns that most jobs leave empty, after their dedupe key."""
    return job.correlation_id, job.expires_at_ms, job.timeout_ms, job.headers, retry, job.extra


NOTHING_RARE = rare_columns(NewJob(""), None)


Owner = tuple[str, str | None]
"""tenant, limit key"""


def owner_of(lane: str) -> Owner:
    """The tenant and the limit key of a stored lane."""
    tenant, _, limit_key = lane.partition(LANE_SEPARATOR)
    return tenant or DEFAULT_TENANT, limit_key or None


def owners_of(lanes: Iterable[str]) -> Iterator[Owner]:
    """The owner of each lane."""
    for tenant, _, limit_key in map(str.partition, lanes, repeat(LANE_SEPARATOR)):
        yield tenant or DEFAULT_TENANT, limit_key or None


def leased_jobs(rows: Iterable[Any], demand: Demand, owners: Iterable[Owner], lease_until_ms: int) -> list[LeasedJob]:
    """The jobs leased for a demand, from rows of `pick` in activate.sql and the owner of each."""
    type, group = demand.type, demand.group
    return [
        # Created directly: the NamedTuple constructor would take a third of a microsecond longer per job.
        tuple.__new__(LeasedJob, (
            key, attempt, attempts, max_attempts, type, group, tenant, lease_until_ms, variables, headers, priority,
            run_at_ms, created_at_ms, timeout_ms, correlation_id, limit_key, extra,
        ))
        for (tenant, limit_key), (
            key, attempt, attempts, max_attempts, variables, headers, priority, run_at_ms,
            created_at_ms, timeout_ms, correlation_id, extra,
        ) in zip(owners, rows, strict=False)
    ]  # fmt: skip
