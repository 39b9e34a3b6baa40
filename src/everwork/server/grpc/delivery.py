"""Delivers leased jobs to their worker: what was not written to the connection is released immediately."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from everwork.core.job import LeasedJob
from everwork.exceptions import CallTimeout
from everwork.server.grpc.gateway import Context
from everwork.service.service import JobService


async def deliver(
    service: JobService, context: Context, jobs: Sequence[LeasedJob], messages: Iterable[tuple[bytes, int]]
) -> None:
    """Write messages, each with the number of jobs that it carries, in the jobs' order.

    The jobs are ours until `write` has returned for their message: if it raises, or the caller disconnects,
    the remaining ones are released.
    """
    written = 0
    try:
        for message, carried in messages:
            await context.write(message)
            written += carried
    finally:
        if written < len(jobs):
            service.hand_back(jobs[written:])


def wait_ms(context: Context, seconds_max: float) -> int:
    """How long a poll may wait: never past the caller's deadline, which it must not see as a failure.

    Once the deadline has passed, nothing may be leased any more: the caller would not read it.
    """
    remaining: float | None = context.time_remaining()
    if remaining is None:
        return round(seconds_max * 1000)
    if remaining <= 0:
        raise CallTimeout("the caller's deadline has passed")
    return max(0, round(min(seconds_max, remaining - min(0.5, 0.1 + remaining * 0.05)) * 1000))
