"""Limits of waiting polls: each key has its own, and a full server keeps room for every key."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from everwork.exceptions import TooManyRequests
from everwork.service.poll_limits import PollLimits


def waiting(limits: PollLimits, caller: str, polls: int, type: str = "t") -> ExitStack:
    """Polls of a key that wait until the stack is closed."""
    stack = ExitStack()
    for _ in range(polls):
        stack.enter_context(limits.admitted(caller, type))
    return stack


def test_each_key_has_a_limit_of_its_own_for_each_type() -> None:
    limits = PollLimits(per_type=2)
    with waiting(limits, "noisy", 2), waiting(limits, "quiet", 2):
        with pytest.raises(TooManyRequests, match=r"^too many workers: 2 polls of this API key are waiting .* 't'"):
            waiting(limits, "noisy", 1)
        with waiting(limits, "noisy", 2, "another"):
            assert (limits.waiting("t"), limits.waiting("another")) == (4, 2)


def test_polls_that_have_ended_are_not_counted() -> None:
    limits = PollLimits(per_type=1, total=1)
    for _ in range(3):
        with waiting(limits, "noisy", 1):
            assert limits.waiting("t") == 1
    assert limits.waiting("t") == 0


def test_a_full_server_refuses_the_key_that_fills_it_and_no_other() -> None:
    limits = PollLimits(per_type=100, total=10)
    with waiting(limits, "noisy", 10):
        with pytest.raises(
            TooManyRequests, match=r"^too many workers: the server has reached its limit of waiting polls, 10 of them"
        ):
            waiting(limits, "noisy", 1, "another")
        with waiting(limits, "quiet", 5), pytest.raises(TooManyRequests, match="its limit of waiting polls, 5 of"):
            waiting(limits, "quiet", 1)


def test_once_others_wait_too_a_full_server_gives_each_key_an_equal_share() -> None:
    limits = PollLimits(per_type=100, total=9)
    with waiting(limits, "first", 4), waiting(limits, "second", 4), waiting(limits, "third", 1):
        for greedy in ("first", "second"):
            with pytest.raises(TooManyRequests):
                waiting(limits, greedy, 1)
        with waiting(limits, "third", 2):
            assert limits.waiting("t") == 11
