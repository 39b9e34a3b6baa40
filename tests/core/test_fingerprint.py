"""Fingerprints: the same for errors that differ in what belongs to one job only."""

from __future__ import annotations

import pytest

from everwork.core.classify import ErrorRule, Strategy
from everwork.core.fingerprint import FINGERPRINT_CHARS, category_of, exception_class, fingerprint
from everwork.core.job import StoredJob
from everwork.core.states import State


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("timed out after 30 s", "timed out after 1.5 s"),
        ("job 9b2e4c1a-1111-4222-8333-0123456789ab lost", "job 00000000-aaaa-4bbb-8ccc-ffffffffffff lost"),
        ("KeyError: 'ann'", "KeyError: 'bob the builder'"),
        ('no such user "ann"', 'no such user ""'),
        ("no JSON: b'{'", "no JSON: b'<html>'"),
        ("at 0x7f3a12 in deadbeef01", "at 0x1 in 0123abcd99"),
        ("cannot open /var/spool/17/a3.txt", "cannot open /var/spool/9/a18.txt"),
        ("connect to 10.0.0.1:5432 failed", "Connect  to\n192.168.1.20:80 failed"),
        ("x" * 2_000 + "1", "x" * 3_000),
    ],
)
def test_errors_that_differ_in_numbers_ids_and_names_have_one_fingerprint(one: str, other: str) -> None:
    assert fingerprint(one) == fingerprint(other)


def test_errors_of_different_kinds_have_different_fingerprints() -> None:
    errors = ["", "timed out", "refused", "KeyError: 'a'", "ValueError: 'a'", "timed out in the facade", "\ud800", "ü"]
    errors += ["can't read the file, disk isn't mounted", "can't charge the card, bank isn't mounted"]
    assert len({fingerprint(error) for error in errors}) == len(errors)


def test_a_fingerprint_is_short_stable_and_no_number() -> None:
    assert fingerprint("no such address") == "hleegbjcjc"
    assert all(len(found) == FINGERPRINT_CHARS and found.isalpha() for found in map(fingerprint, map(str, range(9))))


@pytest.mark.parametrize(
    ("error", "name"),
    [
        ("TimeoutError", "TimeoutError"),
        ("KeyError: 'ann'", "KeyError"),
        ("KeyError:", "KeyError"),
        ("requests.exceptions.HTTPError: 404 Client Error: Not Found", "HTTPError"),
        ("shop.errors.Declined: no funds", "Declined"),
        ("CardDeclined: no funds", "CardDeclined"),
        ("DoesNotExist", "DoesNotExist"),
        ("socket.timeout: timed out", "timeout"),
        ("struct.error: unpack requires 4 bytes", "error"),
        ("java.lang.IllegalStateException: closed", "IllegalStateException"),
        ("ActiveRecord::RecordNotFound: no row", "RecordNotFound"),
        ("Timeout: no answer", "Timeout"),
        ("  \n\nValueError: bad\nmore: of it", "ValueError"),
        ('Traceback (most recent call last):\n  File "a.py", line 1\nshop.Broken: it\n', "Broken"),
        ("timed out after 30 s", "TimeoutError"),
        ("_PrivateError: x", "_PrivateError"),
        ("Step2: no paper", ""),
        ("", ""),
        ("   \n ", ""),
        ("no such address", ""),
        ("Address: unknown", ""),
        ("example.com: connection refused", ""),
        ("connection refused: TimeoutError: x", ""),
        ("lease expired: worker 'w1' did not report in time", ""),
        ("OSError was raised: x", ""),
        ("HTTPS://example.org/x", ""),
        ("Überraschung: ja", ""),
        (f"{'A' * 200}Error: too long to be a name", ""),
        (f"{'module.' * 2_000}Error: x", ""),
        ("\x00\ud800TimeoutError: x", ""),
        ("Traceback (most recent call last):", ""),
        ('Traceback (most recent call last):\n  File "a.py", line 1', ""),
    ],
)
def test_the_exception_class_is_what_an_error_begins_with(error: str, name: str) -> None:
    assert exception_class(error) == name


def test_a_long_error_without_a_class_takes_no_time() -> None:
    assert exception_class("a." * 1_000_000) == ""
    assert exception_class("Aa" * 1_000_000) == ""


@pytest.mark.parametrize(
    ("error", "category"),
    [
        ("ConnectionRefusedError: no", "retryable"),
        ("timed out after 30 s", "retryable"),
        ("HTTPError: too many requests", "rate_limited"),
        ("CardDeclined: no funds", "permanent"),
        ("KeyError: 'ann'", "unclassified"),
        ("print: no paper", "unclassified"),
        ("lease expired: worker 'w1' did not report in time", "lapsed"),
        ("", "unclassified"),
    ],
)
def test_the_category_of_a_dead_letter_follows_from_its_error(error: str, category: str) -> None:
    rules = [ErrorRule(Strategy.PERMANENT, exception="CardDeclined")]
    assert category_of(a_failed_job(last_error=error), rules) == category


def test_rejected_jobs_and_business_errors_have_a_category_of_their_own() -> None:
    assert category_of(a_failed_job(last_error="TimeoutError", rejected=True)) == "rejected"
    assert category_of(a_failed_job(last_error="TimeoutError", error_code="NO_FUNDS")) == "thrown"


def a_failed_job(**fields: object) -> StoredJob:
    """A dead letter, not in any store."""
    unset = dict.fromkeys((one for one in StoredJob.__dataclass_fields__), None)
    return StoredJob(**{**unset, "state": State.FAILED, "rejected": False, **fields})  # type: ignore[arg-type]
