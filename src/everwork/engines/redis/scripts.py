"""The Lua files, each put together with the parts that its header names."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "lua"
_PARTS = re.compile(r"^-- Parts: (.*)$", re.MULTILINE)
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
    text = "\n".join(_COMMENT.sub("", source) for source in sources)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
