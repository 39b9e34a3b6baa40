"""Errors that are classified: the type's rules and the built-in ones say whether and when to try again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everwork.codec.json import encode_policy
from everwork.core.outcome import Failed
from everwork.core.retry import RetryPolicy
from everwork.core.states import State
from tests.conformance.failing import where_it_is_decided
from tests.factories import a_policy, a_processing_job, activated, settled

if TYPE_CHECKING:
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

pytestmark = where_it_is_decided

STRATEGIES: dict[str, tuple[tuple[str, ...], str, list[int]]] = {
    "a class": (("ConnectionRefusedError", "ConnectionError", "OSError"), "no", [2, 4, 8]),
    "a text that is retryable": ((), "dial: Connection refused", [2, 4, 8]),
    "a text that is rate limited": (("HTTPError",), "429 Too Many Requests", [60, 60]),
    "a text that is temporary": ((), "503 Service Unavailable", [10, 10]),
    "what nobody knows": (("ValueError",), "boom", [5, 10]),
}
RULES: list[dict[str, str]] = [
    {"strategy": "permanent", "exception": "shop.CardUnknown"},
    {"strategy": "temporary", "text": "Timeout of the till"},
]


async def failed(engine: Engine, error: str, *, retry: str | None = None, **more: Any) -> tuple[State, int]:
    """A new job whose first attempt fails; its state then, and the delay in seconds."""
    job = await a_processing_job(engine, retry=retry)
    after = await settled(engine, Failed(job.key, 1, error, **more))
    if after.state is State.FAILED:
        return after.state, 0
    history = await engine.history(job.key)
    return after.state, (after.run_at_ms - history[-1].at_ms) // 1000


async def test_each_sort_of_error_has_its_own_delays(engine: Engine, clock: VirtualClock) -> None:
    for sort, (classes, text, delays) in STRATEGIES.items():
        job = await a_processing_job(engine, type=sort)
        for attempt, delay in enumerate(delays, 1):
            again = await settled(engine, Failed(job.key, attempt, text, classes=classes))
            assert (again.state, again.run_at_ms) == (State.PENDING, clock.now_ms + delay * 1000), sort
            clock.advance(seconds=delay)
            await activated(engine, job)


async def test_rules_of_the_type_come_before_the_built_in_ones(engine: Engine) -> None:
    await a_policy(engine, errors=RULES)
    assert await failed(engine, "timeout of the till", classes=()) == (State.PENDING, 10)
    assert await failed(engine, "timeout", classes=()) == (State.PENDING, 2)


CONNECTION = ("ConnectionRefusedError", "ConnectionError", "OSError")


async def test_a_declared_delay_is_not_overridden_by_the_built_in_rules(engine: Engine) -> None:
    await a_policy(engine, base=60)
    assert await failed(engine, "refused", classes=CONNECTION) == (State.PENDING, 60)
    assert await failed(engine, "invalid timeout value", classes=("ValueError",)) == (State.PENDING, 60)
    assert await failed(engine, "429 too many requests", classes=()) == (State.PENDING, 60)


async def test_a_job_s_own_retry_policy_is_not_overridden_by_the_built_in_rules(engine: Engine) -> None:
    own = encode_policy(RetryPolicy(max_attempts=3))  # Its delays are declared with it: 5 s, 10 s.
    assert await failed(engine, "refused", classes=CONNECTION, retry=own) == (State.PENDING, 5)
    assert await failed(engine, "refused", classes=CONNECTION) == (State.PENDING, 2)


async def test_a_declared_rule_applies_beside_a_declared_delay(engine: Engine) -> None:
    await a_policy(engine, base=60, errors=RULES)
    assert await failed(engine, "timeout of the till", classes=()) == (State.PENDING, 10)
    assert await failed(engine, "timeout", classes=()) == (State.PENDING, 60)
    assert await failed(engine, "timeout", classes=("shop.CardUnknown",)) == (State.FAILED, 0)


async def test_a_number_of_attempts_alone_declares_no_delay(engine: Engine) -> None:
    await a_policy(engine, max_attempts=3)
    assert await failed(engine, "refused", classes=CONNECTION) == (State.PENDING, 2)


async def test_a_strict_type_with_a_declared_delay_retries_what_a_rule_knows_after_that_delay(engine: Engine) -> None:
    await a_policy(engine, base=60, strict=True)
    assert await failed(engine, "refused", classes=CONNECTION) == (State.PENDING, 60)
    assert await failed(engine, "boom", classes=("ValueError",)) == (State.FAILED, 0)


async def test_a_permanent_error_is_never_tried_again(engine: Engine) -> None:
    await a_policy(engine, errors=RULES)
    unknown = ("CardUnknown", "shop.CardUnknown", "Exception")
    assert await failed(engine, "timeout", classes=unknown) == (State.FAILED, 0)
    assert await failed(engine, "timeout", classes=unknown, retries=9, backoff_ms=0) == (State.FAILED, 0)


async def test_a_strict_type_tries_only_what_a_rule_knows(engine: Engine) -> None:
    await a_policy(engine, strict=True)
    assert await failed(engine, "boom", classes=("ValueError",)) == (State.FAILED, 0)
    assert await failed(engine, "rate limit", classes=("ValueError",)) == (State.PENDING, 60)


async def test_a_strict_failure_is_retried_only_if_a_rule_matches(engine: Engine) -> None:
    assert await failed(engine, "boom", classes=("ValueError",), strict=True) == (State.FAILED, 0)
    assert await failed(engine, "rate limit", classes=("ValueError",), strict=True) == (State.PENDING, 60)
    assert await failed(engine, "boom", classes=("ValueError",)) == (State.PENDING, 5)


async def test_a_failure_without_classes_is_not_classified(engine: Engine) -> None:
    await a_policy(engine, errors=[{"strategy": "permanent", "text": "rate"}], strict=True)
    assert await failed(engine, "rate limit") == (State.PENDING, 5)


async def test_a_delay_and_an_end_that_are_given_beat_the_classification(engine: Engine) -> None:
    assert await failed(engine, "rate limit", classes=(), backoff_ms=3_000) == (State.PENDING, 3)
    assert await failed(engine, "rate limit", classes=(), final=True) == (State.FAILED, 0)


async def test_the_last_attempt_fails_whatever_the_error(engine: Engine) -> None:
    await a_policy(engine, max_attempts=1)
    assert await failed(engine, "rate limit", classes=("TimeoutError",)) == (State.FAILED, 0)


async def test_each_failure_of_a_batch_is_decided_by_its_own_error_and_type(
    engine: Engine, clock: VirtualClock
) -> None:
    await a_policy(engine, type="strict", strict=True)
    texts = {"strict": "boom", "usual": "boom", "limited": "rate limit"}
    jobs = {type: await a_processing_job(engine, type=type) for type in texts}
    await engine.settle([Failed(jobs[type].key, 1, text, classes=()) for type, text in texts.items()])
    after = await engine.get([job.key for job in jobs.values()])
    assert [job and job.state for job in after] == [State.FAILED, State.PENDING, State.PENDING]
    assert [job and job.run_at_ms for job in after[1:]] == [clock.now_ms + 5_000, clock.now_ms + 60_000]
