"""Limits: the cost of a type's policy while its limits are not reached, and while they are."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.bench import Bench, Measure, Row, interleave, rate_row
from benchmarks.drain import WAYS, Make, a_job, drained, fused
from everwork.codec.json import encode_policy
from everwork.core.breaker import CircuitBreaker
from everwork.core.job import NewJob
from everwork.core.policy import Rate, TypePolicy

RATIO_MIN = 0.85
ROUNDS = 9
"""More than elsewhere, to detect differences of a few percent."""
KEYS = 100
NEVER = 10_000
"""A limit that is never reached, to measure the cost of checking it."""


async def measure_limits(bench: Bench) -> list[Row]:
    """Drain in batches of 100, fused: each policy compared with the same load without one."""
    jobs = bench.jobs(30_000, 10_000)
    return [
        *await _beside(bench, jobs, "1 lane", a_job, ONE_LANE),
        *await _beside(bench, jobs, f"{KEYS} limit keys", _keyed, MANY_LANES),
    ]


async def _beside(bench: Bench, jobs: int, load: str, make: Make, policies: Mapping[str, TypePolicy]) -> list[Row]:
    measures: dict[str, Measure] = {f"{load}: no limit": _drained(bench, jobs, make, None)}
    for name, policy in policies.items():
        measures[f"{load}: {name}"] = _drained(bench, jobs, make, policy)
    first, *others = (await interleave(bench, "limits", measures, ROUNDS)).items()
    return [rate_row("limits", *first)] + [
        rate_row("limits", name, taken, first[1], RATIO_MIN) for name, taken in others
    ]


def _keyed(n: int) -> NewJob:
    return a_job(n)._replace(limit_key=f"key-{n % KEYS}")


def _drained(bench: Bench, jobs: int, make: Make, policy: TypePolicy | None) -> Measure:
    text = None if policy is None else encode_policy(policy)
    return drained(bench, jobs, fused, make, own_loop=next(iter(WAYS[bench.host.name].values())), policy=text)


ONE_LANE = {
    "a breaker": TypePolicy(breaker=CircuitBreaker()),
    "max_running, never reached": TypePolicy(max_running=NEVER),
    "max_running 100, always reached": TypePolicy(max_running=100),
    "rate, never reached": TypePolicy(rate=Rate(1_000_000, 1)),
}
MANY_LANES = {
    "max_running_per_key, never reached": TypePolicy(max_running_per_key=NEVER),
    "max_running_per_key 1, always reached": TypePolicy(max_running_per_key=1),
    "all together": TypePolicy(
        breaker=CircuitBreaker(), max_running=NEVER, max_running_per_key=5, rate=Rate(1_000_000, 1)
    ),
}
