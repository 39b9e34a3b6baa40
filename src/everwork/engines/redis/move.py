"""dump and load: whole jobs, with history and policy, from one store to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from everwork.core.job import StoredJob
from everwork.core.limits import HISTORY_ENTRIES_MAX
from everwork.core.states import State
from everwork.engines.contract.moving import Moving
from everwork.engines.redis.opened import RedisBase
from everwork.engines.redis.records import (
    LETTER_OF,
    dedupe_field,
    entry_text,
    history_of,
    id_of,
    job_of,
    lane_of,
    payload_of,
    queue_of,
    rare_values,
    record_of,
)
from everwork.engines.redis.wire import Arg
from everwork.engines.rules import readable, rounds_in
from everwork.engines.values import JobRecord
from everwork.exceptions import InvalidInput

KEY_MAX: Final = 2**53 - 1
"""Numbers in Lua are exact up to this one."""


class RedisMoving(RedisBase, Moving):
    """Dump and load."""

    async def dump(self, after: int, limit: int) -> list[JobRecord]:
        while True:
            columns = await self._connection.read("dump", id_of(after), limit)
            records = readable(_job_record, zip(*columns, strict=True))
            ids = columns[0]
            if records or not ids:
                return records
            after = int(ids[-1])  # All of them are damaged, but there may be more.

    async def load(self, records: Sequence[JobRecord]) -> int:
        connection = self._connection
        args: list[Arg] = []
        for record in records:
            if record.job.key > KEY_MAX:
                raise InvalidInput("key", f"must be at most {KEY_MAX} on Redis, not {record.job.key}")
            args += _record_args(record)
        return int(await connection.call("load", *args)) if args else 0


def _job_record(stored: Sequence[Any]) -> JobRecord:
    id, *of_job, own_policy, entries = stored
    state, _, error, _, _ = of_job
    job = cast("StoredJob", job_of(int(id), of_job))
    record = record_of(state)
    history = history_of(record, error, entries)[-HISTORY_ENTRIES_MAX:]
    retry = own_policy.decode() if own_policy is not None else None
    return JobRecord(job, int(record.created_max_attempts), retry, tuple(history))


def _record_args(record: JobRecord) -> list[Arg]:
    job = record.job
    field = "" if job.dedupe_key is None else dedupe_field(job.type, job.tenant, job.dedupe_key)
    history = [entry_text(entry) for entry in record.past]
    error = "" if job.last_error is None else f"={job.error_code or ''}\0{job.last_error}"
    result = "" if job.result is None else f"={job.result}"
    rounds = rounds_in(record.history)
    lease = "" if job.lease_until_ms is None else job.lease_until_ms
    return [
        id_of(job.key), _state_text(record), payload_of(job.variables, rare_values(job)), error, result, field,
        record.retry or "", lease, rounds, len(history), *history,
    ]  # fmt: skip


def _state_text(record: JobRecord) -> str:
    job = record.job
    kind = record.history[-1].kind if record.history and job.state in (State.FAILED, State.CANCELLED) else ""
    values = (
        LETTER_OF[job.state], job.attempt, job.attempts, job.max_attempts, record.created_max_attempts, job.priority,
        queue_of(job.type, job.group), lane_of(job.tenant, job.limit_key), job.expires_at_ms,
        None if job.copy_of is None else id_of(job.copy_of), kind, job.activated_at_ms, job.finished_at_ms, job.worker,
    )  # fmt: skip
    tail = "\n".join("" if value is None else str(value) for value in values)
    return f"{job.run_at_ms:015d}{job.created_at_ms:015d}{tail}"
