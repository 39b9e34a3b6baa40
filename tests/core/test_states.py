"""The table of transitions, compared with the design word for word."""

from __future__ import annotations

import itertools
from typing import cast

import pytest

from everwork.core.states import FINISHED_STATES, LIVE_STATES, SYNONYMS, TRANSITIONS, Cause, State, after, is_allowed

# Written out by hand from section 2 of the design, not derived from the code.
DESIGNED: dict[tuple[str, str], str] = {
    ("pending", "activate"): "processing",
    ("pending", "cancel"): "cancelled",
    ("pending", "expire"): "cancelled",
    ("processing", "cancel"): "cancelled",
    ("processing", "complete"): "completed",
    ("processing", "fail"): "failed",
    ("processing", "reject"): "failed",
    ("processing", "throw"): "failed",
    ("processing", "lapse"): "failed",
    ("processing", "release"): "pending",
    ("failed", "retry"): "pending",
    ("failed", "requeue"): "pending",
}

EVERY_PAIR = list(itertools.product(State, Cause))
REFUSED = [(state, cause) for state, cause in EVERY_PAIR if (state.label, cause.value) not in DESIGNED]


@pytest.mark.parametrize(("state", "cause"), EVERY_PAIR, ids=lambda value: value.name.lower())
def test_the_table_allows_exactly_what_the_design_says(state: State, cause: Cause) -> None:
    assert is_allowed(state, cause) == ((state.label, cause.value) in DESIGNED)


@pytest.mark.parametrize(("names", "expected"), DESIGNED.items(), ids=str)
def test_an_allowed_cause_leads_to_the_designed_state(names: tuple[str, str], expected: str) -> None:
    assert after(State[names[0].upper()], Cause(names[1])).label == expected


@pytest.mark.parametrize(("state", "cause"), REFUSED, ids=lambda value: value.name.lower())
def test_there_is_no_state_after_a_refused_cause(state: State, cause: Cause) -> None:
    with pytest.raises(KeyError):
        after(state, cause)


@pytest.mark.parametrize("state", [State.COMPLETED, State.CANCELLED])
def test_completed_and_cancelled_never_change_again(state: State) -> None:
    assert [cause for cause in Cause if is_allowed(state, cause)] == []


def test_every_cause_is_in_the_table() -> None:
    assert {cause for _, cause in TRANSITIONS} == set(Cause)


def test_the_table_cannot_be_changed_while_running() -> None:
    with pytest.raises(TypeError):
        cast("dict[tuple[State, Cause], State]", TRANSITIONS)[State.COMPLETED, Cause.RETRY] = State.PENDING


def test_every_state_is_either_live_or_finished() -> None:
    assert {State.PENDING, State.PROCESSING} == LIVE_STATES
    assert set(State) - LIVE_STATES == FINISHED_STATES


def test_the_stored_numbers_of_the_states_never_change() -> None:
    assert {state.label: int(state) for state in State} == {
        "pending": 1,
        "processing": 2,
        "completed": 3,
        "failed": 4,
        "cancelled": 5,
    }


@pytest.mark.parametrize("state", State)
def test_every_state_is_among_its_own_synonyms(state: State) -> None:
    assert SYNONYMS[state.name] is state
