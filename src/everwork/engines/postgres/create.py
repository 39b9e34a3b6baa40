"""create: the document that the database turns into jobs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from everwork.core.job import NewJob
from everwork.core.leasing import Created
from everwork.core.outcome import Complete
from everwork.exceptions import InvalidInput

DOCUMENT_BYTES_MAX = 200_000_000
"""PostgreSQL refuses a document of more than 256 MB."""


def packed(document: object) -> bytes:
    """A document as JSON. What no store can write, half a character say, is a `UnicodeEncodeError` on every engine."""
    try:
        wire = orjson.dumps(document)
    except TypeError:
        wire = json.dumps(document, ensure_ascii=False).encode()
    if len(wire) > DOCUMENT_BYTES_MAX:
        raise InvalidInput("jobs", f"must be at most {DOCUMENT_BYTES_MAX:,} bytes in one call, not {len(wire):,}")
    return wire


def create_document(jobs: Sequence[NewJob], now_ms: int | None) -> bytes:
    """What `create_jobs` takes."""
    return packed(document_of(((job, None) for job in jobs), now_ms))


def document_of(jobs: Iterable[tuple[NewJob, int | None]], now_ms: int | None) -> dict[str, Any]:
    """Jobs, each with the key of the completion that carries it, if one does. What is not said takes no room."""
    heads: dict[tuple[str, str, str], int] = {}
    items: list[dict[str, Any]] = []
    has_dedupe = False
    for job, carrier in jobs:
        head = (job[0], job[2], job[8] or "")
        number = heads.get(head)
        if number is None:
            heads[head] = number = len(heads) + 1
        item: dict[str, Any] = {"h": number, "v": job[1]}
        said = job[3:]
        if said != NOTHING_SAID or carrier is not None:
            item.update((name, value) for name, value in zip(NAMES, (*said, carrier), strict=True) if value is not None)
            has_dedupe = has_dedupe or job.dedupe_key is not None
        items.append(item)
    document: dict[str, Any] = {"heads": list(heads), "jobs": items}
    if now_ms is not None:
        document["now"] = now_ms
    if has_dedupe:
        document["dedupe"] = True
    return document


NAMES = ("p", "d", "r", "m", "k", "l", "c", "e", "t", "b", "y", "x", "f")
"""What the fields of a NewJob after its tenant are called in the document, and the job's carrier."""
NOTHING_SAID = NewJob("")[3:]


def created_of(fresh: Sequence[int], keys: Sequence[int]) -> list[Created]:
    """The answer for each job: a key that is not the fresh one is an earlier job's."""
    return [Created(key, key != own) for own, key in zip(fresh, keys, strict=True)]


def events_of(completions: Iterable[Complete], now_ms: int | None) -> dict[str, Any] | None:
    """The jobs that completions carry, as a document; None if there are none."""
    carried = [(event, outcome.key) for outcome in completions if outcome.events for event in outcome.events]
    return document_of(carried, now_ms) if carried else None
