"""What the store keeps of a type beside its jobs, written for the scripts and read from what they answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from everwork.codec.json import decode_policy
from everwork.core.breaker import Breaker
from everwork.core.policy import TypePolicy
from everwork.core.states import State

_WINDOW: Final = "window\n"

Fields = Mapping[str, str]
"""A type's hash; parts/traits.lua says what stands there."""


def fields_of(told: Sequence[Any]) -> Fields:
    """A hash as a script answers it, flat."""
    return {told[at].decode(): told[at + 1].decode() for at in range(0, len(told), 2)}


def rules_text(policy: TypePolicy) -> str:
    """The numbers of a policy, in the order in which parts/traits.lua reads them."""
    breaker, rate, again_ms = policy.breaker, policy.rate, policy.failed_job_retry_ms
    numbers = (
        breaker and breaker.failures, breaker and breaker.open_ms, policy.max_running, policy.max_running_per_key,
        rate and rate.jobs, rate and rate.window_ms, again_ms, again_ms and policy.failed_job_retry_rounds,
        policy.keep_ms(State.COMPLETED), policy.keep_ms(State.FAILED),
    )  # fmt: skip
    return " ".join("-" if number is None else str(number) for number in numbers)


def breaker_of(fields: Fields) -> Breaker:
    """What a type's breaker remembers."""
    probe, _, attempt = fields.get("probe", "").partition(" ")
    return Breaker(
        failures=int(fields.get("failures", 0)),
        open_until_ms=int(fields["breaker"]) if "breaker" in fields else None,
        probe_key=int(probe) if probe else None,
        probe_attempt=int(attempt or 0),
    )


def rate_full_until_ms(fields: Fields, group: str | None = None) -> int | None:
    """The end of the rate's window in which no more jobs may start; None while some may. Without a group: the last."""
    rate = decode_policy(fields.get("policy")).rate
    if rate is None:
        return None
    named = [name for name in fields if name.startswith(_WINDOW)] if group is None else [_WINDOW + group]
    windows = [fields[name].split() for name in named if name in fields]
    return max((int(since) + rate.window_ms for since, started in windows if int(started) >= rate.jobs), default=None)
