"""Values on their way to workers and servers, as messages of our own services."""

from __future__ import annotations

from everwork.core.job import LeasedJob, NewJob
from everwork.proto import work_pb2


def job_message(job: LeasedJob) -> work_pb2.Job:
    """A leased job on its way to a worker."""
    message = work_pb2.Job(
        key=job.key,
        attempt=job.attempt,
        type=job.type,
        group=job.group,
        tenant=job.tenant,
        variables=job.variables.encode(),
        attempts=job.attempts,
        max_attempts=job.max_attempts,
        lease_until_ms=job.lease_until_ms,
        run_at_ms=job.run_at_ms,
        created_at_ms=job.created_at_ms,
    )
    if job.headers is not None:
        message.headers = job.headers.encode()
    if job.priority:
        message.priority = job.priority
    if job.timeout_ms is not None:
        message.timeout_ms = job.timeout_ms
    if job.correlation_id is not None:
        message.correlation_id = job.correlation_id
    if job.limit_key is not None:
        message.limit_key = job.limit_key
    if job.extra is not None:
        message.extra = job.extra.encode()
    return message


def new_job_message(job: NewJob) -> work_pb2.NewJob:
    """A checked job on its way to a server."""
    return work_pb2.NewJob(
        type=job.type,
        variables=job.variables.encode(),
        tenant=job.tenant,
        priority=job.priority,
        delay_ms=job.delay_ms,
        run_at_ms=job.run_at_ms,
        max_attempts=job.max_attempts or 0,
        dedupe_key=job.dedupe_key or "",
        limit_key=job.limit_key or "",
        correlation_id=job.correlation_id or "",
        expires_at_ms=job.expires_at_ms,
        timeout_ms=job.timeout_ms,
        headers=(job.headers or "").encode(),
        retry=(job.retry or "").encode(),
        extra=(job.extra or "").encode(),
    )
