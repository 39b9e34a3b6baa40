"""Jobs whose JSON was damaged in the store: when leased, they become dead letters, so that they block no others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from everwork.codec.json import decode, decode_stored_object
from everwork.core.ending import unusable
from everwork.core.job import LeasedJob, StoredJob
from everwork.core.leasing import Judged
from everwork.core.outcome import Outcome
from everwork.exceptions import EngineError, InvalidInput
from everwork.logs import get_logger

log = get_logger("everwork")

_OBJECTS: Final = ("variables", "headers", "extra")
EMPTY: Final = "{}"

Settle = Callable[[Sequence[Outcome]], Awaitable[list[Judged]]]


def is_damaged(job: StoredJob) -> bool:
    """Whether the JSON of a job, or of its result, cannot be read."""
    try:
        decode("null" if job.result is None else job.result)
    except (ValueError, TypeError):
        return True
    return damage_of(job) is not None


def damage_of(job: LeasedJob | StoredJob) -> str | None:
    """What is wrong with the JSON that a handler gets; None if it can be read."""
    if job.variables == EMPTY and job.headers is None and job.extra is None:
        return None
    try:
        for name in _OBJECTS:
            if (text := getattr(job, name)) is not None:
                decode_stored_object(name, text if isinstance(text, str) else "")
    except InvalidInput as error:
        return str(error)
    return None


async def without_damaged(jobs: list[LeasedJob], settle: Settle) -> list[LeasedJob]:
    """The jobs that can be delivered; the others fail permanently, with the reason."""
    damaged = [(job, damage) for job in jobs if (damage := damage_of(job)) is not None]
    if not damaged:
        return jobs
    for job, damage in damaged:
        log.error("a job is damaged in the store and becomes a dead letter", job=job.key, type=job.type, error=damage)
    try:
        await settle([unusable(job.key, job.attempt, damage) for job, damage in damaged])
    except EngineError as error:
        # Their leases expire, which counts as an attempt, and they are leased again.
        log.error(
            "could not move damaged jobs to the dead letters, retrying when their leases expire",
            jobs=len(damaged),
            error=str(error),
        )
    keys = {job.key for job, _ in damaged}
    return [job for job in jobs if job.key not in keys]
