"""What an entry of a stream says: `payload`, a JSON object with kwargs, optional headers and expires."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from everwork.codec.json import decode_object, encode_object
from everwork.core import checks
from everwork.core.instants import instant_ms
from everwork.core.job import NewJob
from everwork.core.limits import DELAY_MS_MAX, HEADERS_BYTES_MAX, INSTANT_MS_MAX, PAYLOAD_BYTES_MAX
from everwork.exceptions import InvalidInput

BATCH_BYTES_MAX: Final = 8_000_000
"""Entries are read, and jobs created, in portions of about this size."""


def portions(jobs: Sequence[NewJob]) -> Iterator[list[NewJob]]:
    """The jobs in their order, in portions of a bounded size; one that is larger stands alone."""
    portion: list[NewJob] = []
    taken = 0
    for job in jobs:
        size = len(job.variables) + len(job.headers or "")
        if portion and taken + size > BATCH_BYTES_MAX:
            yield portion
            portion, taken = [], 0
        portion.append(job)
        taken += size
    if portion:
        yield portion


def job_of_entry(type: str, entry_id: str, fields: Mapping[bytes, bytes]) -> NewJob:
    """The job that an entry asks for; what is wrong with it is an `InvalidInput`."""
    payload = fields.get(b"payload")
    if payload is None:
        raise InvalidInput("payload", 'is missing; write XADD <type> * payload {"kwargs": {...}}')
    told = decode_object("payload", payload, PAYLOAD_BYTES_MAX + HEADERS_BYTES_MAX)
    if "kwargs" not in told:
        raise InvalidInput("kwargs", "is missing in the payload; it must be a JSON object")
    headers = told.get("headers")
    if told.get("delay") is not None and told.get("run_at") is not None:
        raise InvalidInput("delay", "must not be given together with run_at; give one of them")
    return NewJob(
        type,
        encode_object("kwargs", told["kwargs"], PAYLOAD_BYTES_MAX),
        dedupe_key=f"inbox:{entry_id}",
        headers=None if headers is None else encode_object("headers", headers, HEADERS_BYTES_MAX),
        delay_ms=checks.milliseconds("delay", told.get("delay") or 0, 0, DELAY_MS_MAX / 1000),
        run_at_ms=_moment_ms("run_at", told.get("run_at")),
        expires_at_ms=_moment_ms("expires", told.get("expires")),
    )


def _moment_ms(field: str, value: Any) -> int | None:
    """A moment in ISO 8601 with a time zone, or in seconds since 1970."""
    if value is None:
        return None
    if not isinstance(value, str):
        return checks.milliseconds(field, value, 0, INSTANT_MS_MAX / 1000)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise InvalidInput(field, f"must be a moment in ISO 8601, not {checks.shown(value)}") from None
    if moment.tzinfo is None:
        raise InvalidInput(field, f"must have a time zone, like 2030-01-31T12:00:00Z, not {checks.shown(value)}")
    return checks.whole_number(field, instant_ms(moment), 0, INSTANT_MS_MAX)
