"""The SQL of this engine: one file per operation of the contract, each statement under its name, for one schema."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Final

from everwork.core import measures
from everwork.core.breaker import CircuitBreaker
from everwork.core.limits import (
    ASKED_EVERY_MS,
    ATTEMPTS_DEFAULT,
    HANDED_BYTES_MAX,
    HISTORY_ENTRIES_MAX,
    PARK_MS,
    PROMOTE_MAX,
)

# Statistics of a recently empty table mislead the planner; every hot statement has one good plan.
PLAN: Final = {
    "jit": "off",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "plan_cache_mode": "force_generic_plan",
}

LOCK_TIMEOUT: Final = "10s"
"""How long to wait for a locked row; a transaction that holds it longer was probably forgotten."""

COUNT_EVERY_MS: Final = 60_000
"""How often the running jobs of a limited type are counted from the beginning instead of from a mark."""
COUNT_PASSED_MAX: Final = 2_000
"""A count that has passed more dead entries than this sets a new mark."""

PARKED_ENTRIES_MAX: Final = 1_000
"""A demand is not parked if its claim has read more index entries than this: most of them were dead."""
MESSAGE_BYTES_MAX: Final = 8_000
"""The server's limit for the payload of a notification."""
CREATING_LOCKS: Final = 32
"""The number of advisory locks for creates in progress, shared by all queues: a transaction holds no more.

Few, because the server's lock table, which all databases share, has 64 entries per connection by default.
"""
NOTIFYING: Final = 7_310_868_735_954_840_181
"""The advisory lock of creates that notify when they commit, in any schema of the database."""

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def statements(operation: str, schema: str) -> dict[str, str]:
    """The statements of `sql/<operation>.sql` by name."""
    text = (files(__package__) / "sql" / f"{operation}.sql").read_text("utf-8")
    parts = _NAME.split(text)
    return {name: _bare(filled(body, schema)) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def functions(schema: str) -> list[str]:
    """The stored functions, one string per file."""
    folder = files(__package__) / "functions"
    return [filled(file.read_text("utf-8"), schema) for file in sorted(folder.iterdir(), key=lambda file: file.name)]


def filled(text: str, schema: str) -> str:
    """SQL with its placeholders (the schema's name, limits) filled in."""
    plan = " ".join(f"SET {name} = {value}" for name, value in PLAN.items())
    values = {
        "schema": schema,
        "plan": f"SET search_path = {schema}, pg_temp {plan}",
        "attempts_default": ATTEMPTS_DEFAULT,
        "history_max": HISTORY_ENTRIES_MAX,
        "promote_max": PROMOTE_MAX,
        "asked_every_ms": ASKED_EVERY_MS,
        "breaker_open_ms": CircuitBreaker().open_ms,
        "count_every_ms": COUNT_EVERY_MS,
        "count_passed_max": COUNT_PASSED_MAX,
        "park_ms": PARK_MS,
        "parked_entries_max": PARKED_ENTRIES_MAX,
        "handed_bytes_max": HANDED_BYTES_MAX,
        "message_bytes_max": MESSAGE_BYTES_MAX,
        "creating": f"'{schema}.live'::regclass::oid::int",  # Classes of advisory locks, unique per schema.
        "listening": f"'{schema}.parked'::regclass::oid::int",
        "creating_locks": CREATING_LOCKS,
        "notifying": NOTIFYING,
        "lock_timeout": f"'{LOCK_TIMEOUT}'",
        **_measures(),
    }
    for name, value in values.items():
        text = text.replace("{" + name + "}", str(value))
    return text


def _measures() -> dict[str, str]:
    """How durations and failures are counted, as literals."""
    buckets = range(measures.BUCKETS)
    return {
        "bounds_ms": _array(measures.BOUNDS_MS) + "::float8[]",
        "execution_names": _array(map(measures.execution, buckets)) + "::text[]",
        "wait_names": _array(map(measures.wait, buckets)) + "::text[]",
        "failure_name": f"'{measures.failure('')}'",
        "unclassified": f"'{measures.UNCLASSIFIED}'",
        "lapsed": f"'{measures.LAPSED}'",
        "no_bucket": "-1",
    }


def _array(values: Iterable[object]) -> str:
    return "'{" + ",".join(map(str, values)) + "}'"


def _bare(body: str) -> str:
    """A statement without its comments."""
    lines = [line for line in body.strip().splitlines() if not line.startswith("--")]
    return "\n".join(lines).rstrip(";")
