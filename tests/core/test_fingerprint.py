"""Fingerprints: the same for errors that differ in what belongs to one job only."""

from __future__ import annotations

import pytest

from everwork.core.fingerprint import FINGERPRINT_CHARS, fingerprint


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
