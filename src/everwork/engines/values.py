"""Parameters and results of the engine contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from everwork.core.job import HistoryEntry, NewJob, StoredJob
from everwork.core.leasing import Created
from everwork.core.states import State


class Durability(Enum):
    """The failures that an accepted job survives."""

    POWER_LOSS = "power-loss"
    PROCESS_CRASH = "process-crash"
    NONE = "none"


class JobRecord(NamedTuple):
    """A complete job, as one store dumps it and another loads it.

    A requeue resets max_attempts to `created_max_attempts`; `retry` is the job's own retry policy.
    """

    job: StoredJob
    created_max_attempts: int
    retry: str | None
    history: tuple[HistoryEntry, ...]

    @property
    def past(self) -> tuple[HistoryEntry, ...]:
        """The history without the completion or cancellation, which is stored with the finished job."""
        return self.history[:-1] if self.job.state in (State.COMPLETED, State.CANCELLED) else self.history


@dataclass(frozen=True, slots=True)
class Swept:
    """What one step of the sweep did. `more`: run another step immediately."""

    lapsed: int = 0
    expired: int = 0
    requeued: int = 0
    deleted: int = 0
    more: bool = False


class StoreProblem(NamedTuple):
    """A problem with the store itself, and what to do about it; a note needs no action."""

    text: str
    advice: str
    is_note: bool = False


class Schema(NamedTuple):
    """The version of a store's schema (None: it has none yet), and the newest version this program knows."""

    stored: int | None
    newest: int


class Registered(NamedTuple):
    """A registry entry. `until_ms` is when it expires (None: never)."""

    kind: str
    name: str
    body: str
    until_ms: int | None


class TriggerMark(NamedTuple):
    """The progress of a trigger: when it was first registered, and its last scheduled time that has passed."""

    began_ms: int
    last_ms: int


class TriggerMarks(NamedTuple):
    """The marks of triggers at the engine's current time, in the order of the request."""

    now_ms: int
    marks: list[TriggerMark]


class Fire(NamedTuple):
    """A scheduled time of a trigger and the job that it creates; None: no job is created."""

    trigger: str
    point_ms: int
    job: NewJob | None


class Fired(NamedTuple):
    """The result of a scheduled time: the job that it created (None if the time had already passed), and the mark."""

    created: Created | None
    mark: TriggerMark


@dataclass(frozen=True, slots=True)
class Health:
    """Version, schema and settings of an engine."""

    engine: str
    version: str
    schema_version: int
    durability: Durability
    details: Mapping[str, str] = field(default_factory=dict)
