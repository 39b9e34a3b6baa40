"""What a judgement is made of: the promises by number, the final state, the violations found."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from everwork.core.job import HistoryEntry, StoredJob
from everwork.core.queries import Count, WorkerHour
from everwork.engines.values import TriggerMark
from tests.torture.history import Call

VIOLATIONS: Final[Mapping[str, str]] = {
    "V0": "unexpected errors, in any process or log",
    "V1": "acknowledged jobs missing or not terminal after the drain",
    "V2": "jobs that no producer created, refused jobs that exist, partial batches",
    "V3": "more than one job per dedupe key and group",
    "V4": "second terminal transitions without a requeue",
    "V5": "attempts over max_attempts, miscounted, or started twice",
    "V6": "overlapping leases; accepted outcomes of an old attempt",
    "V7": "activations after a terminal state",
    "V8": "ok responses without an effect",
    "V9": "refusals with an effect",
    "V10": "counters that do not add up to the jobs",
    "V11": "recoveries slower than promised; drains over 60 s",
    "V12": "scheduled times of a trigger fired twice or missed",
    "V13": "jobs or outcomes left in a spool, or set aside without a reason",
    "V14": "bytes of one tenant shown to another",
    "V15": "jobs that ran again after their completion was spooled, or without a reason",
    "V16": "more concurrent jobs than the limits of their type allow",
    "V17": "jobs of one producer created in a different order than acknowledged",
}
TIMING: Final = frozenset({"V11"})
"""Depends on the machine's speed: judged by `make torture`, shown only in the short lane among the tests."""

_SHOWN_MAX: Final = 20
OK: Final = ("accepted", "repeated", "stored")
"""`stored`: the caller learned that the outcome is stored, not whether it was reported before."""


@dataclass(slots=True)
class Overseen:
    """A manager as its nemesis knows it: whether its network is good, and when it was itself killed or stopped."""

    is_near: bool
    struck_ms: list[int] = field(default_factory=list)


class Spooled(NamedTuple):
    """What a spool holds at the end: a job by its id (then `attempt` is 0), or the outcome of an attempt."""

    spool: str
    key: int
    attempt: int
    reason: str | None


class Ticking(NamedTuple):
    """An interval trigger at the end: its name, the type of its jobs, where it stands, and up to when it must."""

    name: str
    type: str
    every_ms: int
    mark: TriggerMark
    due_ms: int


@dataclass(slots=True)
class FinalState:
    """What the engine shows after healing and draining."""

    jobs: dict[int, StoredJob]
    events: dict[int, list[HistoryEntry]]
    counts: list[Count] = field(default_factory=list)
    hours: list[WorkerHour] = field(default_factory=list)
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    drain_ms: int = 0
    slack_ms: int = 0
    stops: list[tuple[int, int]] = field(default_factory=list)
    """When a process was stopped: it may have stopped with the store's write lock in its hands."""
    managers: dict[str, Overseen] = field(default_factory=dict)
    deaths: dict[str, int] = field(default_factory=dict)
    """When processes of managers were killed, by the name of their history."""
    triggers: list[Ticking] = field(default_factory=list)
    spooled: list[Spooled] = field(default_factory=list)
    struck: list[tuple[str, int, int]] = field(default_factory=list)
    """Faults: what they affected (a process and its life, the store, the network), and when they began and ended."""
    ended: dict[str, int] = field(default_factory=dict)
    """When worker processes ended, by the names that they sent to servers."""
    jumps: list[tuple[int, int]] = field(default_factory=list)
    """When the host's clock jumped forward, and how far."""


@dataclass(slots=True)
class Verdict:
    """The violations found, by their number, and figures worth showing."""

    found: Counter[str] = field(default_factory=Counter)
    shown: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    figures: dict[str, int] = field(default_factory=dict)

    def violation(self, number: str, text: str) -> None:
        """Count a violation; the first of each kind are kept as examples."""
        self.found[number] += 1
        if len(self.shown[number]) < _SHOWN_MAX:
            self.shown[number].append(text)

    @property
    def passed(self) -> bool:
        """Whether nothing that must be zero is above it, timing aside."""
        return not any(count for number, count in self.found.items() if number not in TIMING)

    @property
    def passed_in_time(self) -> bool:
        """Whether nothing at all is above zero."""
        return not any(self.found.values())


def answered(call: Call) -> Iterable[tuple[Any, Any]]:
    """Each item of a call with its answer; a call that failed as a whole answers its status for each."""
    return zip(call.items, call.answers if call.status == "ok" else [call.status] * len(call.items), strict=True)


def fired_point(job: StoredJob) -> tuple[str, int] | None:
    """The trigger, by its name in the store, and the time point that a job was fired for; None: it was not."""
    if job.dedupe_key is None or not job.dedupe_key.startswith("trigger:"):
        return None
    _, worker_id, trigger_id, point_ms = job.dedupe_key.split(":")
    return f"{worker_id}/{trigger_id}", int(point_ms)


def variables_of(job: StoredJob) -> dict[str, Any]:
    variables: dict[str, Any] = json.loads(job.variables)
    return variables
