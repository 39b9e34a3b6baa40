"""The documentation is under test: its links lead somewhere, its examples parse, its commands exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def test_every_relative_link_leads_to_a_file() -> None:
    assert [f"{page.name}: {link}" for page, link in _links() if not (page.parent / link).exists()] == []


def test_every_python_example_parses() -> None:
    for page in PAGES:
        for example in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            ast.parse(example, filename=page.name)


def test_every_make_command_is_a_target() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    mentioned = {target for page in PAGES for target in re.findall(r"`make ([a-z]+)", page.read_text())}
    assert mentioned <= targets


def _links() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for link in re.findall(r"\]\(([^)#\s]+)", prose):
            if "://" not in link and not link.startswith("mailto:"):
                yield page, link
