"""Outcomes that make no sense: each is refused by itself, with the same words in process and over the wire."""

from __future__ import annotations

from typing import Any

import pytest

from everwork.client import ActiveJob, Client
from everwork.core.outcome import Complete, Failed, Outcome, Release, Retry, Throw
from everwork.core.states import State
from everwork.exceptions import InvalidInput

BIG = {"text": "x" * 700_000}
MORE = {"more": "x" * 700_000}


async def test_one_bad_outcome_is_one_refusal_and_the_rest_is_settled(client: Client) -> None:
    async with client.stream() as stream:
        good, bad, other = await three_jobs(client)
        stream.complete(good, 1)
        stream.fail(bad, "boom", variables=MORE)  # Together they are larger than a job may be.
        stream.complete(other, 2)
    [refused] = stream.refusals
    assert (refused.key, refused.attempt) == (bad.key, 1)
    assert refused.message.startswith("variables: must be at most 1,048,576 bytes of JSON, not 1,4")
    assert [(await client.get(job.key)).state.label for job in (good, bad, other)] == [
        "completed",
        "processing",
        "completed",
    ]


async def test_one_bad_outcome_of_a_call_is_named_by_its_place_and_nothing_happens(client: Client) -> None:
    good, bad, _ = await three_jobs(client)
    failed = Failed(bad.key, 1, "boom", variables=f'{{"more":"{MORE["more"]}"}}')
    with pytest.raises(InvalidInput) as raised:
        await client.settle([Complete(good.key, 1), failed])
    assert raised.value.field == "outcomes[1].variables"
    with pytest.raises(InvalidInput) as raised:
        await client.fail(bad, "boom", variables=MORE)
    assert raised.value.field == "variables"
    assert (await client.get(good.key)).state is State.PROCESSING


@pytest.mark.parametrize(
    ("outcome", "field"),
    [
        (Complete(0, 1), "key"),
        (Complete(1, -1), "attempt"),
        (Complete(1, 1, "{"), "result"),
        (Complete(1, 1, None, (("", {}),)), "events[0].type"),  # type: ignore[arg-type]
        (Failed(1, 1, "boom", retries=101), "retries"),
        (Failed(1, 1, "boom", backoff_ms=-1), "backoff_ms"),
        (Failed(1, 1, "boom", variables="[]"), "variables"),
        (Failed(1, 1, "boom", classes=("A", 5)), "classes"),  # type: ignore[arg-type]
        (Failed(1, 1, "boom", traceback=["a"]), "traceback"),  # type: ignore[arg-type]
        (Retry(1, 1, "boom", delay_ms=-1), "delay_ms"),
        (Throw(1, 1, ""), "code"),
        (Throw(1, 1, "C", variables="1"), "variables"),
        ("done", "kind"),
    ],
)
async def test_an_outcome_that_makes_no_sense_goes_nowhere(client: Client, outcome: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        await client.settle([Release(1, 1), outcome])
    assert raised.value.field == f"outcomes[1].{field}"
    async with client.stream() as stream:
        with pytest.raises(InvalidInput) as raised:
            stream.settle(outcome)
    assert raised.value.field == field
    assert list(stream.refusals) == []


async def test_a_failure_by_policy_is_classified_by_the_exception_and_else_by_its_text(client: Client) -> None:
    await client.create_many([("s", {})] * 3)
    by_class, by_text, unsaid = await client.activate("s", limit=3)
    with pytest.raises(InvalidInput, match="by_policy: cannot be combined with retries, backoff or final"):
        await client.fail(by_class, "boom", by_policy=True, retries=1)
    with pytest.raises(InvalidInput, match="strict: cannot be combined with retries, backoff or final"):
        await client.fail(by_class, "boom", strict=True, final=True)
    await client.fail(by_class, ConnectionResetError("odd"), by_policy=True)  # retryable: 2 s after the first attempt
    await client.fail(by_text, "Too Many Requests", by_policy=True)  # rate limited: 60 s
    await client.fail(unsaid, ConnectionResetError("odd"))  # the policy's 5 s
    for job, delay_ms in ((by_class, 2_000), (by_text, 60_000), (unsaid, 5_000)):
        [entry] = await client.history(job.key)
        assert (entry.retry_at_ms or 0) - entry.at_ms == delay_ms


async def test_every_failure_takes_the_traceback_of_its_exception_along(client: Client) -> None:
    await client.create_many([("s", {})] * 6)
    failed, retried, rejected, thrown, given, unraised = await client.activate("s", limit=6)
    with pytest.raises(ZeroDivisionError) as caught:
        1 / 0  # noqa: B018 - raises
    await client.fail(failed, caught.value)
    await client.retry(retried, caught.value)
    await client.reject(rejected, caught.value)
    await client.throw(thrown, "CODE", caught.value)
    await client.fail(given, "boom", traceback="at send\n" * 10_000)
    await client.fail(unraised, ZeroDivisionError())
    for job in (failed, retried, rejected, thrown):
        [entry] = await client.history(job.key)
        assert str(entry.traceback).startswith("Traceback (most recent call last):\n  File ")
        assert str(entry.traceback).endswith("\nZeroDivisionError: division by zero")
    [entry] = await client.history(given.key)
    assert str(entry.traceback).startswith("at send\n  [71,")
    assert (await client.history(unraised.key))[0].traceback is None


async def test_a_stream_wants_to_know_which_attempt_has_ended(client: Client) -> None:
    async with client.stream() as stream:
        with pytest.raises(InvalidInput, match="attempt: must be set"):
            stream.settle(Complete(1, 0))


async def test_a_call_takes_ten_thousand_outcomes_at_most(client: Client) -> None:
    outcomes: list[Outcome] = [Release(1, 1)] * 10_001
    with pytest.raises(InvalidInput, match="outcomes: must be at most 10,000 in one call"):
        await client.settle(outcomes)


async def three_jobs(client: Client) -> list[ActiveJob]:
    """Leased jobs, the second of them large."""
    await client.create_many([("s", {}), ("s", BIG), ("s", {})])
    return await client.activate("s", limit=3)
