"""The SQL of this engine, one file per operation of the contract; how lanes and jobs are stored."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from everwork.core.job import Job, NewJob
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


def rare_columns(job: NewJob | Job, retry: str | None) -> tuple[object, ...]:
    """The columns that most jobs leave empty, after their dedupe key."""
    return job.correlation_id, job.expires_at_ms, job.timeout_ms, job.headers, retry, job.extra


NOTHING_RARE = rare_columns(NewJob(""), None)
