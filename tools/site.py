"""Builds the documentation site strictly: a warning, a broken link or a page missing from the contents is an error.

    python -m tools.site [FOLDER [PAGES]]

Needs no network, and neither does the site: a page that would load something from another host is an error, too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Final

from sphinx.cmd.build import build_main

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "build" / "docs" / "html"
PAGES: Final = ROOT / "docs"
_LOADED: Final = re.compile(
    r"""<(?:script|img|source|iframe|embed|object|video|audio)\b[^>]*?\b(?:src|srcset|data)=["'](?P<src>[^"']+)"""
    r"""|<link\b(?![^>]*\brel=["'](?:canonical|next|prev|search|index|author|help)["'])[^>]*?\bhref=["'](?P<href>[^"']+)"""
    r"""|(?:@import\s+["']|\burl\(\s*["']?)(?P<url>[^"')\s]+)"""
)
_FOREIGN: Final = re.compile(r"(?:https?:)?//")


def build(folder: Path, pages: Path = PAGES) -> list[str]:
    """Build the site into a folder; returns what is wrong with it, one problem per line."""
    # Two processes: writing a page takes a while, and more processes would not fit on small machines.
    options = [
        "--builder=html",
        "--fresh-env",
        "--jobs=2",
        "--fail-on-warning",
        "--quiet",
        f"--doctree-dir={folder.parent / 'doctrees'}",
    ]
    with redirect_stdout(StringIO()):
        code = build_main([*options, str(pages), str(folder)])
    problems = ["the pages have the problems above"] if code else []
    return problems + [f"{file.relative_to(folder)} loads {url}" for file, url in foreign_loads(folder)]


def foreign_loads(folder: Path) -> Iterator[tuple[Path, str]]:
    """What pages and styles would load from another host."""
    for file in sorted([*folder.rglob("*.html"), *folder.rglob("*.css")]):
        for found in _LOADED.finditer(file.read_text("utf-8")):
            url = found["src"] or found["href"] or found["url"]
            if _FOREIGN.match(url):
                yield file, url


def main(folder: Path = FOLDER, pages: Path = PAGES) -> None:
    """Build, and report where the site is."""
    problems = build(folder, pages)
    if problems:
        raise SystemExit("\n".join(problems))
    sys.stdout.write(f"{folder / 'index.html'}\n")


if __name__ == "__main__":
    main(*(Path(one).resolve() for one in sys.argv[1:]))
