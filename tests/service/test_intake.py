"""Intake: every wrong value is refused by name, and nothing is created."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from everwork import Everwork, RetryPolicy
from everwork.codec.json import decode_policy
from everwork.codec.new_job import new_job
from everwork.core.limits import DELAY_MS_MAX, HEADERS_BYTES_MAX, PAYLOAD_BYTES_MAX
from everwork.core.policy import DEFAULT_TYPE_POLICY
from everwork.core.queries import JobFilter
from everwork.exceptions import InvalidInput
from tests.stores import url_of

NAN, INFINITY = float("nan"), float("inf")
NAMES = ["", "x" * 256, "a\nb", "a\0b", "\u200b", "\udcff", 5, 1.5, True, b"bytes", ["a"], {}]


@dataclass
class Weighed:
    """A dataclass of a user's, which JSON takes as an object."""

    weight: float


def nested(levels: int) -> Any:
    """Objects in objects, so many levels deep."""
    value: dict[str, Any] = {"end": 1}
    for _ in range(levels - 1):
        value = {"in": value}
    return value


@pytest.fixture
async def app(engine_name: str, tmp_path: Path) -> AsyncIterator[Everwork]:
    """An application on a fresh store."""
    made = Everwork(url_of(engine_name, tmp_path))
    yield made
    await made.close()


async def refused(app: Everwork, type: Any, field: str, options: dict[str, Any], problem: str = "must ") -> None:
    """Nothing is created alone, nor together with a good one."""
    with pytest.raises(InvalidInput) as told:
        await app.using(**options).enqueue(type)
    assert (told.value.field, str(told.value).startswith(f"{field}: {problem}")) == (field, True), told.value
    await nothing_is_created(app)


async def refused_arguments(app: Everwork, arguments: Any, field: str) -> None:
    """Nothing is created alone, nor together with a good one."""
    with pytest.raises(InvalidInput, match=f"^{field}: must "):
        await app.enqueue("email-send", arguments)
    with pytest.raises(InvalidInput, match=rf"^jobs\[1\]\.{field}: must "):
        await app.enqueue_many([("email-send", {}), ("email-send", arguments)])
    await nothing_is_created(app)


async def nothing_is_created(app: Everwork) -> None:
    """The store is as empty as before."""
    assert (await app._host.call(lambda service: service.find(JobFilter(), 10))).jobs == []


@pytest.mark.parametrize("type", [*NAMES, None], ids=repr)
async def test_a_wrong_type_is_refused(app: Everwork, type: Any) -> None:
    await refused(app, type, "type", {})


@pytest.mark.parametrize("field", ["tenant", "dedupe_key", "limit_key", "correlation_id"])
async def test_a_wrong_name_is_refused(app: Everwork, field: str) -> None:
    for name in NAMES:
        await refused(app, "email-send", field, {field: name})


@pytest.mark.parametrize("priority", [-513, 512, 2**63, 1.5, 0.0, "1", True, False, None, NAN], ids=repr)
async def test_a_wrong_priority_is_refused(app: Everwork, priority: Any) -> None:
    await refused(app, "email-send", "priority", {"priority": priority})


@pytest.mark.parametrize("attempts", [0, -1, 101, 2**63, 1.5, "1", True, NAN], ids=repr)
async def test_a_wrong_number_of_attempts_is_refused(app: Everwork, attempts: Any) -> None:
    await refused(app, "email-send", "max_attempts", {"max_attempts": attempts})


@pytest.mark.parametrize("delay", [-1, -0.001, DELAY_MS_MAX / 1000 + 1, 1e300, 10**400, "60", True, NAN, INFINITY])
async def test_a_wrong_delay_is_refused(app: Everwork, delay: Any) -> None:
    await refused(app, "email-send", "delay", {"delay": delay})


@pytest.mark.parametrize("timeout", [0, -1, 0.0001, 86_401, 1e300, 10**400, "60", True, NAN, INFINITY])
async def test_a_wrong_timeout_is_refused(app: Everwork, timeout: Any) -> None:
    await refused(app, "email-send", "timeout", {"timeout": timeout})


@pytest.mark.parametrize("field", ["run_at", "expires_at"])
@pytest.mark.parametrize(
    "moment",
    [
        datetime(2030, 1, 2),  # noqa: DTZ001 - that is what is wrong with it
        datetime(1969, 12, 31, 23, 59, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-1))),
        datetime(2030, 1, 2, tzinfo=UTC).date(),
        "2030-01-02T03:04:05Z",
        1_893_546_245,
        True,
    ],
    ids=repr,
)
async def test_a_wrong_moment_is_refused(app: Everwork, field: str, moment: Any) -> None:
    await refused(app, "email-send", field, {field: moment})


async def test_delay_and_run_at_together_are_refused(app: Everwork) -> None:
    options = {"delay": 0, "run_at": datetime(2030, 1, 2, tzinfo=UTC)}
    await refused(app, "email-send", "delay", options, "cannot be combined with run_at")


@pytest.mark.parametrize("retry", [3, {"max_attempts": 3}, "yes", True, RetryPolicy], ids=repr)
async def test_what_is_no_policy_is_refused(app: Everwork, retry: Any) -> None:
    await refused(app, "email-send", "retry", {"retry": retry})


@pytest.mark.parametrize("value", [[], "{}", 5, True, [("a", 1)]], ids=repr)
async def test_what_is_no_object_is_refused(app: Everwork, value: Any) -> None:
    await refused(app, "email-send", "headers", {"headers": value})
    await refused_arguments(app, value, "arguments")


NO_JSON: dict[str, Callable[[], Any]] = {
    "NaN": lambda: NAN,
    "infinity": lambda: INFINITY,
    "minus infinity": lambda: -INFINITY,
    "NaN in a list": lambda: [1, [NAN]],
    "NaN in a tuple": lambda: (1, NAN),
    "NaN in an object": lambda: {"deep": {"deeper": [{"deepest": NAN}]}},
    "NaN in a dataclass": lambda: Weighed(NAN),
    "NaN beside a null": lambda: [None, NAN],
    "an integer of 65 bits": lambda: 2**64,
    "a negative integer of 65 bits": lambda: -(2**63) - 1,
    "an integer of 65 bits in a list": lambda: [2**64],
    "bytes that are no text": lambda: b"\xff",
    "an object of Python": object,
    "a key that is no text": lambda: {1: 2},
    "a lone surrogate": lambda: "\udcff",
    "a lone surrogate in a key": lambda: {"\udcff": 1},
    "65 levels": lambda: nested(64),
    "a thousand levels": lambda: nested(1_000),
}


@pytest.mark.parametrize("kind", NO_JSON)
async def test_what_json_cannot_hold_is_refused(app: Everwork, kind: str) -> None:
    await refused(app, "email-send", "headers", {"headers": {"value": NO_JSON[kind]()}})
    await refused_arguments(app, {"value": NO_JSON[kind]()}, "(variables|value)")


@pytest.mark.parametrize("text", ["y" * (PAYLOAD_BYTES_MAX - 7), "ü" * (PAYLOAD_BYTES_MAX // 2)])
async def test_more_bytes_of_arguments_than_allowed_are_refused(app: Everwork, text: str) -> None:
    await refused_arguments(app, {"x": text}, "(variables|x)")


@pytest.mark.parametrize("text", ["y" * (HEADERS_BYTES_MAX - 7), "ü" * (HEADERS_BYTES_MAX // 2)])
async def test_more_bytes_of_headers_than_allowed_are_refused(app: Everwork, text: str) -> None:
    await refused(app, "email-send", "headers", {"headers": {"x": text}})


@pytest.mark.every_engine
async def test_what_is_just_allowed_is_accepted(app: Everwork) -> None:
    key = await app.using(
        headers={"x": "y" * (HEADERS_BYTES_MAX - 8)},
        priority=511,
        delay=DELAY_MS_MAX / 1000,
        max_attempts=100,
        timeout=86_400,
        tenant="ü" * 255,
        dedupe_key="y" * 255,
    ).enqueue("x" * 255, {"x": "y" * (PAYLOAD_BYTES_MAX - 8)})
    job = await app.get(key)
    assert (len(job.variables["x"]), job.priority, job.max_attempts) == (PAYLOAD_BYTES_MAX - 8, 511, 100)


@pytest.mark.every_engine
async def test_64_levels_and_64_bits_are_accepted(app: Everwork) -> None:
    key = await app.enqueue("email-send", {"n": [2**63 - 1, -(2**63), 2**64 - 1], "deep": nested(63)})
    assert (await app.get(key)).variables["n"] == [9223372036854775807, -9223372036854775808, 18446744073709551615]


@pytest.mark.parametrize("extra", [[], "{}", {"x": NAN}])
def test_extra_is_checked_like_the_rest(extra: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^extra: must "):
        new_job("email-send", {}, extra=extra)


def test_a_wrong_type_stays_wrong_when_it_is_given_again() -> None:
    for _ in range(2):
        with pytest.raises(InvalidInput, match=r"^type: must "):
            new_job("a\nb", {})


def test_a_stored_policy_that_was_damaged_by_hand_is_replaced_by_the_default() -> None:
    assert [decode_policy(text) for text in ("{", "[]", '{"retry": 5}', '{"retry": {"base": "x"}}')] == [
        DEFAULT_TYPE_POLICY
    ] * 4
