"""The Lua scripts, each joined with the parts that its header names and with constants of the core (`@NAME@`)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from everwork.core import limits, measures
from everwork.core.breaker import CircuitBreaker


def _listed(values: Iterable[int | str]) -> str:
    """Values as the items of a Lua table."""
    return ", ".join(map(repr, values))


SCHEMA_VERSION = 3
FOLDER = Path(__file__).parent / "lua"
CONSTANTS = {
    "SCHEMA_VERSION": SCHEMA_VERSION,
    "BREAKER_MS_DEFAULT": CircuitBreaker().open_ms,
    "BOUNDS_MS": _listed(measures.BOUNDS_MS),
    "EXECUTION_NAMES": _listed(measures.execution(bucket) for bucket in range(measures.BUCKETS)),
    "LAPSED_NAME": measures.failure(measures.LAPSED),
    "OTHER_WORKERS": measures.OTHER_WORKERS,
    "WAIT_NAMES": _listed(measures.wait(bucket) for bucket in range(measures.BUCKETS)),
}
_PARTS = re.compile(r"^-- Parts: (.*)$", re.MULTILINE)
_CONSTANT = re.compile(r"@([A-Z_]+)@")
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)


class Script(NamedTuple):
    """The text of a script, and the hash by which the server knows it."""

    text: str
    sha: str


@cache
def script(name: str) -> Script:
    """The script of a file, by its name without suffix."""
    own = (FOLDER / f"{name}.lua").read_text()
    header = _PARTS.search(own)
    parts = header.group(1).split() if header else []
    sources = [*((FOLDER / "parts" / f"{part}.lua").read_text() for part in parts), own]
    text = _CONSTANT.sub(lambda match: _constant(match.group(1)), _nested(sources))
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _constant(name: str) -> str:
    return str(CONSTANTS.get(name) or getattr(limits, name))


def _nested(sources: list[str]) -> str:
    """Each file in its own function, nested in the function of the previous file.

    To create a closure over a local of the same scope, Lua walks over all captured locals declared after it, so one
    long scope costs the square of its length on every call; a local of an outer function is only copied.
    """
    *outer, text = (_COMMENT.sub("", source) for source in sources)
    for source in reversed(outer):
        text = f"{source}return (function()\n{text}end)()\n"
    return text
