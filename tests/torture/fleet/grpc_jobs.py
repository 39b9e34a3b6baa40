"""Gives our client the engine's methods, for `LoggedEngine`."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Sequence

from everwork.client import ActiveJob, Client
from everwork.core.job import NewJob
from everwork.core.leasing import Activation, Created, Judged, Lease, LeaseStatus, Settlement, Verdict
from everwork.core.outcome import Outcome
from everwork.core.states import State
from everwork.exceptions import JobNotFound, LeaseLost, WrongState
from tests.torture.fleet.parts import Eyes
from tests.torture.plan import PolledJob

NOTHING = Activation([], None, 0, ())


class GrpcJobs:
    """Calls to a server, through our client."""

    def __init__(self, client: Client, eyes: Eyes, worker: str) -> None:
        self._client = client
        self._eyes = eyes
        self._worker = worker

    async def create(self, jobs: Sequence[NewJob]) -> list[Created]:
        """Create jobs; one that is in a spool has no key yet."""
        created = await self._client.create_many(jobs)
        return [one._replace(key=-1) if one.is_spooled else one for one in created]

    async def poll(self, type: str, limit: int, lease_ms: int, wait: float, group: str = "") -> list[PolledJob]:
        """Lease jobs; if there are none, wait."""
        jobs = await self._client.activate(
            type, worker=self._worker, limit=limit, lease=lease_ms / 1000, wait=wait, group=group
        )
        return [self._seen(job) for job in jobs]

    def _seen(self, job: ActiveJob) -> PolledJob:
        self._eyes.look("activate", job._source.variables)
        counts = (job.attempt, job.attempts, job.max_attempts)
        return PolledJob(job.key, *counts, job.lease_until_ms, json.dumps(job.variables))

    async def settle(self, outcomes: Sequence[Outcome], _demands: object = ()) -> Settlement:
        """End attempts in one call."""
        return Settlement(await self._client.settle(outcomes), NOTHING)

    async def extend(self, leases: Sequence[Lease], lease_ms: int) -> list[LeaseStatus]:
        """Extend leases, one by one."""
        return [await self._extended(lease, lease_ms) for lease in leases]

    async def _extended(self, lease: Lease, lease_ms: int) -> LeaseStatus:
        try:
            await self._client.extend(lease, lease_ms / 1000)
        except (LeaseLost, JobNotFound, WrongState):
            return LeaseStatus.LOST
        return LeaseStatus.HELD

    async def cancel(self, keys: Sequence[int], reason: str) -> list[Judged]:
        """Cancel jobs, one by one."""
        return [await self._changed(self._client.cancel(key, reason)) for key in keys]

    async def requeue(self, keys: Sequence[int]) -> list[Judged]:
        """Requeue dead letters, one by one."""
        return [await self._changed(self._client.requeue(key)) for key in keys]

    async def _changed(self, call: Awaitable[State]) -> Judged:
        try:
            state = await call
        except JobNotFound:
            return Judged(Verdict.NOT_FOUND)
        except WrongState:
            return Judged(Verdict.WRONG_STATE)
        return Judged(Verdict.REPEATED if state is State.CANCELLED else Verdict.ACCEPTED, state)

    async def look(self, key: int) -> None:
        """Read a job that may belong to another tenant."""
        try:
            job = await self._client.get(key)
        except JobNotFound:
            return
        self._eyes.look("get", repr(job))
