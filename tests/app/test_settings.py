"""What a worker declares of itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
from pydantic import ValidationError

from everwork.app.settings import Cron, EventSettings, Interval, Trigger, WorkerSettings
from everwork.core.retry import RetryPolicy


def a_trigger(**fields: object) -> Trigger:
    return Trigger.model_validate({"title": "tick", "schedule": Interval(seconds=30), **fields})


def some_settings(**fields: object) -> WorkerSettings:
    return WorkerSettings.model_validate({"title": "mail", **fields})


def an_interval(**fields: object) -> Interval:
    return Interval.model_validate(fields)


def a_cron(expression: str = "0 9 * * 1", **fields: object) -> Cron:
    return Cron.model_validate({"expression": expression, **fields})


def test_a_title_is_all_that_a_worker_must_say() -> None:
    settings = WorkerSettings(title="mail")
    assert (settings.description, settings.execution_timeout, settings.triggers) == ("", 180, [])
    assert (settings.status_check_interval, settings.status_cache_ttl) == (60, 5)
    assert settings.event_settings == EventSettings(max_events_in_memory=5000, max_batch_size=500)
    assert (settings.concurrency, settings.retry) == (1, None)


def test_ids_are_made_from_titles_and_the_own_source_is_always_there() -> None:
    settings = WorkerSettings(title="почта", sources={"in", "out"}, retry=RetryPolicy(max_attempts=2))
    assert settings.id == hashlib.sha256("почта".encode()).hexdigest()[:16]
    assert settings.default_source == f"worker:{settings.id}:source"
    assert settings.sources == {"in", "out", settings.default_source}
    assert WorkerSettings.model_validate(settings.model_dump()) == settings


def test_a_trigger_has_the_defaults_that_are_promised() -> None:
    trigger = a_trigger()
    assert (trigger.description, trigger.kwargs, trigger.is_catchup, trigger.lifetime) == ("", {}, True, None)
    assert (trigger.status_check_interval, trigger.status_cache_ttl) == (60, 5)
    assert trigger.id == hashlib.sha256(b"tick").hexdigest()[:16]


def test_an_interval_is_the_sum_of_its_parts() -> None:
    assert Interval(weeks=1, days=2, hours=3, minutes=15, seconds=30.5).total_ms == 789_330_500


def test_the_zone_of_a_cron_is_named_or_that_of_the_environment_or_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert a_cron().timezone == "Asia/Tokyo"
    assert a_cron(timezone="Europe/Berlin").timezone == "Europe/Berlin"
    for no_zone in ("CET-1CEST,M3.5.0,M10.5.0/3", "", "Europe", "/etc/passwd"):
        monkeypatch.setenv("TZ", no_zone)
        assert a_cron().timezone == "UTC"


def test_an_expression_for_a_schedule_of_the_users_own_is_left_to_it() -> None:
    assert a_cron("every full moon", custom=True).expression == "every full moon"


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        some_settings().title = "other"


@pytest.mark.parametrize(
    ("declare", "field", "says"),
    [
        (lambda: some_settings(title=""), "title", "at least 1 character"),
        (lambda: some_settings(title="x" * 301), "title", "at most 300 characters"),
        (lambda: some_settings(description="x" * 1001), "description", "at most 1000 characters"),
        (lambda: some_settings(execution_timeout=0.05), "execution_timeout", "greater than or equal to 0.1"),
        (lambda: some_settings(execution_timeout=86401), "execution_timeout", "less than or equal to 86400"),
        (lambda: some_settings(status_check_interval=3601), "status_check_interval", "less than or equal to 3600"),
        (lambda: some_settings(status_cache_ttl=-1), "status_cache_ttl", "greater than or equal to 0"),
        (lambda: some_settings(status_cache_ttl=1e308), "status_cache_ttl", "less than or equal to 316224000"),
        (lambda: some_settings(status_cache_ttl=float("nan")), "status_cache_ttl", "finite number"),
        (lambda: some_settings(concurrency=0), "concurrency", "greater than or equal to 1"),
        (lambda: some_settings(sources={"a b"}), "sources", "pattern"),
        (lambda: some_settings(sources={"a\n"}), "sources", "pattern"),
        (lambda: some_settings(sources={"x" * 256}), "sources", "at most 255 characters"),
        (lambda: some_settings(sources={f"s{n}" for n in range(101)}), "sources", "at most 100 sources, not 101"),
        (lambda: some_settings(triggers=[a_trigger(), a_trigger()]), "triggers", "'tick' is used 2 times"),
        (lambda: some_settings(retry={"max_attempts": 0}), "retry", "max_attempts"),
        (lambda: some_settings(retries=3), "retries", "not permitted"),
        (lambda: EventSettings(max_events_in_memory=0), "max_events_in_memory", "greater than or equal to 1"),
        (lambda: EventSettings(max_batch_size=10_001), "max_batch_size", "less than or equal to 10000"),
        (lambda: a_trigger(kwargs={"when": object()}), "kwargs", "must consist of JSON values"),
        (lambda: a_trigger(kwargs={"share": float("inf")}), "kwargs", "JSON has no such number"),
        (lambda: a_trigger(lifetime=0), "lifetime", "greater than 0"),
        (lambda: a_trigger(schedule="0 9 * * 1"), "schedule", "Interval"),
        (lambda: an_interval(seconds=-1, minutes=1), "seconds", "greater than or equal to 0"),
        (lambda: an_interval(weeks=1e300), "weeks", "less than or equal to"),
        (an_interval, "", "weeks, days, hours, minutes and seconds together must be from 0.1 seconds"),
        (lambda: a_cron(""), "expression", "at least 1 character"),
        (lambda: a_cron("0 9 * *"), "expression", "Wrong number of fields in '0 9 \\* \\*'"),
        (lambda: a_cron("61 9 * * 1"), "expression", "Bad minute"),
        (lambda: a_cron("0 0 30 2 *"), "expression", "Bad day-of-month"),
        (lambda: a_cron("0 0 31 2 *"), "expression", "Bad day-of-month"),
        (lambda: a_cron(timezone="Mars/Olympus"), "timezone", "must be an IANA time zone"),
        (lambda: a_cron("every full moon", custom=True, timezone="Europe"), "timezone", "must be an IANA time zone"),
    ],
)
def test_a_bad_value_is_told_by_its_field(declare: Callable[[], object], field: str, says: str) -> None:
    with pytest.raises(ValidationError, match=says) as error:
        declare()
    first = error.value.errors()[0]["loc"]
    assert (first[0] if first else "") == field


def test_a_hundred_sources_besides_the_own_one_are_allowed() -> None:
    assert len(some_settings(sources={f"s{n}" for n in range(100)}).sources) == 101
