"""create: the document that the database turns into jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from everwork.core.job import NewJob
from everwork.core.outcome import Complete
from everwork.engines.values import Created


def create_document(jobs: Sequence[NewJob], now_ms: int | None) -> bytes:
    """What `create_jobs` takes."""
    return orjson.dumps(document_of(((job, None) for job in jobs), now_ms))


def document_of(jobs: Iterable[tuple[NewJob, int | None]], now_ms: int | None) -> dict[str, Any]:
    """Jobs, each with the key of the completion that carries it, if one does. What is not said takes no room."""
    heads: dict[tuple[str, str, str], int] = {}
    items: list[dict[str, Any]] = []
    has_dedupe = False
    for job, carrier in jobs:
        (
            type, variables, tenant, priority, delay_ms, run_at_ms, max_attempts, dedupe_key, limit_key, correlation_id,
            expires_at_ms, timeout_ms, headers, retry, extra,
        ) = job  # fmt: skip
        head = (type, tenant, limit_key or "")
        number = heads.get(head)
        if number is None:
            heads[head] = number = len(heads) + 1
        item: dict[str, Any] = {"h": number, "v": variables}
        if priority:
            item["p"] = priority
        if run_at_ms is not None:
            item["r"] = run_at_ms
        elif delay_ms:
            item["d"] = delay_ms
        if dedupe_key is not None:
            item["k"] = dedupe_key
            has_dedupe = True
        if max_attempts is not None:
            item["m"] = max_attempts
        rare = (correlation_id, expires_at_ms, timeout_ms, headers, retry, extra, carrier)
        if rare != NOTHING_RARE:
            item.update((name, value) for name, value in zip(RARE, rare, strict=True) if value is not None)
        items.append(item)
    document: dict[str, Any] = {"heads": list(heads), "jobs": items}
    if now_ms is not None:
        document["now"] = now_ms
    if has_dedupe:
        document["dedupe"] = True
    return document


RARE = ("c", "e", "t", "b", "y", "x", "f")
NOTHING_RARE = (None,) * len(RARE)


def created_of(fresh: Sequence[int], keys: Sequence[int]) -> list[Created]:
    """The answer for each job: a key that is not the fresh one is an earlier job's."""
    return [Created(key, key != own) for own, key in zip(fresh, keys, strict=True)]


def events_of(completions: Iterable[Complete], now_ms: int | None) -> dict[str, Any] | None:
    """The jobs that completions carry, as a document; None if there are none."""
    carried = [(event, outcome.key) for outcome in completions if outcome.events for event in outcome.events]
    return document_of(carried, now_ms) if carried else None
