"""Fingerprints of errors: the same for errors that differ in numbers, ids and quoted names only."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256
from typing import Final

FINGERPRINT_CHARS: Final = 10
_COMPARED_CHARS: Final = 1_000
"""Beyond this, errors differ in the data they quote, not in kind."""
_VARYING: Final = (
    (re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"), "#"),
    # Not the apostrophes of "can't" and "isn't", but b'...' too.
    (re.compile(r"(?<!\w)[bru]?'[^'\n]*'(?!\w)|\"[^\"\n]*\"|`[^`\n]*`"), "?"),
    (re.compile(r"\b0[xX][0-9a-fA-F]+\b"), "#"),
    (re.compile(r"\b(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{8,}\b"), "#"),
    (re.compile(r"[0-9]+(?:[.,:][0-9]+)*"), "#"),
)
_ONE_DIGIT: Final = str.maketrans("023456789", "1" * 9)
_REMEMBERED: Final = 2_000
_LETTERS: Final = str.maketrans("0123456789", "ghijklmnop")


def fingerprint(error: str) -> str:
    """A short name for errors of the same kind. Letters only, so that it is not mistaken for a job's key."""
    common = commonplace(error)
    return sha256(common.encode("utf-8", "replace")).hexdigest()[:FINGERPRINT_CHARS].translate(_LETTERS)


def commonplace(error: str) -> str:
    """An error without what differs from job to job: ids, numbers, quoted texts."""
    text = error[:_COMPARED_CHARS]
    # Digits are equal here, except the 0 of 0x: errors that differ in digits only share one cache entry.
    return _without_varying(text if "0x" in text or "0X" in text else text.translate(_ONE_DIGIT))


@lru_cache(maxsize=_REMEMBERED)
def _without_varying(text: str) -> str:
    for pattern, instead in _VARYING:
        text = pattern.sub(instead, text)
    return " ".join(text.split()).casefold()
