"""The ledger of a soak: which jobs were acknowledged, which ran, and whether the store's counts match."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from everwork.client import Client
from everwork.core.job import StoredJob
from everwork.core.limits import STATISTICS_KEEP_HOURS
from everwork.core.queries import JobFilter, Stats
from everwork.core.states import State
from everwork.engines.contract import Engine
from everwork.engines.open import open_engine
from tests.soak.kinds import DOOMED, EXACT

DRAIN_SECONDS_MAX: Final = 180.0
_PAGE: Final = 500
_SHOWN_MAX: Final = 10


@dataclass(slots=True)
class Ledger:
    """By type: the keys of acknowledged jobs and cancellations, and the number of calls without a response."""

    acknowledged: dict[str, set[int]] = field(default_factory=dict)
    cancelled: dict[str, set[int]] = field(default_factory=dict)
    unanswered: Counter[str] = field(default_factory=Counter)

    def create(self, type: str, key: int) -> None:
        """A create was acknowledged."""
        self.acknowledged.setdefault(type, set()).add(key)

    def cancel(self, type: str, key: int) -> None:
        """A cancel was acknowledged."""
        self.cancelled.setdefault(type, set()).add(key)

    def forget(self, type: str, key: int) -> None:
        """A cancel got no response: whether the job will complete is unknown, as after a create without a response."""
        self.acknowledged[type].discard(key)
        self.unanswered[type] += 1

    @property
    def jobs(self) -> int:
        """How many jobs were acknowledged."""
        return sum(map(len, self.acknowledged.values()))


def keys_that_ran(folder: Path) -> set[int]:
    """The jobs that workers have logged; an incomplete line of a killed worker is ignored."""
    found: set[int] = set()
    for path in folder.glob("ran-*.txt"):
        lines = path.read_bytes().split(b"\n")
        found.update(int(line) for line in lines[:-1] if line)
    return found


async def drain(client: Client) -> dict[str, int]:
    """Wait until no job is pending or running; returns what is left, by type."""
    until = time.monotonic() + DRAIN_SECONDS_MAX
    while (left := _left(await client.stats(1))) and time.monotonic() < until:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.5)
    return left


async def violations(ledger: Ledger, folder: Path, client: Client) -> list[str]:
    """The discrepancies after all jobs have finished; empty if there are none."""
    stats = await client.stats(STATISTICS_KEEP_HOURS)
    found = [f"{count} jobs of {type} have not finished" for type, count in _left(stats).items()]
    there = keys_that_ran(folder)
    for type, keys in ledger.acknowledged.items():
        missing = sorted(keys - there - ledger.cancelled.get(type, set()))
        if missing:
            found.append(f"{len(missing)} acknowledged jobs of {type} never ran: {missing[:_SHOWN_MAX]}")
    return found + _uneven(ledger, stats)


def _uneven(ledger: Ledger, stats: Stats) -> list[str]:
    """Types whose number of completions differs from their jobs; a create without a response may have taken effect."""
    completed: Counter[str] = Counter()
    for hour in stats.hours:
        completed[hour.type] += hour.completed
    found = ["the statistics were too long for one message"] if stats.partial else []
    for type in (one for one in EXACT if one in ledger.acknowledged):
        least = len(ledger.acknowledged[type] - ledger.cancelled.get(type, set()))
        if not least <= completed[type] <= least + ledger.unanswered[type]:
            problem = f"{completed[type]} completions of {type} in the statistics, but {least} jobs to complete"
            found.append(f"{problem} and {ledger.unanswered[type]} creates without an answer")
    return found


class AtRest(NamedTuple):
    """A store that no process uses any more: its engine and version, and which of its counts are wrong."""

    store: str
    violations: list[str]


async def at_rest(url: str) -> AtRest:
    """Compare the counts with the jobs listed.

    While servers run, retention deletes jobs between any two reads, so the counts are never stable.
    """
    engine = open_engine(url)
    await engine.open()
    try:
        health = await engine.health()
        counted: Counter[str] = Counter()
        for one in await engine.count():
            counted[one.state.label] += one.jobs
        listed = Counter([job.state.label async for job in _all_jobs(engine)])
    finally:
        await engine.close()
    different = [state for state in sorted(set(+counted) | set(listed)) if counted[state] != listed[state]]
    found = [f"{counted[state]} {state} jobs counted, {listed[state]} listed" for state in different]
    return AtRest(f"{health.engine} {health.version}", found)


async def _all_jobs(engine: Engine) -> AsyncIterator[StoredJob]:
    cursor: int | None = None
    while True:
        page = await engine.find(JobFilter(), _PAGE, cursor)
        for job in page.jobs:
            yield job
        if (cursor := page.next) is None:
            return


def _left(stats: Stats) -> dict[str, int]:
    """Jobs that have not finished, except those of schedules, which continue until the workers stop."""
    found: Counter[str] = Counter()
    for one in stats.counts:
        if one.state in (State.PENDING, State.PROCESSING) and one.type in (*EXACT, DOOMED):
            found[one.type] += one.jobs
    return dict(+found)
