"""How an attempt ends without a result, for every kind of worker."""

from __future__ import annotations

import pytest

from everwork.core import ending
from everwork.core import outcome as o
from everwork.core.classify import class_names
from everwork.core.limits import OUTAGE_RELEASES_MAX
from everwork.exceptions import EngineUnavailable, Fail, Reject, Retry


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Fail("no money"), o.Failed(7, 2, "no money", final=True, is_counted=False)),
        (Fail(), o.Failed(7, 2, "failed by the handler", final=True, is_counted=False)),
        (Reject("nonsense"), o.Reject(7, 2, "nonsense")),
        (Retry("later"), o.Retry(7, 2, "later")),
        (Retry("later", delay=1.5), o.Retry(7, 2, "later", 1_500)),
        (KeyError(), o.Failed(7, 2, "KeyError", classes=("KeyError", "LookupError", "Exception"))),
        (OSError("gone"), o.Failed(7, 2, "OSError: gone", classes=("OSError", "Exception"))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_handler_raises_decides_how_its_attempt_ends(error: Exception, outcome: o.Outcome) -> None:
    assert ending.raised(7, 2, error) == outcome


def test_a_retry_whose_delay_makes_no_sense_fails_for_good_and_no_breaker_counts_it() -> None:
    end = ending.raised(7, 2, Retry(delay=-5))
    assert isinstance(end, o.Failed)
    assert (end.final, end.is_counted, end.error[:14]) == (True, False, "Retry: delay: ")


def test_a_call_that_takes_too_long_ends_as_one_that_raised_a_timeout_error() -> None:
    end = ending.timed_out(7, 2, 1.5, "; it still runs")
    assert end == o.Failed(7, 2, "timed out after 1.5 s; it still runs", classes=class_names(TimeoutError()))


def test_whoever_has_no_retry_fails_for_good_by_errors_and_time_outs() -> None:
    ends = (ending.raised(7, 2, KeyError(), is_final=True), ending.timed_out(7, 2, 1.0, is_final=True))
    assert [isinstance(end, o.Failed) and (end.final, end.retries) for end in ends] == [(True, 0), (True, 0)]


def _raised_while_handling(signal: Exception, error: Exception) -> Exception:
    try:
        try:
            raise error
        except type(error):
            raise signal  # noqa: B904 - as users write it
    except type(signal) as raised:
        return raised


@pytest.mark.parametrize(
    ("signal", "outcome"),
    [
        (Fail(), o.Failed(7, 2, "OSError: gone", final=True, is_counted=False)),
        (Reject(), o.Reject(7, 2, "OSError: gone")),
        (Retry(), o.Retry(7, 2, "OSError: gone")),
        (Retry("later"), o.Retry(7, 2, "later")),
    ],
    ids=str,
)
def test_a_signal_without_a_reason_has_the_error_that_was_being_handled(signal: Exception, outcome: o.Outcome) -> None:
    assert ending.raised(7, 2, _raised_while_handling(signal, OSError("gone"))) == outcome


def test_a_signal_without_any_reason_says_what_it_is() -> None:
    assert [ending.raised(7, 2, one) for one in (Retry(), Reject())] == [
        o.Retry(7, 2, "retry requested"),
        o.Reject(7, 2, "rejected by the worker"),
    ]


def test_an_outage_does_not_count_until_it_has_gone_on_for_too_long() -> None:
    away = EngineUnavailable("cannot reach Redis")
    for error in (away, _raised_while_handling(Retry(), away)):
        assert ending.outage_of(error, 0) is away
        assert ending.outage_of(error, OUTAGE_RELEASES_MAX) is None
    assert ending.outage_of(_raised_while_handling(Fail(), away), 0) is None
    assert ending.outage_of(OSError(), 0) is None
    assert [ending.outage_pause(n) for n in (0, 1, 4, 5, OUTAGE_RELEASES_MAX)] == [1, 2, 16, 30, 30]
