"""The answer to a create: the jobs as they were stored, as long as they fit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import orjson

from everwork.core.job import Job, NewJob
from everwork.core.leasing import Created
from everwork.core.states import State
from everwork.exceptions import EngineError
from everwork.server.http.api.create import CHUNK
from everwork.server.http.framework.operations import Call
from everwork.service.report import job_report

ANSWER_CHARS_MAX: Final = 16 * 1_048_576
"""With so much of variables, headers and results an answer is full."""
UNKNOWN_CHUNK: Final = 20
"""So many jobs that somebody else has created may be in memory at once: each can have 2 MiB."""


def brief(created: Created) -> dict[str, Any]:
    """No more than the key."""
    return {"key": str(created.key), "deduplicated": created.deduplicated}


async def full_answer(call: Call, jobs: Sequence[NewJob], created: Sequence[Created]) -> list[dict[str, Any]]:
    """The jobs as they stand; when the answer is full, or no more can be read, the keys of the others."""
    step = UNKNOWN_CHUNK if any(one.deduplicated for one in created) else CHUNK
    reports: list[dict[str, Any]] = []
    chars = 0
    while chars < ANSWER_CHARS_MAX and len(reports) < len(created):
        some = slice(len(reports), len(reports) + step)
        try:
            found = await _read(call, jobs[some], created[some])
        except EngineError:
            break  # They are created all the same.
        for job, one in zip(found, created[some], strict=True):
            is_full = chars >= ANSWER_CHARS_MAX
            reports.append(brief(one) if is_full else _full(job, one))
            chars += _chars(job)
        await asyncio.sleep(0)
    return reports + [brief(one) for one in created[len(reports) :]]


async def _read(call: Call, jobs: Sequence[NewJob], created: Sequence[Created]) -> list[Job]:
    """Each job once, however often it was asked for."""
    keys = list(dict.fromkeys(one.key for one in created))
    found = dict(zip(keys, await call.desk.get_many(keys), strict=True))
    return [found[one.key] or _gone(new, one.key) for new, one in zip(jobs, created, strict=True)]


def _full(job: Job, created: Created) -> dict[str, Any]:
    return {**job_report(job, read=orjson.Fragment), "deduplicated": created.deduplicated}


def _chars(job: Job) -> int:
    return len(job.variables) + len(job.headers or "") + len(job.result or "") + len(job.extra or "")


def _gone(new: NewJob, key: int) -> Job:
    """A job that was created, run and deleted before it could be read: as it was asked for."""
    return Job(key=key, type=new.type, state=State.PENDING, tenant=new.tenant, variables=new.variables)
