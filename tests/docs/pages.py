"""The pages of the documentation and their examples."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
PAGES: Final = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))

_BLOCK: Final = re.compile(
    r"(?:^<!-- not run: (?P<reason>.+?) -->\n+)?^```(?P<language>\w+)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE
)
_FILE: Final = re.compile(r"# ([\w/]+\.py)\n")


class Block(NamedTuple):
    """An example on a page: `reason` if it cannot run, `file` if its first line names one."""

    page: Path
    line: int
    language: str
    text: str
    reason: str | None

    @property
    def where(self) -> str:
        """The page and the line of its first line."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file that it is to be saved as; a module of tests for pytest gets one, whatever the page calls it."""
        if (named := _FILE.match(self.text)) is not None:
            return named[1]
        is_module = re.search(r"^import (pytest|unittest)$", self.text, re.MULTILINE)
        return f"test_line_{self.line}.py" if is_module else None


def blocks_of(page: Path, language: str) -> list[Block]:
    """The examples of a page in a language."""
    return [one for one in _blocks(page) if one.language == language]


def _blocks(page: Path) -> Iterator[Block]:
    text = page.read_text("utf-8")
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("text")) + 1
        yield Block(page, line, found["language"], found["text"], found["reason"])
