"""An attempt in this process: shared by the engine's thread, which keeps its lease, and the handlers' loop."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any

from everwork.core.job import LeasedJob
from everwork.core.outcome import Complete


class Stop(Enum):
    """Why a running attempt was told to stop."""

    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"
    LOST = "lost"
    SHUTDOWN = "shutdown"


class Attempt:
    """A leased job on its way through this process.

    Each attribute is written by one thread only. Who may begin the attempt, or take it back before it has begun,
    is settled between the threads by a token that only one of them can take.
    """

    __slots__ = (
        "_token", "begun_at", "completion", "extended_at", "is_reported", "job", "leased_at", "stop", "task", "thread",
        "timeout",
    )  # fmt: skip

    def __init__(self, job: LeasedJob, leased_at: float, timeout: float) -> None:
        self.job = job
        self.leased_at = leased_at
        self.extended_at = leased_at
        self.timeout = timeout if job.timeout_ms is None else job.timeout_ms / 1000
        self.begun_at: float | None = None
        self.stop: Stop | None = None
        self.is_reported = False
        self.task: asyncio.Task[None] | None = None
        self.thread: asyncio.Future[Any] | None = None
        self.completion: Complete | None = None
        """What the handler has written inside a transaction of its own."""
        self._token = [True]

    def begin(self, now: float) -> bool:
        """Begin, unless the attempt was taken back."""
        if not self.take():
            return False
        self.begun_at = now
        return True

    def take(self) -> bool:
        """Take the right to begin, or to hand back what has not begun; False if it is gone."""
        try:
            return self._token.pop()
        except IndexError:
            return False

    def is_overdue(self, now: float) -> bool:
        """Whether the attempt runs, or waits here, longer than it may."""
        return now > (self.leased_at if self.begun_at is None else self.begun_at) + self.timeout

    @property
    def is_in_thread(self) -> bool:
        """Whether its handler runs in a thread, which nobody can stop."""
        return self.thread is not None and not self.thread.done()
