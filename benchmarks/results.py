"""RESULTS.md: measured sections are replaced, handwritten text is kept."""

from __future__ import annotations

import re
from pathlib import Path

RESULTS = Path(__file__).with_name("RESULTS.md")


def put(section: str, text: str, path: Path = RESULTS) -> None:
    """Replace one section, or append it if none has that name."""
    begin, end = f"<!-- measured: {section} -->", f"<!-- end: {section} -->"
    block = f"{begin}\n\n{text.strip()}\n\n{end}"
    known = path.read_text("utf-8") if path.exists() else ""
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if pattern.search(known):
        path.write_text(pattern.sub(lambda _: block, known), "utf-8")
    else:
        path.write_text(f"{known.rstrip()}\n\n{block}\n", "utf-8")
