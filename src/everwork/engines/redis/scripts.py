"""The Lua files, each put together with the parts that its header names and with the numbers of the core (`@NAME@`)."""

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
    """Values as Lua writes them in a table."""
    return ", ".join(map(repr, values))


SCHEMA_VERSION = 2
FOLDER = Path(__file__).parent / "lua"
NAMED = {
    "SCHEMA_VERSION": SCHEMA_VERSION,
    "BREAKER_MS_DEFAULT": CircuitBreaker().open_ms,
    "BOUNDS_MS": _listed(measures.BOUNDS_MS),
    "EXECUTION_NAMES": _listed(measures.execution(bucket) for bucket in range(measures.BUCKETS)),
    "WAIT_NAMES": _listed(measures.wait(bucket) for bucket in range(measures.BUCKETS)),
}
_PARTS = re.compile(r"^-- Parts: (.*)$", re.MULTILINE)
_LIMIT = re.compile(r"@([A-Z_]+)@")
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)


class Script(NamedTuple):
    """A script as the server runs it, and the name under which the server keeps it."""

    text: str
    sha: str


@cache
def script(name: str) -> Script:
    """A script by the name of its file."""
    own = (FOLDER / f"{name}.lua").read_text()
    named = _PARTS.search(own)
    parts = named.group(1).split() if named else []
    sources = [*((FOLDER / "parts" / f"{part}.lua").read_text() for part in parts), own]
    text = _LIMIT.sub(lambda named: str(NAMED.get(named.group(1)) or getattr(limits, named.group(1))), _nested(sources))
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _nested(sources: list[str]) -> str:
    """Each file in a function of its own, inside that of the one before.

    To make a function over a local of the same scope, Lua walks over all the locals above it that others hold, so that
    one long scope costs the square of its length, at every call; over a local of an outer function it only copies.
    """
    *outer, text = (_COMMENT.sub("", source) for source in sources)
    for source in reversed(outer):
        text = f"{source}return (function()\n{text}end)()\n"
    return text
