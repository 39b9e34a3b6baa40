"""The site is built strictly: what is wrong fails the build and is named."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.docs.pages import DOCS, ROOT
from tools.reference.anchors import slug
from tools.site import foreign_loads

pytestmark = pytest.mark.timeout(600)
"""A busy machine takes minutes to build the site."""
INDEX: Final = "# Start\n\n{text}\n\n```{{toctree}}\n:hidden:\n\nother\n```\n"
OUTSIDE: Final = [*ROOT.glob("*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob("benchmarks/*.md")]
"""Pages that the site does not have, but which link to those that it has."""


def test_the_site_is_built_without_a_warning(site: Path) -> None:
    assert {"index.html", "search.html", "searchindex.js"} <= {one.name for one in site.iterdir()}


def test_every_term_of_the_glossary_can_be_linked_to(site: Path) -> None:
    page = (site / "reference" / "glossary.html").read_text("utf-8")
    anchors = set(re.findall(r'\bid="([^"]+)"', page))
    terms = re.findall(r"\*\*(.+?)\*\*", (DOCS / "reference" / "glossary.md").read_text("utf-8"))
    assert [term for term in terms if slug(term) not in anchors] == []


MISTAKES: Final = {
    "[there](missing.md)": "missing.md",
    "[there](other.md#nowhere)": "'nowhere'",
    "[here](#lost)": "'lost'",
    "![picture](missing.png)": "missing.png",
}


def test_mistakes_fail_the_build_and_are_named(tmp_path: Path) -> None:
    problems = _problems_of(tmp_path, {"index.md": INDEX.format(text="\n\n".join(MISTAKES)), "orphan.md": "# Orphan\n"})
    assert [one for one in MISTAKES.values() if one not in problems] == []
    assert "orphan.md: WARNING: document isn't included in any toctree" in problems


def test_a_page_that_asks_for_what_nothing_generates_fails_the_build(tmp_path: Path) -> None:
    problems = _problems_of(tmp_path, {"index.md": INDEX.format(text="<!-- generated: nothing -->")})
    assert "index: nothing generates 'nothing'" in problems


def _problems_of(folder: Path, pages: dict[str, str]) -> str:
    """What the build of some pages complains about; it fails."""
    for name, content in {"other.md": "# Other\n", **pages}.items():
        (folder / name).write_text(content, "utf-8")
    for name in ("conf.py", "_static"):
        (folder / name).symlink_to(DOCS / name)
    command = [sys.executable, "-m", "tools.site", str(folder / "built"), str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return done.stderr


def test_what_would_be_loaded_from_another_host_is_found(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        '<a href="https://example.org"></a><link rel="canonical" href="https://example.org/page">'
        '<script src="https://cdn.example.org/a.js"></script><link rel="stylesheet" href="//cdn.example.org/a.css">'
    )
    (tmp_path / "page.css").write_text('@import url("https://fonts.example.org/a.css");')
    assert [url for _, url in foreign_loads(tmp_path)] == [
        "https://fonts.example.org/a.css",
        "https://cdn.example.org/a.js",
        "//cdn.example.org/a.css",
    ]


def test_links_from_outside_of_the_site_lead_to_headings() -> None:
    assert [f"{page.relative_to(ROOT)}: {link}" for page, link in _broken_anchors()] == []


def _broken_anchors() -> Iterator[tuple[Path, str]]:
    for page in OUTSIDE:
        prose = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        for path, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", prose):
            target = (page.parent / path) if path else page
            if target.suffix == ".md" and anchor not in _headings(target):
                yield page, f"{path}#{anchor}"


def _headings(page: Path) -> set[str]:
    prose = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return {slug(re.sub(r"`|\[|\]\(.*?\)", "", title)) for title in re.findall(r"^#+ (.+)$", prose, re.MULTILINE)}
