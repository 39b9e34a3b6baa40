"""Declaring handlers: what is wrong is refused immediately, and by name."""

from __future__ import annotations

from typing import Any

import pytest

import everwork
from everwork import CircuitBreaker, Everwork, JobFunction, RetryPolicy, TypePolicy
from everwork.codec.json import decode_policy_fields, encode_policy_fields
from everwork.engines.open import open_engine
from everwork.exceptions import BadConfiguration, InvalidInput
from tests.stores import VirtualClock


def test_the_public_door_exports_exactly_the_documented_names() -> None:
    documented = [
        "AbstractCronSchedule",
        "AbstractWorker",
        "Access",
        "BreakerState",
        "BreakerStatus",
        "Call",
        "CircuitBreaker",
        "Cron",
        "CronSchedule",
        "Depends",
        "Enqueuer",
        "ErrorRule",
        "Event",
        "EventCollector",
        "EventSettings",
        "Everwork",
        "FunctionEnqueuer",
        "Interval",
        "Job",
        "JobCall",
        "JobContext",
        "JobFunction",
        "JobHandle",
        "JobKey",
        "JobOptions",
        "Middleware",
        "PostgresBackend",
        "PostgresBroker",
        "Process",
        "ProcessGroup",
        "ProcessManager",
        "Rate",
        "Reconnect",
        "Recycle",
        "RedisBackend",
        "RedisBroker",
        "RetryPolicy",
        "Spool",
        "SqliteBackend",
        "SqliteBroker",
        "State",
        "Strategy",
        "SyncJobHandle",
        "Trigger",
        "TypePolicy",
        "WorkerSettings",
    ]
    assert sorted(everwork.__all__) == documented
    assert dir(everwork) == documented
    assert [getattr(everwork, name).__name__ for name in documented] == documented


def test_a_name_that_is_not_exported_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = everwork.Nothing


async def test_calling_a_job_function_calls_the_function(app: Everwork) -> None:
    @app.job("double")
    def double(number: int) -> int:
        """Twice the number."""
        return 2 * number

    assert isinstance(double, JobFunction)
    assert (double(4), double.__name__, double.__doc__, double.type) == (8, "double", "Twice the number.", "double")


async def test_a_second_handler_of_a_type_is_refused_and_the_first_is_named(app: Everwork) -> None:
    @app.job("email-send")
    async def send() -> None: ...

    async def other() -> None: ...

    with pytest.raises(BadConfiguration, match="type 'email-send' already has a handler: send"):
        app.job("email-send")(other)
    assert app.functions["email-send"] is send


async def test_positional_parameters_are_refused_by_name(app: Everwork) -> None:
    def many(*rest: int) -> None: ...

    def first(one: int, /) -> None: ...

    for handler, name in ((many, "rest"), (first, "one")):
        with pytest.raises(BadConfiguration, match=f"parameter '{name}': handlers take keyword arguments only"):
            app.job("email-send")(handler)
    assert app.functions == {}


async def test_annotations_that_cannot_be_read_are_told(app: Everwork) -> None:
    def handler(to: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(BadConfiguration, match=r"handler.*Missing"):
        app.job("email-send")(handler)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *[("concurrency", value) for value in (0, -1, 10_001, 1.5, True, "2", None)],
        *[("timeout", value) for value in (0, -1, 86_401, float("nan"), float("inf"), True, "5", None)],
        *[("retry", value) for value in (3, {"max_attempts": 3}, "yes", RetryPolicy)],
    ],
)
async def test_a_wrong_setting_is_refused_by_name(app: Everwork, setting: str, value: Any) -> None:
    async def handler() -> None: ...

    with pytest.raises((InvalidInput, BadConfiguration), match=f"^{setting}: "):
        app.job("email-send", **{setting: value})(handler)
    assert app.functions == {}


@pytest.mark.parametrize("type", ["", "x" * 256, "a\nb"])
async def test_a_wrong_type_is_refused_by_name(app: Everwork, type: Any) -> None:
    async def handler() -> None: ...

    with pytest.raises(InvalidInput, match=r"^type: "):
        app.job(type)(handler)


@pytest.mark.parametrize("url", ["", "jobs.db", "mysql://host/db", "sqlite://host/jobs.db", "sqlite:///"])
def test_a_wrong_url_is_told_when_the_application_is_made(url: str) -> None:
    with pytest.raises(BadConfiguration, match=r"^engine URL: "):
        Everwork(url)


async def test_working_without_any_handler_is_refused(app: Everwork) -> None:
    with pytest.raises(BadConfiguration, match="declare at least one function"):
        await app.work()


async def test_what_a_function_does_not_say_of_its_type_stays_as_the_store_says(url: str, clock: VirtualClock) -> None:
    engine = open_engine(url, clock=clock)
    await engine.open()
    await engine.set_policy("work", encode_policy_fields({"max_attempts": 2, "max_running": 7}))

    async def created_by(**said: Any) -> int | None:
        app = Everwork(url, clock=clock)
        app.job("work", **said)(lambda: None)
        async with app:
            (job,) = await engine.get([await app.enqueue("work")])
            return job.max_attempts if job else None

    assert await created_by(breaker=CircuitBreaker(4, 30)) == 2
    assert await created_by(policy=TypePolicy(retry=RetryPolicy(max_attempts=9))) == 9
    assert await created_by(retry=RetryPolicy()) == 5
    (known,) = await engine.types()
    await engine.close()
    declared = {"max_attempts": 5, "base": 5.0, "factor": 2.0, "cap": 300.0, "jitter": 0.0}
    kept = {"max_running": 7, "breaker_failures": 4, "breaker_seconds": 30}
    assert decode_policy_fields(known.policy) == kept | declared
