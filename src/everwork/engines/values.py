"""What goes into the engine contract and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from everwork.core.job import HistoryEntry, Job, NewJob
from everwork.core.leasing import Created
from everwork.core.states import State


class Durability(Enum):
    """What an accepted job survives."""

    POWER_LOSS = "power-loss"
    PROCESS_CRASH = "process-crash"
    NONE = "none"


class JobRecord(NamedTuple):
    """A job with all that a store knows of it, so that another store can take it over.

    `created_max_attempts` is what a requeue goes back to, `retry` the job's own policy.
    """

    job: Job
    created_max_attempts: int
    retry: str | None
    history: tuple[HistoryEntry, ...]

    @property
    def past(self) -> tuple[HistoryEntry, ...]:
        """The history without how the job was completed or cancelled: that stands with the finished job."""
        return self.history[:-1] if self.job.state in (State.COMPLETED, State.CANCELLED) else self.history


@dataclass(frozen=True, slots=True)
class Swept:
    """What one step of the sweep did. `more` asks for another step at once."""

    lapsed: int = 0
    expired: int = 0
    requeued: int = 0
    deleted: int = 0
    more: bool = False


class Schema(NamedTuple):
    """The version of a store's schema (None: it has none yet), and the newest that this program knows."""

    stored: int | None
    newest: int


class Registered(NamedTuple):
    """An entry of the registry: who, what is said of it, and until when it holds (None: for ever)."""

    kind: str
    name: str
    body: str
    until_ms: int | None


class TriggerMark(NamedTuple):
    """Where a trigger stands: when it was first registered, and the last time point that it has passed."""

    began_ms: int
    last_ms: int


class TriggerMarks(NamedTuple):
    """Where triggers stand at the engine's now, in the order in which they were asked for."""

    now_ms: int
    marks: list[TriggerMark]


class Fire(NamedTuple):
    """A time point of a trigger and the job that it creates; None lets the point pass without one."""

    trigger: str
    point_ms: int
    job: NewJob | None


class Fired(NamedTuple):
    """What became of a time point: the job that it created, None if it had passed already; where the trigger stands."""

    created: Created | None
    mark: TriggerMark


@dataclass(frozen=True, slots=True)
class Health:
    """What the engine says of itself."""

    engine: str
    version: str
    schema_version: int
    durability: Durability
    details: Mapping[str, str] = field(default_factory=dict)
