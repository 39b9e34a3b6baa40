"""What a stream has to tell its worker: gathered while a message is being written, and told by the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from everwork.codec.proto_replies import leased_job_message
from everwork.core.job import LeasedJob
from everwork.core.leasing import Lease, LeaseStatus
from everwork.proto import work_pb2

MESSAGE_BYTES_MAX: Final = 1_000_000
"""A message ends with the job that takes it over this size, which leaves it far below what clients refuse."""
ENVELOPE_BYTES: Final = 200
REFUSALS_MAX: Final = 2_000
LOSSES_MAX: Final = 10_000
"""How many one message carries: together with the largest jobs it stays below 3 MiB."""
WORDS_MAX: Final = 20_000
"""With so many refusals and losses unwritten no more outcomes are judged: the worker does not listen."""
WRITE_SECONDS_MAX: Final = 1.0
"""How long the end of a stream waits for a worker that takes nothing."""
WAITING_MAX: Final = 1_000
"""With so many jobs unwritten no more are leased: the connection is slow, and leases run."""


Send = Callable[[bytes], Coroutine[Any, Any, None]]


class Outbox:
    """Lives in one task, `run`; what was not written when it ends is answered by `unwritten`."""

    def __init__(self, send: Send, leaving: Callable[[Sequence[LeasedJob]], None]) -> None:
        self._send = send
        self._leaving = leaving
        self._jobs: list[LeasedJob] = []
        self._on_the_way: list[LeasedJob] = []
        self._next = work_pb2.ToWorker()
        self._settled = 0
        self._refusals: list[work_pb2.Refusal] = []
        self._losses: list[work_pb2.Loss] = []
        self._has_words = False
        self._writing: asyncio.Future[None] | None = None
        self._wakeup = asyncio.Event()
        self._turned = asyncio.Event()

    def jobs(self, jobs: Sequence[LeasedJob]) -> None:
        """Jobs for the worker."""
        self._jobs += jobs
        self._wakeup.set()

    def welcome(self, server: str, heartbeat_ms: int, lost: Sequence[tuple[Lease, LeaseStatus]]) -> None:
        """The first answer."""
        losses = [_loss(lease, status) for lease, status in lost]
        self._next.welcome.CopyFrom(work_pb2.Welcome(server=server, heartbeat_ms=heartbeat_ms, lost=losses))
        self._say()

    def judged(self, settled: int, refusals: Sequence[work_pb2.Refusal]) -> None:
        """So many outcomes have been judged; these of them, in the order of their numbers, were refused."""
        self._settled = settled
        self._refusals += refusals
        self._say()

    def lost(self, lease: Lease, status: LeaseStatus) -> None:
        """A lease no longer holds."""
        self._losses.append(_loss(lease, status))
        self._say()

    def closing(self) -> None:
        """The server stops."""
        self._next.closing = True
        self._say()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            while self._jobs or self._has_words:
                message = self._message()
                # Before they are written: the worker may answer before we know that they are.
                self._leaving(self._on_the_way)
                self._writing = asyncio.ensure_future(self._send(message.SerializeToString()))
                self._writing.add_done_callback(_seen)
                await asyncio.shield(self._writing)
                self._on_the_way = []
                self._turned.set()

    async def has_room(self) -> None:
        """Wait until the worker has taken most of what it was sent."""
        while len(self._jobs) >= WAITING_MAX or len(self._refusals) + len(self._losses) >= WORDS_MAX:
            await self.turn()

    async def turn(self) -> None:
        """Wait until one more message is written."""
        self._turned.clear()
        await self._turned.wait()

    async def quiet(self) -> None:
        """Wait for the message that is being written: a call whose write is under way cannot be ended by a status."""
        if self._writing is None:
            return
        done, _ = await asyncio.wait([self._writing], timeout=WRITE_SECONDS_MAX)
        if done and not self._writing.cancelled() and self._writing.exception() is None:
            self._on_the_way = []

    @property
    def is_empty(self) -> bool:
        """Whether everything is written."""
        return not (self._jobs or self._has_words or self._on_the_way)

    def waiting(self) -> list[LeasedJob]:
        """The jobs that are not on their way yet; they will not go."""
        jobs, self._jobs = self._jobs, []
        return jobs

    def unwritten(self) -> list[LeasedJob]:
        """The jobs that never reached the connection."""
        jobs, self._on_the_way = self._on_the_way + self.waiting(), []
        return jobs

    def _say(self) -> None:
        self._has_words = True
        self._wakeup.set()

    def _message(self) -> work_pb2.ToWorker:
        message, self._next = self._next, work_pb2.ToWorker()
        message.refusals.extend(self._refusals[:REFUSALS_MAX])
        message.losses.extend(self._losses[:LOSSES_MAX])
        del self._refusals[:REFUSALS_MAX], self._losses[:LOSSES_MAX]
        # What has been judged is told together with its refusals, never before.
        message.settled = self._refusals[0].number - 1 if self._refusals else self._settled
        self._has_words = bool(self._refusals or self._losses)
        message.jobs.extend(self._next_jobs())
        return message

    def _next_jobs(self) -> list[work_pb2.Job]:
        jobs: list[work_pb2.Job] = []
        size = 0
        for job in self._jobs:
            one = leased_job_message(job)
            jobs.append(one)
            size += len(one.variables) + len(one.headers) + len(one.extra) + ENVELOPE_BYTES
            if size > MESSAGE_BYTES_MAX:
                break
        self._on_the_way, self._jobs = self._jobs[: len(jobs)], self._jobs[len(jobs) :]
        return jobs


def _seen(writing: asyncio.Future[None]) -> None:
    """An error of a write that nobody waits for any more is no news: the worker has gone."""
    if not writing.cancelled():
        writing.exception()


def _loss(lease: Lease, status: LeaseStatus) -> work_pb2.Loss:
    held = work_pb2.Lease(key=lease.key, attempt=lease.attempt)
    return work_pb2.Loss(lease=held, cancelled=status is LeaseStatus.CANCELLED)
