"""Seeded mutants: small ways to break an engine, applied at run time. The checker must catch every one.

Each replacement asserts that it found what it replaces, so that a mutant cannot become a sound engine unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final

from tests.torture.faults import engine_of

DROP_ATTEMPT_CHECK: Final = "drop-attempt-check"
ACK_BEFORE_COMMIT: Final = "ack-before-commit"
NO_ATTEMPT_ON_CRASH: Final = "no-attempt-on-crash"
RELEASE_WITHOUT_STATE_CHECK: Final = "release-without-state-check"
SWEEP_WITHOUT_HORIZON: Final = "sweep-without-horizon"
TRIGGER_FROM_NOW: Final = "trigger-from-now"
COUNTER_OUTSIDE_TRANSACTION: Final = "counter-outside-transaction"
ATTEMPT_REUSED_AFTER_RELEASE: Final = "attempt-reused-after-release"
ATTEMPT_REUSED_AFTER_REQUEUE: Final = "attempt-reused-after-requeue"
DEDUPE_IGNORED: Final = "dedupe-ignored"
EVENTS_WITHOUT_COMPLETION: Final = "events-without-completion"
REPEAT_FORGOTTEN: Final = "repeat-forgotten"

EVERY: Final = tuple(
    sorted(value for name, value in list(globals().items()) if name.isupper() and isinstance(value, str))
)
MISSED: Final = "NOT CAUGHT"


def apply(name: str, url: str) -> None:
    """Break the engine of this process in the way that the name says; an empty name leaves it sound."""
    if name:
        _mutations(engine_of(url))[name]()


def names(engine: str) -> tuple[str, ...]:
    """The mutants that an engine has."""
    return tuple(_mutations(engine))


def _mutations(engine: str) -> dict[str, Callable[[], None]]:
    # Loaded when asked for: the mutants of one engine need nothing of the others.
    own: dict[str, Callable[[], None]] = import_module(f"tests.torture.mutants_{engine}").MUTATIONS
    return {**own, TRIGGER_FROM_NOW: _trigger_from_now}


def _trigger_from_now() -> None:
    """Nothing in the engine: whoever fires builds the dedupe key from now, see `plan.trigger_requests`."""
