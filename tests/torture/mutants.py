"""Seeded mutants: small ways to break an engine, applied at run time. The checker must catch every one.

Each replacement asserts that it found what it replaces, so that a mutant cannot become a sound engine unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final

from everwork.core import schedule
from everwork.manager import cleanup
from tests.torture.faults import engine_of
from tests.torture.replacing import replace_source

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
TIME_POINT_FROM_NOW: Final = "time-point-from-now"
MARK_NOT_GUARDED: Final = "mark-not-guarded"
BEGUN_RELEASED_AFTER_DEATH: Final = "begun-released-after-death"
UNBEGUN_KEPT_AFTER_DEATH: Final = "unbegun-kept-after-death"

EVERY: Final = tuple(
    sorted(value for name, value in list(globals().items()) if name.isupper() and isinstance(value, str))
)
MISSED: Final = "NOT CAUGHT"


def apply(name: str, url: str) -> None:
    """Break the engine of this process in the way that the name says; an empty name leaves it sound."""
    if name:
        _mutations(engine_of(url))[name]()


def names(engine: str) -> tuple[str, ...]:
    """The mutants that an engine has, and those of what stands above every engine."""
    return tuple(_mutations(engine))


def _mutations(engine: str) -> dict[str, Callable[[], None]]:
    # Loaded when asked for: the mutants of one engine need nothing of the others.
    own: dict[str, Callable[[], None]] = import_module(f"tests.torture.mutants_{engine}").MUTATIONS
    return {**own, **_OF_EVERY_ENGINE}


def _trigger_from_now() -> None:
    """Nothing in the engine: whoever fires builds the dedupe key from now, see `plan.trigger_requests`."""


def _time_point_from_now() -> None:
    """The points are counted back from when somebody looks."""
    on_the_grid, from_now = "began_ms + at * interval_ms", "span.end_ms - (last - at) * interval_ms"
    replace_source(schedule, "_latest_of_interval", on_the_grid, from_now)


def _begun_released_after_death() -> None:
    """A call that dies with its process costs no attempt: a job that kills its process would never end."""
    counted = 'return Failed(entry.key, entry.attempt, error_text(f"its process'
    replace_source(cleanup, "_of_begun", counted, f"return Release(entry.key, entry.attempt)\n    {counted}")


def _unbegun_kept_after_death() -> None:
    """What a dead process had fetched ahead waits for the end of its lease."""
    replace_source(cleanup, "outcome_of", "return Release(entry.key, entry.attempt)", "return None")


_OF_EVERY_ENGINE: Final[dict[str, Callable[[], None]]] = {
    TRIGGER_FROM_NOW: _trigger_from_now,
    TIME_POINT_FROM_NOW: _time_point_from_now,
    BEGUN_RELEASED_AFTER_DEATH: _begun_released_after_death,
    UNBEGUN_KEPT_AFTER_DEATH: _unbegun_kept_after_death,
}
