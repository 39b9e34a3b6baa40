"""How many jobs a handler or a tick can lease, and from which queues.

A worker has one capacity for all of its queues. Requests never exceed the free capacity, so queues take turns when
there are more of them than free slots.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from everwork.core.leasing import Judged
from everwork.core.limits import ACTIVATE_MAX
from everwork.core.outcome import Complete, Outcome, Release
from everwork.runtime.handler import Handler, QueueKey
from everwork.runtime.source import Report

PREFETCH_SECONDS: Final = 0.1
"""Prefetch only jobs that should start within about this time: another process may be free to run them sooner."""
UNLIMITED: Final = 2**31
"""Larger than any capacity, so it sets no further limit."""
AMPLE_PER_QUEUE: Final = 4
"""With this many free slots per queue, each queue is polled every time."""
EMPTY_QUEUE_TURNS: Final = 8
"""With fewer slots and quick jobs, a queue that was empty is polled only every few turns while others have work."""


class QueueState:
    """The state of a queue after the last requests."""

    __slots__ = ("emptied_in", "is_empty", "key", "turn")

    def __init__(self, key: QueueKey) -> None:
        self.key = key
        self.is_empty = False
        """Whether the last request returned nothing."""
        self.emptied_in = -1
        """The round of requests in which the queue returned fewer jobs than requested."""
        self.turn = 0
        """The turn in which the queue is polled next, if there is not enough capacity to poll all queues every time."""


class FetchRequest(NamedTuple):
    """How many jobs to request from a queue."""

    capacity: Capacity
    queue: QueueState
    limit: int


class Capacity:
    """The capacity of one handler: how many jobs are leased, how long one takes, and its queues."""

    __slots__ = ("_turn", "concurrency", "handler", "is_off", "leased", "queues", "seconds")

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.concurrency = handler.concurrency
        self.queues = [QueueState(key) for key in handler.queues]
        self.leased = 0
        self.is_off = False
        self.seconds: float | None = None
        self._turn = 0

    @property
    def free(self) -> int:
        """How many more jobs can be leased: free runners, plus jobs that will start soon."""
        return 0 if self.is_off else self._room - self.leased

    @property
    def overrun(self) -> int:
        """How many more jobs are leased than there is capacity for."""
        return max(0, self.leased - self._room)

    @property
    def has_room_for_every_queue(self) -> bool:
        """Whether there is capacity for one job of each queue."""
        return self.free >= len(self.queues)

    @property
    def _room(self) -> int:
        """How many jobs can be leased: one per runner, plus jobs that will start soon."""
        prefetch = 0
        if self.seconds is not None:
            prefetch = int(self.concurrency * min(1.0, PREFETCH_SECONDS / max(self.seconds, 1e-6)))
        return self.concurrency + prefetch

    @property
    def _is_quick(self) -> bool:
        """Whether jobs are so quick that polling an empty queue costs about as much as running a job."""
        return self.seconds is not None and self.seconds < PREFETCH_SECONDS

    def add_duration(self, seconds: float) -> None:
        """Update the average duration with attempts that have just ended."""
        self.seconds = seconds if self.seconds is None else 0.7 * self.seconds + 0.3 * seconds

    def requests(self, limit: int, round: int) -> list[FetchRequest]:
        """The requests to make now: in total at most the free capacity and at most `limit`."""
        free, queues = min(self.free, limit), self.queues
        if free <= 0:
            return []
        if len(queues) == 1:
            return [FetchRequest(self, queues[0], min(free, ACTIVATE_MAX))]
        self._turn += 1
        if free < AMPLE_PER_QUEUE * len(queues):
            queues = self._worth_polling(round)[:free]
        return self._split(free, queues)

    def _worth_polling(self, round: int) -> list[QueueState]:
        """The queues to poll. While others have work, empty queues wait their turn, so that no slot stays idle."""
        if any(not queue.is_empty and queue.emptied_in != round for queue in self.queues):
            due = [queue for queue in self.queues if not queue.is_empty or queue.turn <= self._turn]
            return sorted(due, key=lambda queue: queue.turn)
        return sorted(self.queues, key=lambda queue: (queue.emptied_in == round, queue.turn))

    def _split(self, free: int, queues: Sequence[QueueState]) -> list[FetchRequest]:
        """Request one job from each queue, and the rest from those that returned jobs last time."""
        busy = {queue for queue in queues if not queue.is_empty} or set(queues)
        share, more = divmod(free - len(queues), len(busy))
        requests = []
        for queue in queues:
            limit = 1
            if queue in busy:
                limit += share + (1 if more > 0 else 0)
                more -= 1
            requests.append(FetchRequest(self, queue, min(limit, ACTIVATE_MAX)))
        return requests

    def record(self, request: FetchRequest, got: int, round: int) -> None:
        """Record how many jobs a request returned."""
        queue = request.queue
        self.leased += got
        queue.is_empty = got == 0
        queue.emptied_in = round if got < request.limit else -1
        queue.turn = self._turn + (EMPTY_QUEUE_TURNS if got == 0 and self._is_quick else 1)

    def may_have_more(self, round: int) -> bool:
        """Whether there is free capacity, and a queue that has not been emptied in this round of requests."""
        return self.free > 0 and any(queue.emptied_in != round for queue in self.queues)


AttemptId = tuple[int, int]
"""A job's key and the number of its attempt."""


class Budget:
    """The budget of a tick: how many jobs it can lease, and the counts of what it has done.

    Written in the engine's thread, read after the fetcher has ended.
    """

    def __init__(self, jobs_max: int) -> None:
        self.jobs_left = jobs_max
        self.begun: set[AttemptId] = set()
        self.completed: set[AttemptId] = set()
        self.released: set[AttemptId] = set()
        self.failed: list[AttemptId] = []
        """Failed attempts, whether or not they will be retried."""

    @property
    def lost(self) -> int:
        """How many attempts started but have no outcome."""
        return len(self.begun.difference(self.completed, self.released, self.failed))

    def requests(self, capacities: Collection[Capacity], round: int) -> list[FetchRequest]:
        """An equal share of the remaining jobs for each handler whose queues may have more."""
        pollable, left, requests = self.pollable(capacities, round), self.jobs_left, list[FetchRequest]()
        for at, capacity in enumerate(pollable):
            more = capacity.requests(math.ceil(left / (len(pollable) - at)), round)
            left -= sum(request.limit for request in more)
            requests += more
        return requests

    def pollable(self, capacities: Collection[Capacity], round: int) -> list[Capacity]:
        """The handlers whose queues may have more jobs."""
        pollable = [capacity for capacity in capacities if capacity.may_have_more(round)]
        if len(pollable) > self.jobs_left:
            random.shuffle(pollable)  # There are too many to poll all of them: the next tick may choose others.
        return pollable

    def note_begun(self, reports: Sequence[Report]) -> None:
        """Count the attempts that started."""
        self.begun |= {(one.job.key, one.job.attempt) for one, _, _ in reports if one.begun_at is not None}

    def count_accepted(self, outcomes: Sequence[Outcome], judged: Sequence[Judged]) -> None:
        """Count the outcomes that the engine has accepted."""
        for outcome, one in zip(outcomes, judged, strict=True):
            if one.ok:
                self._count(outcome)

    def _count(self, outcome: Outcome) -> None:
        attempt = (outcome.key, outcome.attempt)
        match outcome:
            case Release():
                self.released.add(attempt)
            case Complete():
                self.completed.add(attempt)
            case _:
                self.failed.append(attempt)
