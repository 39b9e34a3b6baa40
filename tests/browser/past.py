"""A day of a shop, written into a store through the contract alone: the clock is moved, and everything happens."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from everwork.core.job import LeasedJob, NewJob
from everwork.core.leasing import Demand
from everwork.core.outcome import Complete, Failed, Outcome, Reject, Throw
from everwork.engines.contract import Engine
from tests.stores import HOUR_MS, MINUTE_MS, VirtualClock

HOURS: Final = 24
LEASE_MS: Final = 10 * MINUTE_MS
SLICES: Final = 6

Told = Callable[[], Awaitable[object]]


class Kind(NamedTuple):
    """A type: jobs a minute, how long one takes, who does it, and what goes wrong."""

    type: str
    jobs: float
    run_ms: int
    worker: str
    errors: Sequence[tuple[str, ...]] = ()
    every: int = 40
    """One of so many jobs meets an error."""


REFUSED: Final = ("ConnectionError: connection refused by hooks.example.org:443", "ConnectionError")
SLOW: Final = ("TimeoutError: timed out after 60 s", "TimeoutError")
BUSY: Final = ("HTTPError: 429 too many requests, rate limit of the partner reached", "HTTPError")
KEYED: Final = ("KeyError: 'street'", "KeyError", "LookupError")

KINDS: Final = (
    Kind("email-send", 14, 180, "mailer@web-1", [SLOW, REFUSED], 60),
    Kind("image-resize", 9, 900, "studio@gpu-1"),
    Kind("webhook-deliver", 6, 420, "courier@web-2", [REFUSED, BUSY, SLOW], 9),
    Kind("search-index", 5, 60, "indexer@web-2"),
    Kind("invoice-render", 2, 2_600, "accountant@web-1", [KEYED], 25),
    Kind("payment-charge", 3, 700, "cashier@pay-1", [BUSY], 50),
    Kind("sms-send", 1, 300, "mailer@web-2", [("the number is no mobile phone",)], 12),
)


class Past:
    """Lets time pass in a store."""

    def __init__(self, engine: Engine, clock: VirtualClock) -> None:
        self._engine = engine
        self._clock = clock
        self._chance = random.Random(7)
        self._number = 1000

    async def write(self, minutes: int, told: Told) -> None:
        """A day until the clock's now: the last minutes, each told when it is over, and one of each hour before."""
        now_ms = self._clock.now_ms
        early = [now_ms - hours * HOUR_MS for hours in range(HOURS, minutes // 60 + 1, -1)]
        late = [now_ms - minutes * MINUTE_MS for minutes in range(minutes, 0, -1)]
        self._clock.now_ms = early[0]
        for begins_ms in (*early, *late):
            self._clock.now_ms = max(begins_ms, self._clock.now_ms)
            await self.minute(begins_ms)
            if begins_ms in late:
                self._clock.now_ms = max(self._clock.now_ms, begins_ms + MINUTE_MS)
                await told()
        self._clock.now_ms = now_ms

    async def minute(self, at_ms: int) -> None:
        """Jobs are created, taken and ended, as many as is usual at this hour."""
        await self._engine.create([job for kind in KINDS for job in self._jobs(kind, at_ms)])
        self._clock.advance(ms=self._chance.randint(15, 900))
        demands = [Demand(kind.type, kind.worker, 500, LEASE_MS) for kind in KINDS]
        leased = (await self._engine.activate(demands)).jobs
        durations = sorted((self._duration(job), job.key, job) for job in leased)
        began_ms, size = self._clock.now_ms, -(-len(durations) // SLICES)
        for start in range(0, len(durations), size):
            part = durations[start : start + size]
            self._clock.now_ms = began_ms + part[-1][0]
            await self._engine.settle([outcome_of(job) for _, _, job in part])

    def _jobs(self, kind: Kind, at_ms: int) -> list[NewJob]:
        # Evenings are quieter: a chart of a day shall not be a wall.
        daily = 1.0 + 0.5 * (1 - abs((at_ms // HOUR_MS) % 24 - 12) / 6)
        return [self._job(kind.type) for _ in range(max(1, round(kind.jobs * daily * self._chance.uniform(0.6, 1.4))))]

    def _job(self, type: str) -> NewJob:
        self._number += 1
        number = self._number
        said = {"order": number, "customer": f"c-{number % 97:03d}", "to": f"ada{number % 41}@example.org"}
        tenant = ("<default>", "<default>", "acme", "globex")[number // 7 % 4]
        return NewJob(type, json.dumps(said), tenant=tenant, correlation_id=f"order-{number}")

    def _duration(self, job: LeasedJob) -> int:
        median = next(kind.run_ms for kind in KINDS if kind.type == job.type)
        return max(1, round(median * self._chance.lognormvariate(0, 0.6)))


def outcome_of(job: LeasedJob) -> Outcome:
    """How an attempt ends; some jobs never succeed, others at the second attempt."""
    kind = next(one for one in KINDS if one.type == job.type)
    if job.key % kind.every or not kind.errors:
        return Complete(job.key, job.attempt, json.dumps({"done": True, "order": job.key}))
    if job.key % 3 and job.attempts > 1:
        return Complete(job.key, job.attempt, json.dumps({"done": True, "attempts": job.attempts}))
    return _failure(job, kind)


def _failure(job: LeasedJob, kind: Kind) -> Outcome:
    text, *classes = kind.errors[job.key // kind.every % len(kind.errors)]
    if not classes:
        return Reject(job.key, job.attempt, text)
    if kind.type == "invoice-render":
        return Throw(job.key, job.attempt, "ADDRESS_INCOMPLETE", f"{text}: order {job.key} has no street")
    return Failed(job.key, job.attempt, text, classes=tuple(classes), is_counted=False)
