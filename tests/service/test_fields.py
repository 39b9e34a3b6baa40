"""The fields of a job are declared once: functions that name them all, because they must be fast, name every one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everwork.codec.fields import Field, MessageFields, fields_of
from everwork.codec.job_reports import explanation_report, job_report, leased_report
from everwork.codec.json import decode, encode_object, encode_policy
from everwork.codec.proto_replies import (
    explanation_message,
    explanation_of,
    history_message,
    history_of,
    job_message,
    job_of,
    stats_message,
    stats_of,
)
from everwork.codec.proto_requests import (
    filter_message,
    filter_of,
    leased_job_message,
    new_job_message,
    new_job_of,
)
from everwork.core.instants import utc_text
from everwork.core.job import HistoryEntry, Kind, LeasedJob, NewJob, StoredJob
from everwork.core.limits import DEFAULT_TENANT, INSTANT_MS_MAX, KEY_MAX, PRIORITY_MAX, PRIORITY_MIN
from everwork.core.outcome import label_of
from everwork.core.queries import Count, Explanation, JobFilter, Order, Reason, Stats, WorkerHour
from everwork.core.retry import RetryPolicy, remaining_retries
from everwork.core.states import State
from everwork.proto import work_pb2 as pb

UNHURRIED: Final = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
"""On a busy machine an example may take its time."""
WORKER: Final = "the worker"
PLAIN_LEASED: Final = LeasedJob(1, 1, 1, 3, "a", "", "a", 0, "{}", None, 0, 0, 0, None, None, None, None)
PLAIN_JOB: Final = StoredJob(key=1, type="a", state=State.PENDING)
LEASED_MESSAGES: Final = MessageFields(LeasedJob, pb.Job)
NEW_MESSAGES: Final = MessageFields(NewJob, pb.NewJob)

# As declared --------------------------------------------------------------------------------------------


def declared_report(value: object) -> dict[str, Any]:
    """A value as a JSON object, by a loop over its fields; `max_attempts` under its second name, too."""
    found: dict[str, Any] = {}
    for field in fields_of(type(value)):
        found[field.json] = _json(field, getattr(value, field.name))
        if field.name == "max_attempts":
            found["max_retries"] = found["max_attempts"]
    return found


def _json(field: Field, value: Any) -> Any:
    if value is None:
        return None
    match field.kind:
        case Kind.KEY:
            return str(value)
        case Kind.INSTANT:
            return utc_text(value)
        case Kind.JSON:
            return decode(value)
        case Kind.GROUP:
            return value or None
        case None:
            return value.label if field.type is State else value.value if field.type is Reason else value


def declared_leased_report(job: LeasedJob) -> dict[str, Any]:
    """A leased job as a JSON object, with what its lease adds."""
    retries = remaining_retries(State.PROCESSING, job.attempts, job.max_attempts)
    return {**declared_report(job), "state": "processing", "worker": WORKER, "retries": retries}


def declared_new_message(job: NewJob) -> pb.NewJob:
    """A new job as a message; the server knows the default tenant of a key."""
    return NEW_MESSAGES.message(job._replace(tenant="") if job.tenant == DEFAULT_TENANT else job)


def tenant_of(named: str | None) -> str:
    """The tenant of a new job, as for a key of no tenant."""
    return named or DEFAULT_TENANT


# Jobs ---------------------------------------------------------------------------------------------------

NAMES: Final = st.text("abcxyzäß.-09", min_size=1, max_size=12)
OBJECTS: Final = st.dictionaries(NAMES, st.integers(0, 9) | NAMES | st.none(), max_size=3).map(
    lambda value: encode_object("value", value, 10_000)
)


OF_NAME: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "priority": st.integers(PRIORITY_MIN, PRIORITY_MAX),
    "retry": st.integers(1, 100).map(lambda attempts: encode_policy(RetryPolicy(max_attempts=attempts))),
}
OF_KIND: Final[Mapping[object, st.SearchStrategy[Any]]] = {
    Kind.KEY: st.integers(1, KEY_MAX),
    Kind.INSTANT: st.integers(0, INSTANT_MS_MAX),
    Kind.JSON: OBJECTS,
    Kind.GROUP: st.just("") | NAMES,
    int: st.integers(1, 100),
    str: NAMES,
    bool: st.booleans(),
    State: st.sampled_from(State),
    Reason: st.sampled_from(Reason),
    Order: st.sampled_from(Order),
    frozenset[State]: st.frozensets(st.sampled_from(State)),
    tuple[str, ...]: st.lists(NAMES, unique=True, max_size=3).map(tuple),
}


def values(field: Field) -> st.SearchStrategy[Any]:
    """Any value that a field may have."""
    some = OF_NAME[field.name] if field.name in OF_NAME else OF_KIND[field.kind or field.type]
    return st.none() | some if field.is_optional else some


def any_of(declared: type) -> st.SearchStrategy[Any]:
    """Any value of a class."""
    return st.fixed_dictionaries({field.name: values(field) for field in fields_of(declared)}).map(
        lambda given: declared(**given)
    )


def valid(job: NewJob) -> NewJob:
    """A new job as it is after the checks."""
    if job.run_at_ms is not None:
        job = job._replace(delay_ms=0)
    if job.retry is not None and job.max_attempts is None:
        job = job._replace(max_attempts=decode(job.retry)["max_attempts"])
    return job


@UNHURRIED
@given(any_of(LeasedJob))
def test_a_leased_job_is_written_as_declared(job: LeasedJob) -> None:
    assert leased_job_message(job) == LEASED_MESSAGES.message(job)
    assert leased_report(job, WORKER, ()) == declared_leased_report(job)


@UNHURRIED
@given(any_of(NewJob).map(valid))
def test_a_new_job_is_written_and_read_as_declared(job: NewJob) -> None:
    assert new_job_message(job) == declared_new_message(job)
    assert new_job_of(declared_new_message(job), tenant_of) == job


@UNHURRIED
@given(any_of(StoredJob))
def test_a_job_is_written_and_read_as_declared(job: StoredJob) -> None:
    assert job_of(job_message(job)) == job
    assert job_report(job) == declared_report(job)
    assert list(job_report(job)) == list(declared_report(job))


@UNHURRIED
@given(st.lists(any_of(HistoryEntry), max_size=3))
def test_a_history_is_written_and_read_as_declared(entries: list[HistoryEntry]) -> None:
    assert history_of(history_message(entries)) == entries
    declared = [declared_report(entry) | {"label": label_of(entry.kind)} for entry in entries]
    assert job_report(PLAIN_JOB, entries)["history"] == declared


@UNHURRIED
@given(any_of(Explanation))
def test_an_explanation_is_written_and_read_as_declared(explanation: Explanation) -> None:
    assert explanation_of(explanation_message(explanation)) == explanation
    declared = declared_report(explanation)
    assert explanation_report(explanation) == {
        name: declared[name] for name in declared if name not in ("key", "state")
    }


@UNHURRIED
@given(any_of(JobFilter))
def test_a_filter_is_written_and_read_as_declared(query: JobFilter) -> None:
    assert filter_of(filter_message(query)) == query


@UNHURRIED
@given(st.lists(any_of(Count), max_size=3), st.lists(any_of(WorkerHour), max_size=3), st.integers(0, INSTANT_MS_MAX))
def test_statistics_are_written_and_read_as_declared(counts: list[Count], hours: list[WorkerHour], now_ms: int) -> None:
    stats = Stats(counts, hours, now_ms)
    assert stats_of(stats_message(stats)) == stats


# Every field counts -------------------------------------------------------------------------------------


class Literal(NamedTuple):
    """A function that names every field of a class."""

    function: Callable[[Any], object]
    plain: Any
    """A value with which a function may be called; every field is changed once."""


LITERALS: Final = {
    "leased_job_message": Literal(leased_job_message, PLAIN_LEASED),
    "leased_report": Literal(lambda job: leased_report(job, WORKER, ()), PLAIN_LEASED),
    "new_job_message": Literal(new_job_message, NewJob("a")),
    "new_job_of": Literal(lambda job: new_job_of(declared_new_message(job), tenant_of), NewJob("a")),
    "filter_of": Literal(lambda query: filter_of(filter_message(query)), JobFilter()),
    "job_report": Literal(job_report, PLAIN_JOB),
}
EVERY_FIELD: Final = [
    pytest.param(literal, field, id=f"{name}-{field.name}")
    for name, literal in LITERALS.items()
    for field in fields_of(type(literal.plain))
]


@pytest.mark.parametrize(("literal", "field"), EVERY_FIELD)
def test_no_field_is_forgotten(literal: Literal, field: Field) -> None:
    function, plain = literal
    changed = _changed(plain, field)
    assert getattr(changed, field.name) != getattr(plain, field.name)
    assert function(changed) != function(plain)


def _changed(plain: Any, field: Field) -> Any:
    """A value that differs in one field only."""
    given = {one.name: getattr(plain, one.name) for one in fields_of(type(plain))}
    return type(plain)(**{**given, field.name: _other(field)})


OTHERS: Final[Mapping[Any, object]] = {
    int: 7,
    str: "other",
    bool: True,
    State: State.FAILED,
    Order: Order.FAILED,
    frozenset[State]: frozenset([State.FAILED]),
    tuple[str, ...]: ("other",),
}


def _other(field: Field) -> object:
    """A value that no field has by itself."""
    if field.name == "retry":
        return encode_policy(RetryPolicy(max_attempts=7))
    if field.kind is Kind.JSON:
        return '{"other":1}'
    return OTHERS[field.type]


# What a declaration says --------------------------------------------------------------------------------


def test_a_declaration_is_read_with_what_json_calls_a_field() -> None:
    found = {field.name: field for field in fields_of(StoredJob)}
    assert found["key"] == Field("key", "key", int, Kind.KEY, is_optional=False)
    assert found["copy_of"] == Field("copy_of", "copy_of", int, Kind.KEY, is_optional=True)
    assert found["lease_until_ms"] == Field("lease_until_ms", "deadline", int, Kind.INSTANT, is_optional=True)
    assert found["run_at_ms"].json == "run_at"
    assert found["timeout_ms"] == Field("timeout_ms", "timeout_ms", int, None, is_optional=True)
    assert found["state"] == Field("state", "state", State, None, is_optional=False)
    assert [field.name for field in fields_of(Explanation) if field.is_optional] == ["until_ms", "worker", "ahead"]
    assert [field.type for field in fields_of(JobFilter) if field.name == "tenants"] == [tuple[str, ...]]
