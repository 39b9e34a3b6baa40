"""Activations for remote callers, limited in bytes: jobs are leased in steps that depend on the sizes so far."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from everwork.core.job import LeasedJob
from everwork.core.leasing import Demand
from everwork.core.limits import ACTIVATE_BYTES_MAX, LEASE_STEP_MAX
from everwork.exceptions import EngineError, TooManyRequests
from everwork.service.jobs import Jobs
from everwork.service.service import JobService

STEP_FIRST: Final = 32
"""How many jobs are leased in the first step, while their size is unknown: even the largest ones fit."""
STEP_GROWTH: Final = 8
"""The factor by which the next step may grow if the jobs so far were small."""


async def activate_bounded(service: JobService, jobs: Jobs, demand: Demand, wait_ms: int) -> list[LeasedJob]:
    """`Jobs.activate`, up to ACTIVATE_BYTES_MAX: an activation ends with the job that exceeds it.

    Only the first step waits for jobs. Excess jobs are released, and the attempt is not counted.
    """
    step = min(demand.limit, STEP_FIRST)
    leased = await jobs.activate(demand._replace(limit=step), wait_ms)
    found = len(leased)
    try:
        while found == step and (step := next_step(demand.limit, leased, step)):
            more = await jobs.activate(demand._replace(limit=step))
            found = len(more)
            leased += more
    except (EngineError, TooManyRequests):
        pass  # The jobs leased so far are delivered.
    except BaseException:
        service.release_undelivered(leased)
        raise
    kept = _fitting(leased)
    service.release_undelivered(leased[kept:])
    return leased[:kept]


def next_step(limit: int, leased: Sequence[LeasedJob], step: int) -> int:
    """How many jobs to lease next: as many as fit if none is larger than the largest so far; 0 at the end."""
    sizes = [len(job.variables) for job in leased]
    fitting = (ACTIVATE_BYTES_MAX - sum(sizes)) // (max(sizes) + 1)
    return max(0, min(limit - len(leased), fitting, step * STEP_GROWTH, LEASE_STEP_MAX))


def _fitting(leased: Sequence[LeasedJob]) -> int:
    """How many of the jobs fit; some may not, if they are larger than expected."""
    before = accumulate((len(job.variables) for job in leased), initial=0)
    return sum(size < ACTIVATE_BYTES_MAX for size, _ in zip(before, leased, strict=False))
