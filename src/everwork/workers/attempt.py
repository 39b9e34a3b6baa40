"""An attempt in this process: shared by the engine's thread, which keeps its lease, and the handlers' loop."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any

from everwork.core.job import LeasedJob


class Stop(Enum):
    """Why a running attempt was told to stop."""

    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"
    LOST = "lost"
    SHUTDOWN = "shutdown"


class Attempt:
    """A leased job on its way through this process. Plain attributes: each is written by one thread only."""

    __slots__ = ("begun_at", "extended_at", "is_reported", "job", "leased_at", "stop", "task", "thread", "timeout")

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

    def is_overdue(self, now: float) -> bool:
        """Whether the attempt runs longer than it may."""
        return self.begun_at is not None and now > self.begun_at + self.timeout
