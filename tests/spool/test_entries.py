"""What a spool holds, as text: every job and outcome comes back as it was; and how long it has been there."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as some

from everwork.core.job import NewJob
from everwork.core.outcome import Complete, Failed, Outcome, Reject, Release, Retry, Throw
from everwork.spool.entries import (
    Moment,
    SpooledJob,
    due_outcome,
    job_from,
    job_text,
    outcome_from,
    outcome_text,
)

TEXT = some.text(some.characters(exclude_categories=["Cs"]), max_size=20)
NUMBER = some.integers(0, 2**63 - 1)
JSON = some.sampled_from(["{}", '{"a":[1,null,"é\\n"]}'])
JOBS = some.builds(
    NewJob,
    type=TEXT,
    variables=JSON,
    tenant=TEXT,
    priority=some.integers(-512, 511),
    delay_ms=NUMBER,
    run_at_ms=some.none() | NUMBER,
    max_attempts=some.none() | NUMBER,
    dedupe_key=some.none() | TEXT,
    limit_key=some.none() | TEXT,
    correlation_id=some.none() | TEXT,
    expires_at_ms=some.none() | NUMBER,
    timeout_ms=some.none() | NUMBER,
    headers=some.none() | JSON,
    retry=some.none() | JSON,
    extra=some.none() | JSON,
)
TRACEBACK = some.none() | TEXT
ENDED = {"key": NUMBER, "attempt": NUMBER}
OUTCOMES = some.one_of(
    some.builds(
        Complete, **ENDED, result=some.none() | JSON, events=some.lists(JOBS, max_size=3).map(lambda jobs: (*jobs,))
    ),
    some.builds(
        Failed,
        **ENDED,
        error=TEXT,
        retries=some.none() | NUMBER,
        backoff_ms=some.none() | NUMBER,
        final=some.booleans(),
        variables=some.none() | JSON,
        classes=some.none() | some.lists(TEXT, max_size=3).map(lambda names: (*names,)),
        is_counted=some.booleans(),
        traceback=TRACEBACK,
    ),
    some.builds(Reject, **ENDED, error=TEXT, traceback=TRACEBACK),
    some.builds(Retry, **ENDED, error=TEXT, delay_ms=some.none() | NUMBER, traceback=TRACEBACK),
    some.builds(Release, **ENDED),
    some.builds(Throw, **ENDED, code=TEXT, error=TEXT, variables=some.none() | JSON, traceback=TRACEBACK),
)


@given(JOBS)
def test_every_job_comes_back_as_it_was(job: NewJob) -> None:
    assert job_from(job_text(job)) == job


@given(OUTCOMES)
def test_every_outcome_comes_back_as_it_was(outcome: Outcome) -> None:
    back = outcome_from(outcome_text(outcome))
    assert (type(back), back) == (type(outcome), outcome)


def test_a_failure_without_a_traceback_is_written_as_earlier_versions_read_it() -> None:
    assert "traceback" not in outcome_text(Failed(1, 1, "boom"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"type":"work","colour":"red"}', "another version of Everwork: unknown field 'colour'"),
        ('{"variables":"{}"}', "another version of Everwork: a field is missing"),
        ("[1]", "is damaged: not a JSON object"),
        ('{"type":"wo', "is damaged: not JSON"),
    ],
)
def test_a_job_that_this_version_cannot_read_is_an_error_that_says_why(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        job_from(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"kind":"complete","key":1,"attempt":1,"mood":"good"}', "unknown field 'mood'"),
        ('{"kind":"dance","key":1,"attempt":1}', "an outcome of an unknown kind"),
        ('{"key":1,"attempt":1}', "an outcome of an unknown kind"),
        ('{"kind":"complete","key":1,"attempt":1,"events":[7]}', "a field is missing or has a wrong value"),
        ('{"kind":"complete","key":1,"attempt":1,"events":[{"type":"a","colour":1}]}', "unknown field 'colour'"),
        ("null", "is damaged: not a JSON object"),
    ],
)
def test_an_outcome_that_this_version_cannot_read_is_an_error_that_says_why(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        outcome_from(text)


# Clocks -------------------------------------------------------------------------------------------------


def test_a_clock_that_is_set_forward_or_back_changes_no_age() -> None:
    since = Moment("boot", 1_000, 50_000)
    assert since.elapsed_ms(Moment("boot", 4_000, 9_000_000)) == 3_000
    assert since.elapsed_ms(Moment("boot", 4_000, 10)) == 3_000


def test_after_a_restart_of_the_host_the_wall_clock_counts_and_never_below_zero() -> None:
    since = Moment("boot", 1_000, 50_000)
    assert since.elapsed_ms(Moment("another", 10, 57_000)) == 7_000
    assert since.elapsed_ms(Moment("another", 10, 40_000)) == 0
    assert Moment("", 0, 50_000).elapsed_ms(Moment("", 0, 51_000)) == 1_000


def test_this_moment_is_by_the_clock_that_also_counts_while_the_host_sleeps() -> None:
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    now = Moment.now()
    assert before <= now.boot_ms <= time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    assert now.boot


def test_the_time_in_the_spool_counts_towards_a_delay_whatever_the_wall_clock_says() -> None:
    job = SpooledJob(1, NewJob("work", delay_ms=10_000), Moment("boot", 1_000, 50_000))
    assert job.due(Moment("boot", 4_000, 9_000_000)).delay_ms == 7_000
    assert job.due(Moment("boot", 999_000, 0)).delay_ms == 0
    assert job.due(Moment("another", 0, 40_000)).delay_ms == 10_000


def test_the_time_in_the_spool_counts_towards_the_delays_of_events() -> None:
    since, now = Moment("boot", 1_000, 50_000), Moment("boot", 4_000, 0)
    events = (NewJob("soon"), NewJob("later", delay_ms=10_000))
    outcome = due_outcome(Complete(1, 1, None, events), since, now)
    assert isinstance(outcome, Complete)
    assert [event.delay_ms for event in outcome.events] == [0, 7_000]
    assert due_outcome(Failed(1, 1, "no"), since, now) == Failed(1, 1, "no")
