"""The states of a job, and the single table of transitions between them.

Any change that is not in `TRANSITIONS` is refused and has no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Final


class State(IntEnum):
    """The state of a job. The numbers are stored, so they never change."""

    PENDING = 1
    PROCESSING = 2
    COMPLETED = 3
    FAILED = 4
    CANCELLED = 5

    @property
    def label(self) -> str:
        """The state's name in lowercase, as in JSON."""
        return self._name_.lower()  # Not `name`, which takes several times as long.


class Cause(Enum):
    """What can move a job from one state to another."""

    ACTIVATE = "activate"
    COMPLETE = "complete"
    FAIL = "fail"
    REJECT = "reject"
    THROW = "throw"
    LAPSE = "lapse"
    RELEASE = "release"
    RETRY = "retry"
    REQUEUE = "requeue"
    CANCEL = "cancel"
    EXPIRE = "expire"


TRANSITIONS: Final[Mapping[tuple[State, Cause], State]] = MappingProxyType(
    {
        (State.PENDING, Cause.ACTIVATE): State.PROCESSING,
        (State.PENDING, Cause.CANCEL): State.CANCELLED,
        (State.PENDING, Cause.EXPIRE): State.CANCELLED,
        (State.PROCESSING, Cause.CANCEL): State.CANCELLED,
        (State.PROCESSING, Cause.COMPLETE): State.COMPLETED,
        (State.PROCESSING, Cause.FAIL): State.FAILED,
        (State.PROCESSING, Cause.REJECT): State.FAILED,
        (State.PROCESSING, Cause.THROW): State.FAILED,
        (State.PROCESSING, Cause.LAPSE): State.FAILED,
        (State.PROCESSING, Cause.RELEASE): State.PENDING,
        (State.FAILED, Cause.RETRY): State.PENDING,
        (State.FAILED, Cause.REQUEUE): State.PENDING,
    }
)

LIVE_STATES: Final = frozenset({State.PENDING, State.PROCESSING})
FINISHED_STATES: Final = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})

SYNONYMS: Final[Mapping[str, State]] = MappingProxyType(
    {
        "ACTIVATED": State.PROCESSING,
        "RUNNING": State.PROCESSING,
        "ERROR": State.FAILED,
        "QUEUED": State.PENDING,
        **{state.name: state for state in State},
    }
)

ACTIVATABLE: Final = "ACTIVATABLE"
"""The filter name for pending jobs that are due: not a state, but a subset of one."""


def is_allowed(state: State, cause: Cause) -> bool:
    """Whether the table allows this cause for a job in this state."""
    return (state, cause) in TRANSITIONS


def after(state: State, cause: Cause) -> State:
    """The next state; the pair must be in the table."""
    return TRANSITIONS[state, cause]
