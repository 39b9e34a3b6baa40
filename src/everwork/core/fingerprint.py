"""How errors are grouped: by exception class, and by a fingerprint that ignores numbers, ids and quoted names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Final

from everwork.core.classify import ErrorRule, built_in_classes, classify
from everwork.core.ending import TIMED_OUT
from everwork.core.job import StoredJob
from everwork.core.measures import LAPSED, REJECTED, THROWN, UNCLASSIFIED
from everwork.core.outcome import LEASE_EXPIRED

FINGERPRINT_CHARS: Final = 10
_COMPARED_CHARS: Final = 1_000
"""Beyond this length, errors differ in the data they quote, not in their cause."""
_VARYING: Final = (
    (re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"), "#"),
    # Includes b'...', but not the apostrophes of "can't" and "isn't".
    (re.compile(r"(?<!\w)[bru]?'[^'\n]*'(?!\w)|\"[^\"\n]*\"|`[^`\n]*`"), "?"),
    (re.compile(r"\b0[xX][0-9a-fA-F]+\b"), "#"),
    (re.compile(r"\b(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{8,}\b"), "#"),
    (re.compile(r"[0-9]+(?:[.,:][0-9]+)*"), "#"),
)
_ONE_DIGIT: Final = str.maketrans("023456789", "1" * 9)
_REMEMBERED: Final = 2_000
_LETTERS: Final = str.maketrans("0123456789", "ghijklmnop")
_TRACEBACK: Final = "Traceback (most recent call last)"
_CLASS_CHARS_MAX: Final = 100
_NAME: Final = re.compile(r"(?P<path>(?:[A-Za-z_]\w*(?:\.|::))*)(?P<name>[A-Za-z_]\w*)(?::(?!:)|$)", re.ASCII)
"""A name with its module at the start of a line: the whole line, or the part before a colon."""
_TWO_WORDS: Final = re.compile(r"[A-Z][a-z0-9]+[A-Z]|[A-Z]{2,}[a-z]")
_ENDINGS: Final = ("Error", "Exception", "Warning", "Timeout", "Interrupt", "Exit", "Failure")
_OLD_CLASSES: Final = frozenset({"error", "timeout", "gaierror", "herror", "sslerror"})
"""Lowercase classes of the standard library, recognized only with their module: `socket.timeout`."""


def fingerprint(error: str) -> str:
    """A short name for errors of the same kind. Letters only, so that it is not mistaken for a job key."""
    common = commonplace(error)
    return sha256(common.encode("utf-8", "replace")).hexdigest()[:FINGERPRINT_CHARS].translate(_LETTERS)


def exception_class(error: str) -> str:
    """The name of the exception class that an error text begins with, without its module; "" if there is none.

    `requests.exceptions.HTTPError: 404` gives `HTTPError`; in a traceback, the last line counts. A word before a colon
    is a class only if it looks like one, so that `Address: unknown` has none. A handler's timeout is a `TimeoutError`.
    """
    line = _telling_line(error).strip()[: 4 * _CLASS_CHARS_MAX]
    if line.startswith(TIMED_OUT):
        return TimeoutError.__name__
    found = _NAME.match(line)
    if found is None or len(found["name"]) > _CLASS_CHARS_MAX:
        return ""
    return found["name"] if _is_class(found["name"], bool(found["path"])) else ""


def category_of(job: StoredJob, rules: Sequence[ErrorRule] = ()) -> str:
    """The category of a failed job's error, by its text: base classes are known only for Python's own exceptions."""
    error = job.last_error or ""
    if job.rejected or job.error_code is not None:
        return REJECTED if job.rejected else THROWN
    if error.startswith(LEASE_EXPIRED):
        return LAPSED
    found = classify(built_in_classes(exception_class(error)), error, rules)
    return UNCLASSIFIED if found is None else found.value


def _telling_line(error: str) -> str:
    lines = [line for line in error.splitlines() if line.strip()]
    if not lines or not lines[0].startswith(_TRACEBACK):
        return lines[0] if lines else ""
    ends = [line for line in lines[1:] if not line[0].isspace()]
    return ends[-1] if ends else ""


def _is_class(name: str, has_module: bool) -> bool:
    bare = name.lstrip("_")
    if has_module and (bare[:1].isupper() or name in _OLD_CLASSES):
        return True
    return bare[:1].isupper() and (bare.endswith(_ENDINGS) or _TWO_WORDS.match(bare) is not None)


def commonplace(error: str) -> str:
    """An error without the parts that differ between jobs: ids, numbers, quoted strings."""
    text = error[:_COMPARED_CHARS]
    # All digits count as equal, unless the text contains 0x: errors that differ only in digits share a cache entry.
    return _without_varying(text if "0x" in text or "0X" in text else text.translate(_ONE_DIGIT))


@lru_cache(maxsize=_REMEMBERED)
def _without_varying(text: str) -> str:
    for pattern, instead in _VARYING:
        text = pattern.sub(instead, text)
    return " ".join(text.split()).casefold()
