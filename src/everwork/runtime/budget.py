"""The budget of a tick: how many jobs it may lease, and what it has done."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence

from everwork.core.leasing import Judged
from everwork.core.outcome import Complete, Outcome, Release
from everwork.runtime.capacity import Capacity, FetchRequest
from everwork.runtime.source import Report

AttemptId = tuple[int, int]
"""A job's key and the number of its attempt."""


class Budget:
    """Limits a fetcher; written in the engine's thread, read when the fetcher has ended."""

    def __init__(self, jobs_max: int) -> None:
        self.jobs_left = jobs_max
        self.begun: set[AttemptId] = set()
        self.completed: set[AttemptId] = set()
        self.released: set[AttemptId] = set()
        self.failed: list[AttemptId] = []
        """Failed attempts, whether or not they will be retried."""

    @property
    def lost(self) -> int:
        """How many began and have no outcome."""
        return len(self.begun.difference(self.completed, self.released, self.failed))

    def requests(self, capacities: Collection[Capacity], round: int) -> list[FetchRequest]:
        """An equal share of the remaining jobs for each handler that may have more."""
        pollable, left, requests = self.pollable(capacities, round), self.jobs_left, list[FetchRequest]()
        for at, capacity in enumerate(pollable):
            more = capacity.requests(math.ceil(left / (len(pollable) - at)), round)
            left -= sum(request.limit for request in more)
            requests += more
        return requests

    def pollable(self, capacities: Collection[Capacity], round: int) -> list[Capacity]:
        """The handlers that may have more jobs."""
        pollable = [capacity for capacity in capacities if capacity.may_have_more(round)]
        if len(pollable) > self.jobs_left:
            random.shuffle(pollable)  # Not all can be polled: the next tick may choose others.
        return pollable

    def note_begun(self, reports: Sequence[Report]) -> None:
        """Count the attempts that began."""
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
