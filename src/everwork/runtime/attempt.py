"""An attempt in this process, shared by the engine's thread, which extends its lease, and the handlers' loop."""

from __future__ import annotations

import asyncio
import time
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from everwork.core.outcome import Complete

if TYPE_CHECKING:
    from everwork.runtime.events import EventCollector
    from everwork.runtime.handler import Handler
    from everwork.runtime.ledger import Ledger


class Stop(Enum):
    """Why a running attempt must stop."""

    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"
    LOST = "lost"
    SHUTDOWN = "shutdown"


class AttemptJob(Protocol):
    """The fields of every job, leased from a store or received on a stream."""

    @property
    def key(self) -> int:
        """The job's key."""

    @property
    def type(self) -> str:
        """The job's type."""

    @property
    def attempt(self) -> int:
        """The number of the attempt."""

    @property
    def attempts(self) -> int:
        """The number of attempts that count, including this one."""

    @property
    def max_attempts(self) -> int:
        """The maximum number of attempts."""

    @property
    def timeout_ms(self) -> int | None:
        """The time limit of one attempt, if the job has one."""


class Attempt:
    """A leased job in this process.

    Each attribute is written by one thread only. Either the handlers' thread starts the attempt, or the engine's thread
    releases it before that; a token that only one of them can take decides which.
    """

    __slots__ = (
        "_token", "begun_at", "collector", "completion", "error", "extended_at", "handler", "is_ending", "is_free",
        "is_reported", "job", "leased_at", "pause", "slot", "stop", "task", "thread", "timeout",
    )  # fmt: skip

    def __init__(self, job: AttemptJob, leased_at: float, handler: Handler) -> None:
        self.job = job
        self.handler = handler
        self.leased_at = leased_at
        self.extended_at = leased_at
        self.timeout = handler.timeout if job.timeout_ms is None else job.timeout_ms / 1000
        self.begun_at: float | None = None
        self.stop: Stop | None = None
        self.is_reported = False
        self.task: asyncio.Task[None] | None = None
        self.thread: asyncio.Future[Any] | None = None
        self.completion: Complete | None = None
        """The completion that the handler wrote inside its own transaction."""
        self.collector: EventCollector | None = None
        """The events of the last successful call."""
        self.error: BaseException | None = None
        """The exception that the handler raised."""
        self.pause: float | None = None
        """Seconds to wait before the attempt is released, because a store was unavailable."""
        self.slot: int | None = None
        """The attempt's slot in the ledger that this process shares with its parent."""
        self.is_ending = False
        """Whether the engine's thread has the outcome, but has not settled it yet."""
        self.is_free = False
        """Whether the engine's thread knows that the handler has ended."""
        self._token = [True]

    def begin(self, now: float) -> bool:
        """Start the attempt, unless it was released."""
        try:
            self._token.pop()  # `take`, inlined: this runs for every job.
        except IndexError:
            return False
        self.begun_at = now
        return True

    def take(self) -> bool:
        """Claim the right to start the attempt, or to release it before it starts; False if already claimed."""
        try:
            return self._token.pop()
        except IndexError:
            return False

    def enter(self, ledger: Ledger) -> None:
        """Write the attempt into the ledger of this process."""
        job = self.job
        self.slot = ledger.enter(
            job.key, job.attempt, leased_at=self.leased_at, timeout=self.timeout, worker=self.handler.index
        )

    def close(self, ledger: Ledger) -> None:
        """Leave the ledger once all is settled; an attempt running past its timeout stays, marked as hung."""
        slot = self.slot
        if slot is None:
            return
        if self.is_free:
            self.slot = None
            ledger.leave(slot)
        elif self.is_overdue(time.monotonic()):
            ledger.mark_hung(slot)

    def is_overdue(self, now: float) -> bool:
        """Whether the attempt has run, or waited here, longer than its timeout."""
        return now > (self.leased_at if self.begun_at is None else self.begun_at) + self.timeout

    def log_facts(self) -> dict[str, Any]:
        """The attempt's fields for log lines."""
        handler, job = self.handler, self.job
        titled = {"worker": handler.name, "title": handler.title} if handler.title else {"worker": handler.name}
        return {**titled, "key": job.key, "attempt": job.attempt, "type": job.type}

    @property
    def is_in_thread(self) -> bool:
        """Whether the handler runs in a thread, which cannot be stopped."""
        return self.thread is not None and not self.thread.done()
