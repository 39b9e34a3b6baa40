"""Poll timing, and delivery of leased jobs; jobs that do not reach the worker are released."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from everwork.core.job import LeasedJob
from everwork.core.leasing import Demand
from everwork.exceptions import CallTimeout
from everwork.service.activation import activate_bounded
from everwork.service.jobs import Jobs

if TYPE_CHECKING:
    from everwork.server.grpc.gateway import Context, Gateway

TRAVEL_SECONDS: Final = 0.1
"""A deadline equal to the poll's duration arrives slightly shorter; this difference is tolerated."""
LATE_SECONDS: Final = 0.02
"""Jobs written closer than this to the caller's deadline may never be read."""


class PollTime(NamedTuple):
    """How long a poll waits; `is_cut` means that the caller's deadline comes before the poll's own end."""

    wait_ms: int
    is_cut: bool

    def require_in_time(self, gateway: Gateway) -> None:
        """End a poll that found no jobs; raise an error if the caller's deadline cut it short."""
        if self.is_cut and not gateway.stopping.is_set():
            raise CallTimeout("no job became due before the caller's deadline")


def poll_time(context: Context, seconds_max: float) -> PollTime:
    """How long a poll may wait: it stops a moment before the caller's deadline, so that nothing is leased too late."""
    remaining: float | None = context.time_remaining()
    if remaining is None:
        return PollTime(round(seconds_max * 1000), is_cut=False)
    _require_time(remaining, 0.0)
    seconds = min(seconds_max, remaining - min(0.5, 0.1 + remaining * 0.05))
    return PollTime(max(0, round(seconds * 1000)), is_cut=remaining < seconds_max - TRAVEL_SECONDS)


async def lease(gateway: Gateway, api: str, jobs: Jobs, demand: Demand, wait_ms: int) -> list[LeasedJob]:
    """Wait for jobs, at most as many as one activation may return; damaged jobs are left out."""
    with gateway.metrics.polling(api):
        leased = await activate_bounded(gateway.service, jobs, demand, wait_ms)
        return await gateway.service.deliverable(leased)


async def deliver(
    gateway: Gateway, context: Context, jobs: Sequence[LeasedJob], messages: Iterable[tuple[bytes, int]], *, caller: str
) -> None:
    """Write messages, each with the number of jobs that it carries, in the jobs' order; `caller` is its API key.

    The server owns the jobs until `write` has returned for their message: if it raises, or the caller disconnects,
    the remaining jobs are released. The same applies once the caller's deadline has passed or is about to.
    """
    written = size = 0
    try:
        size = gateway.undelivered.hold(caller, sum([len(job.variables) for job in jobs]))
        for message, carried in messages:
            _require_time(context.time_remaining(), LATE_SECONDS)
            await context.write(message)
            written += carried
    finally:
        gateway.undelivered.release(caller, size)
        if written < len(jobs):
            gateway.service.release_undelivered(jobs[written:])


def _require_time(remaining: float | None, seconds: float) -> None:
    if remaining is not None and remaining <= seconds:
        raise CallTimeout("the caller's deadline has passed")
