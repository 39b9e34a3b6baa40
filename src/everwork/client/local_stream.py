"""A stream on a store in this process: the same methods as a remote stream, without a server in between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from everwork.aio.retrying import backoff_delays, engine_outage, retrying
from everwork.client.job import ActiveJob
from everwork.client.stream import CreditKey, Refused, Stream
from everwork.core.leasing import Demand, Judged, Lease, LeaseStatus, accepted
from everwork.core.limits import SETTLE_BATCH_MAX
from everwork.core.outcome import Failed, Outcome, Throw
from everwork.exceptions import EngineError, EverworkError, JobError, TooManyRequests
from everwork.service.fleet.clients import type_name
from everwork.service.verb import IN_PROCESS

if TYPE_CHECKING:
    from everwork.client.client import Client
    from everwork.client.local import LocalTransport

FEED_MAX: Final = 500
POLL_MS: Final = 30_000
CHECK_SECONDS: Final = 1.0
"""How often the stream checks whether its leases are still valid."""


class LocalStream(Stream):
    """One worker's stream on a store that this process has opened."""

    def __init__(self, client: Client, worker: str, lease_ms: int) -> None:
        super().__init__(client, worker, lease_ms)
        self._transport = cast("LocalTransport", client.transport)
        self._outcomes: list[Outcome] = []
        self._settling: list[Outcome] = []
        self._wakeup = asyncio.Event()
        self._is_settled = asyncio.Event()
        """Cleared while the engine is unavailable: ended jobs are settled before others are leased."""
        self._is_settled.set()
        self._keeping: set[asyncio.Task[bool]] = set()
        self._feeds: dict[CreditKey, tuple[asyncio.Task[None], asyncio.Event]] = {}
        self.ended_jobs = 0
        """How many outcomes this stream has reported."""
        self._outage = engine_outage(f"stream of worker '{self.worker}'")

    @property
    def poller_key(self) -> tuple[str, str]:
        """How the service identifies this stream: as a caller in this process, with the worker's name."""
        return IN_PROCESS.principal.id, self.worker

    @property
    def types(self) -> list[str]:
        """The types that this stream has granted credits for."""
        return [type_name(key.type, key.group) for key in self._feeds]

    @property
    def running(self) -> int:
        """How many jobs this stream holds."""
        return len(self._held)

    def _granted(self, key: CreditKey, credits: int) -> None:  # noqa: ARG002 - already counted
        if key not in self._feeds:
            more = asyncio.Event()
            self._feeds[key] = (asyncio.get_running_loop().create_task(self._feed(key, more)), more)
            self._transport.service.clients.note_change()
        self._feeds[key][1].set()

    def _send(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        self.ended_jobs += 1
        if not self._is_settled.is_set():
            self._keep([outcome])
        self._wakeup.set()

    def _drained(self) -> None:
        for feed, _ in self._feeds.values():
            feed.cancel()
        self._feeds.clear()
        self._wakeup.set()

    async def _run(self) -> None:
        clients = self._transport.service.clients
        clients.add(self)
        tasks = [asyncio.ensure_future(self._send_heartbeats()), asyncio.ensure_future(self._keep_unanswered())]
        try:
            while not (self._is_draining and not (self._held or self._outcomes)):
                await self._wakeup.wait()
                self._wakeup.clear()
                while self._outcomes:
                    await self._settle_batch()
        finally:
            clients.remove(self)
            self._drained()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._keep([*self._settling, *self._outcomes])
            if self._keeping:
                await asyncio.wait(self._keeping)

    async def _settle_batch(self) -> None:
        batch, self._outcomes = self._outcomes[:SETTLE_BATCH_MAX], self._outcomes[SETTLE_BATCH_MAX:]
        self._settling = batch
        # Each outcome names its attempt, so sending it twice is safe.
        judged = await retrying(lambda: self._settle_once(batch), on=(EngineError,), outage=self._outage)
        self._settling = []
        for outcome, one in zip(batch, judged, strict=True):
            if (error := _refusal(outcome, one)) is not None:
                self._refused(Refused(outcome.key, outcome.attempt, str(error)))

    async def _settle_once(self, batch: list[Outcome]) -> list[Judged | EverworkError]:
        """Settle a batch. Leases can expire during an outage, so the first batches after it renew them if possible."""
        is_late = not self._is_settled.is_set()
        try:
            judged = await self._transport.jobs(0.0).settle_each(batch, is_late=is_late)
        except EngineError:
            if not is_late:
                self._is_settled.clear()
                self._keep([*batch, *self._outcomes])
            raise
        if not self._is_settled.is_set():
            # A refused outcome stays in the spool: the courier sets it aside with the reason.
            accepted = [one for one, judgement in zip(batch, judged, strict=True) if _refusal(one, judgement) is None]
            self._transport.service.forget_outcomes(accepted)
            if not self._outcomes:
                self._is_settled.set()
        return judged

    async def _keep_unanswered(self) -> None:
        """In offline mode, write outcomes that the engine does not settle in time to the spool."""
        patience = self._transport.service.patience
        while patience is not None:
            batch = self._settling
            await asyncio.sleep(patience)
            if batch and batch is self._settling and self._is_settled.is_set():
                self._is_settled.clear()
                self._keep([*batch, *self._outcomes])

    def _keep(self, outcomes: list[Outcome]) -> None:
        """In offline mode, write outcomes to the spool, except those with variables to merge into the job."""
        kept = [one for one in outcomes if not (isinstance(one, Failed | Throw) and one.variables is not None)]
        if not kept:
            return
        task = asyncio.get_running_loop().create_task(self._transport.service.keep_outcomes(kept))
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)

    async def _feed(self, key: CreditKey, more: asyncio.Event) -> None:
        delays = backoff_delays()
        while True:
            credits = self._credits.get((key.type, key.group), 0)
            if credits <= 0:
                more.clear()
                await more.wait()
                continue
            await self._is_settled.wait()
            demand = Demand(key.type, self.worker, min(credits, FEED_MAX), self._lease_ms, key.group, key.tenants)
            try:
                jobs = await self._transport.jobs(0.0).activate(demand, POLL_MS)
            except (EngineError, TooManyRequests) as error:
                self._outage.report(error)
                await asyncio.sleep(next(delays))
                continue
            delays = backoff_delays()
            if jobs:
                self._received([ActiveJob(job) for job in jobs])

    async def _send_heartbeats(self) -> None:
        """Extend the leases of the jobs held here, and detect cancelled jobs."""
        beats = max(round(self._lease_ms / 3000 / CHECK_SECONDS), 1)
        turn = 0
        while True:
            await asyncio.sleep(min(CHECK_SECONDS, self._lease_ms / 3000))
            turn += 1
            leases = [Lease(job.key, job.attempt) for job in self._held.values()]
            try:
                statuses = await self._statuses(leases, is_heartbeat=turn % beats == 0)
            except EngineError as error:
                self._outage.report(error)
                continue
            for lease, status in zip(leases, statuses, strict=True):
                if status is not LeaseStatus.HELD:
                    self._lost(lease.key, lease.attempt, is_cancelled=status is LeaseStatus.CANCELLED)

    async def _statuses(self, leases: list[Lease], *, is_heartbeat: bool) -> list[LeaseStatus]:
        service = self._transport.service
        if not leases:
            return []
        statuses = [] if is_heartbeat else await service.check(leases)
        if is_heartbeat or (LeaseStatus.LOST in statuses and service.is_late):
            return await service.extend_all(leases, self._lease_ms)
        return statuses


def _refusal(outcome: Outcome, judged: Judged | EverworkError) -> EverworkError | None:
    if isinstance(judged, EverworkError):
        return judged
    try:
        accepted(outcome.key, judged, "ended so")
    except JobError as error:
        return error
    return None
