"""Converts what code forges render and the site does not: Mermaid diagrams, and links to Markdown files outside the
pages.
"""

from __future__ import annotations

import re
from typing import Final

_DIAGRAM: Final = re.compile(r"^```mermaid\nstateDiagram-v2\n(.*?)^```", re.DOTALL | re.MULTILINE)
_STEP: Final = re.compile(r"^\s*(\S+) --> (\S+)(?:: (.+))?$", re.MULTILINE)
_OUTSIDE: Final = re.compile(r"\[([^\]]+)\]\((?:\.\./)+((?:examples|benchmarks)/[^)#\s]+\.md|[A-Z]+\.md)(?:#[^)]*)?\)")


def for_site(text: str) -> str:
    """A page as the site shows it."""
    return _OUTSIDE.sub(r"\1 (`\2` in the source)", _DIAGRAM.sub(_table, text))


def _table(diagram: re.Match[str]) -> str:
    """The steps of a state diagram as a table: the site loads no diagram library from another host."""
    rows = [f"| {_state(start)} | {by} | {_state(end)} |\n" for start, end, by in _STEP.findall(diagram[1]) if by]
    return "".join(["| from | by | to |\n|---|---|---|\n", *rows])


def _state(name: str) -> str:
    return "(new)" if name == "[*]" else f"`{name}`"
