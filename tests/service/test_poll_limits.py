"""Limits of waiting polls: each key has its own, and a full server keeps room for every key."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from everwork.exceptions import TooManyRequests
from everwork.service.access.budgets import PollLimits
from everwork.service.access.principal import Party


def waiting(limits: PollLimits, caller: str, polls: int, type: str = "t", party: Party = "") -> ExitStack:
    """Polls of a key that wait until the stack is closed."""
    stack = ExitStack()
    for _ in range(polls):
        stack.enter_context(limits.admitted(caller, type, party))
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


TENANT = frozenset(["acme"])


def test_a_key_has_a_limit_for_all_types_together() -> None:
    limits = PollLimits(per_type=2, per_key=3)
    with waiting(limits, "noisy", 2), waiting(limits, "noisy", 1, "another"):
        with pytest.raises(TooManyRequests, match=r"3 polls of this API key are waiting \(setting pollers_per_key\)"):
            waiting(limits, "noisy", 1, "third")
        with waiting(limits, "quiet", 1, "third"):
            assert limits.waiting("third") == 1


def test_the_keys_of_one_tenant_have_a_limit_together() -> None:
    limits = PollLimits(per_type=2, per_key=2, tenant_factor=2)
    with waiting(limits, "first", 2, party=TENANT), waiting(limits, "second", 2, party=TENANT):
        refusal = r"4 polls of this tenant's API keys are waiting \(settings pollers_per_key and tenant_factor\)"
        with pytest.raises(TooManyRequests, match=refusal):
            waiting(limits, "third", 1, party=TENANT)
        with waiting(limits, "quiet", 1, party=frozenset(["other"])):
            assert limits.waiting("t") == 5


def test_a_full_server_gives_a_tenant_with_many_keys_no_more_than_one_share() -> None:
    limits = PollLimits(per_type=100, total=4)
    refusal = r"its limit of waiting polls, 3 of them from this tenant"
    with (
        waiting(limits, "first", 2, party=TENANT),
        waiting(limits, "second", 1, party=TENANT),
        waiting(limits, "quiet", 2),
        pytest.raises(TooManyRequests, match=refusal),
    ):
        waiting(limits, "third", 1, party=TENANT)
