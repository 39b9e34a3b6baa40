"""The words for a job whose state does not allow a call."""

from __future__ import annotations

from everwork.core.leasing import Judged, Verdict
from everwork.core.states import State
from everwork.exceptions import JobNotFound


def refusal(key: int, judged: Judged) -> str:
    """Why an outcome was not accepted; that there is no such job is an error."""
    if judged.verdict is Verdict.NOT_FOUND:
        raise JobNotFound(key)
    if judged.verdict is Verdict.LEASE_LOST:
        return f"Job '{key}': lease lost, this attempt no longer holds it"
    return of_state(key, judged.state)


def of_state(key: int, state: State | None) -> str:
    """What keeps a job in this state from taking an outcome."""
    match state:
        case State.CANCELLED:
            return f"Job '{key}' was cancelled"
        case State.PENDING:
            return f"Job '{key}' is not activated"
        case State.FAILED:
            return f"Job '{key}' not found or already completed: it has failed"
        case _:
            return f"Job '{key}' not found or already completed"
