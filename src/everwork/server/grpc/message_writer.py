"""Outgoing messages of a worker stream: items are collected while one message is written, and sent in the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from everwork.codec.proto_requests import leased_job_message
from everwork.core.job import LeasedJob
from everwork.core.leasing import Lease, LeaseStatus
from everwork.exceptions import TooManyRequests
from everwork.proto import work_pb2
from everwork.server.grpc.intake import RETRY_MS, UNREAD, HeldBytes

MESSAGE_BYTES_MAX: Final = 1_000_000
"""A message ends with the job that exceeds this size, far below the limit of clients."""
ENVELOPE_BYTES: Final = 200
REFUSALS_MAX: Final = 2_000
LOSSES_MAX: Final = 10_000
"""The maximum number of items in one message: even with the largest jobs, it stays below 3 MiB."""
REPORTS_MAX: Final = 20_000
"""If this many refusals and lost leases are unwritten, no more outcomes are judged: the worker is not reading.
With this many lost leases, nothing more is read from it."""
UNWRITTEN_JOBS_MAX: Final = 1_000
"""If this many jobs are unwritten, no more are leased: the connection is slow, and leases would expire."""
UNWRITTEN_BYTES_MAX: Final = 8 * 1_048_576
"""The same for the size of their variables: a worker that does not read must not exhaust the memory."""


Send = Callable[[bytes], Coroutine[Any, Any, None]]


class MessageWriter:
    """A single task, `run`, does the writing; after `stop`, `unwritten` returns the jobs that were not written.

    The bytes of unwritten jobs are held in `undelivered` for `caller`, the API key.
    """

    def __init__(
        self, send: Send, on_send: Callable[[Sequence[LeasedJob]], None], undelivered: HeldBytes, caller: str
    ) -> None:
        self._send = send
        self._on_send = on_send
        self._undelivered = undelivered
        self._caller = caller
        self._jobs: list[LeasedJob] = []
        self._jobs_bytes = 0
        self._in_flight: list[LeasedJob] = []
        self._next = work_pb2.ToWorker()
        self._settled = 0
        self._refusals: list[work_pb2.Refusal] = []
        self._losses: list[work_pb2.Loss] = []
        self._has_reports = False
        self._is_stopped = False
        self._wakeup = asyncio.Event()
        self._written = asyncio.Event()

    def jobs(self, jobs: Sequence[LeasedJob]) -> None:
        """Add jobs, to be written with the next message or `flush`; refused if too many bytes are unwritten."""
        if self._jobs_bytes >= UNWRITTEN_BYTES_MAX:
            raise TooManyRequests(UNREAD, RETRY_MS)
        self._jobs_bytes += self._undelivered.hold(self._caller, _bytes_of(jobs))
        self._jobs += jobs

    def flush(self) -> None:
        """Write what was added."""
        self._wakeup.set()

    def welcome(self, server: str, heartbeat_ms: int, lost: Sequence[tuple[Lease, LeaseStatus]]) -> None:
        """Add the welcome, the first message."""
        losses = [_loss(lease, status) for lease, status in lost]
        self._next.welcome.CopyFrom(work_pb2.Welcome(server=server, heartbeat_ms=heartbeat_ms, lost=losses))
        self._mark()

    def judged(self, settled: int, refusals: Sequence[work_pb2.Refusal]) -> None:
        """Report how many outcomes have been judged, and which were refused, in the order of their numbers."""
        self._settled = settled
        self._refusals += refusals
        self._mark()

    def lost(self, lease: Lease, status: LeaseStatus) -> None:
        """Report a lost lease."""
        self._losses.append(_loss(lease, status))
        self._mark()

    def closing(self) -> None:
        """Report that the server is stopping."""
        self._next.closing = True
        self._mark()

    async def run(self) -> None:
        """Write until `stop`; never cancelled, because a call cannot be ended by a status during a write."""
        while not self._is_stopped:
            await self._wakeup.wait()
            self._wakeup.clear()
            while (self._jobs or self._has_reports) and not self._is_stopped:
                message = self._message()
                # Called before the write returns, because the worker may answer earlier.
                self._on_send(self._in_flight)
                await self._send(message.SerializeToString())
                self._done(self._in_flight)
                self._in_flight = []

    def stop(self) -> None:
        """Begin no other write."""
        self._is_stopped = True
        self._wakeup.set()

    async def has_capacity(self) -> None:
        """Wait until the worker has read most of what was sent."""
        while self._is_full:
            await self.next_write()

    async def can_report_losses(self) -> None:
        """Wait until the worker has read most of its lost leases; jobs that it has not read do not matter."""
        while len(self._losses) >= REPORTS_MAX:
            await self.next_write()

    @property
    def _is_full(self) -> bool:
        if len(self._jobs) >= UNWRITTEN_JOBS_MAX or self._jobs_bytes >= UNWRITTEN_BYTES_MAX:
            return True
        return len(self._refusals) + len(self._losses) >= REPORTS_MAX

    async def next_write(self) -> None:
        """Wait until the next message has been written."""
        self._written.clear()
        await self._written.wait()

    @property
    def is_empty(self) -> bool:
        """Whether everything is written."""
        return not (self._jobs or self._has_reports or self._in_flight)

    def take_waiting(self) -> list[LeasedJob]:
        """Remove and return the jobs that are not being written yet."""
        jobs, self._jobs = self._jobs, []
        self._done(jobs)
        return jobs

    def unwritten(self) -> list[LeasedJob]:
        """Remove and return the jobs that never reached the connection."""
        self._done(self._in_flight)
        jobs, self._in_flight = self._in_flight + self.take_waiting(), []
        return jobs

    def _done(self, jobs: Sequence[LeasedJob]) -> None:
        """Count jobs as written or released."""
        size = _bytes_of(jobs)
        self._jobs_bytes -= size
        self._undelivered.release(self._caller, size)
        self._written.set()

    def _mark(self) -> None:
        self._has_reports = True
        self._wakeup.set()

    def _message(self) -> work_pb2.ToWorker:
        message, self._next = self._next, work_pb2.ToWorker()
        message.refusals.extend(self._refusals[:REFUSALS_MAX])
        message.losses.extend(self._losses[:LOSSES_MAX])
        del self._refusals[:REFUSALS_MAX], self._losses[:LOSSES_MAX]
        # The count of judged outcomes is sent together with their refusals, never before.
        message.settled = self._refusals[0].number - 1 if self._refusals else self._settled
        self._has_reports = bool(self._refusals or self._losses)
        message.jobs.extend(self._next_jobs())
        return message

    def _next_jobs(self) -> list[work_pb2.Job]:
        jobs: list[work_pb2.Job] = []
        size = 0
        for job in self._jobs:
            message = leased_job_message(job)
            jobs.append(message)
            size += len(message.variables) + len(message.headers) + len(message.extra) + ENVELOPE_BYTES
            if size > MESSAGE_BYTES_MAX:
                break
        self._in_flight, self._jobs = self._jobs[: len(jobs)], self._jobs[len(jobs) :]
        return jobs


def _bytes_of(jobs: Sequence[LeasedJob]) -> int:
    return sum([len(job.variables) for job in jobs])


def _loss(lease: Lease, status: LeaseStatus) -> work_pb2.Loss:
    held = work_pb2.Lease(key=lease.key, attempt=lease.attempt)
    return work_pb2.Loss(lease=held, cancelled=status is LeaseStatus.CANCELLED)
