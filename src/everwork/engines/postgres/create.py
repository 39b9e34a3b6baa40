"""New jobs: the document that the stored function `create_jobs` turns into jobs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

import orjson

from everwork.core.job import NewJob
from everwork.core.leasing import Created, Stamp
from everwork.core.outcome import Complete
from everwork.exceptions import InvalidInput

DOCUMENT_BYTES_MAX = 200_000_000
"""PostgreSQL refuses a document of more than 256 MB."""

# The names of a job's fields in the document: they are parameters of a stored function, so they never change.
HEAD, VARIABLES, CARRIER = "h", "v", "f"
KEYS: Final = {
    "priority": "p",
    "delay_ms": "d",
    "run_at_ms": "r",
    "max_attempts": "m",
    "dedupe_key": "k",
    "limit_key": "l",
    "correlation_id": "c",
    "expires_at_ms": "e",
    "timeout_ms": "t",
    "headers": "b",
    "retry": "y",
    "extra": "x",
}
OPTIONS: Final = NewJob._fields.index("tenant") + 1
"""The index of the first option: options come after type, variables and tenant."""
OPTION_KEYS: Final = (*(KEYS[name] for name in NewJob._fields[OPTIONS:]), CARRIER)
OPTION_DEFAULTS: Final = NewJob("")[OPTIONS:]


def create_document(jobs: Sequence[NewJob], now_ms: int | None, stamp: Stamp | None = None) -> bytes:
    """The document that `create_jobs` takes."""
    document = document_of(((job, None) for job in jobs), now_ms)
    if stamp is not None:
        document["stamp"] = list(stamp)  # orjson does not accept named tuples.
    return packed(document)


def plain_values(job: NewJob) -> tuple[Any, ...] | None:
    """The arguments of `create_one` for a plain job; None for any other job."""
    if not job.is_plain or 4 * len(job.variables) > DOCUMENT_BYTES_MAX:
        return None
    return (
        job.type, job.tenant, job.limit_key or "", job.variables, job.priority, job.max_attempts, job.timeout_ms,
        job.headers, job.correlation_id, job.extra,
    )  # fmt: skip


def document_of(jobs: Iterable[tuple[NewJob, int | None]], now_ms: int | None) -> dict[str, Any]:
    """Jobs, each with the key of the completion that creates it, if any. Options with default values are left out."""
    heads: dict[tuple[str, str, str], int] = {}
    items: list[dict[str, Any]] = []
    has_dedupe = False
    for job, carrier in jobs:
        head = (job.type, job.tenant, job.limit_key or "")
        number = heads.get(head)
        if number is None:
            heads[head] = number = len(heads) + 1
        item: dict[str, Any] = {HEAD: number, VARIABLES: job.variables}
        options = job[OPTIONS:]
        if options != OPTION_DEFAULTS or carrier is not None:
            pairs = zip(OPTION_KEYS, (*options, carrier), strict=True)
            item.update((name, value) for name, value in pairs if value is not None)
            has_dedupe = has_dedupe or job.dedupe_key is not None
        items.append(item)
    document: dict[str, Any] = {"heads": list(heads), "jobs": items}
    if now_ms is not None:
        document["now"] = now_ms
    if has_dedupe:
        document["dedupe"] = True
    return document


def events_of(completions: Iterable[Complete], now_ms: int | None) -> dict[str, Any] | None:
    """The jobs that completions create, as a document; None if there are none."""
    carried = [(event, outcome.key) for outcome in completions if outcome.events for event in outcome.events]
    return document_of(carried, now_ms) if carried else None


def packed(document: object) -> bytes:
    """A document as JSON. Strings that no engine can store, such as lone surrogates, raise `UnicodeEncodeError`."""
    try:
        wire = orjson.dumps(document)
    except TypeError:
        wire = json.dumps(document, ensure_ascii=False).encode()
    if len(wire) > DOCUMENT_BYTES_MAX:
        raise InvalidInput("jobs", f"must be at most {DOCUMENT_BYTES_MAX:,} bytes in one call, not {len(wire):,}")
    return wire


def created_of(new_keys: Sequence[int], keys: Sequence[int]) -> list[Created]:
    """The answer for each job: a key other than the job's new one belongs to an earlier job."""
    return [Created(key, key != new) for new, key in zip(new_keys, keys, strict=True)]
