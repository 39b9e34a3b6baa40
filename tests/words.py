"""Every text that people read: messages, docstrings, templates, scripts, proto files, documentation, deploy files."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]

GLOBS: Final = (
    "src/**/*.py",
    "src/**/*.html",
    "src/**/*.js",
    "proto/**/*.proto",
    "docs/**/*.md",
    "README.md",
    "CONTRIBUTING.md",
    "benchmarks/*.md",
    "examples/**/*.md",
    "examples/**/*.py",
    "deploy/**/*",
    "Dockerfile",
)


class Text(NamedTuple):
    """A text, and the line on which it starts."""

    line: int
    text: str


def files() -> Iterator[Path]:
    """The files that contain texts for people."""
    for pattern in GLOBS:
        found = (path for path in ROOT.glob(pattern) if path.is_file() and "__pycache__" not in path.parts)
        yield from sorted(path for path in found if _extractor(path) is not None)


def texts_of(path: Path) -> Iterator[Text]:
    """The texts of a file, without code: literals without a space, names in backticks, SQL."""
    return texts_of_source(path, path.read_text("utf-8"))


def texts_of_source(path: Path, source: str) -> Iterator[Text]:
    """The texts of a file with this content."""
    extract = _extractor(path)
    return iter(()) if extract is None else extract(source)


def _extractor(path: Path) -> Callable[[str], Iterator[Text]] | None:
    if path.name.endswith("_pb2.py") or path.name.endswith("_pb2_grpc.py"):
        return None
    if "deploy" in path.parts or path.name == "Dockerfile":
        return None if path.suffix in (".md", ".py") else of_comments
    return BY_SUFFIX.get(path.suffix)


# Python -------------------------------------------------------------------------------------------

SQL: Final = re.compile(r"\s*(--|SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|WITH|PRAGMA|FROM|WHERE|SET)\b")


def of_python(source: str) -> Iterator[Text]:
    """Docstrings and string literals. The parts of an f-string are one text."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in node.values}
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield from _literal(node.lineno, text)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield from _literal(node.lineno, node.value)


def _literal(line: int, text: str) -> Iterator[Text]:
    if " " in text and not SQL.match(text):
        yield from _prose(line, text)


CODE: Final = re.compile(r"`[^`\n]*`")


def _prose(line: int, text: str) -> Iterator[Text]:
    for number, one in enumerate(text.splitlines(), line):
        if plain := CODE.sub("`", one).strip():
            yield Text(number, plain)


# Templates and scripts ----------------------------------------------------------------------------

JINJA: Final = re.compile(r"\{#.*?#\}|\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
QUOTED: Final = re.compile(r"\"([^\"\n]*)\"|'([^'\n]*)'")
NOT_PROSE: Final = frozenset(
    ("class", "style", "d", "points", "viewbox", "href", "rel", "transform", "media", "hx-vals", "src", "sizes")
)


def of_html(source: str) -> Iterator[Text]:
    """Text and attributes of a template, and the literals in its expressions."""
    for found in JINJA.finditer(source):
        if not found[0].startswith("{#"):
            line = source.count("\n", 0, found.start()) + 1
            yield from (Text(line, text) for text in _quoted(found[0]) if " " in text)
    parser = _Page()
    parser.feed(JINJA.sub(lambda found: "\n" * found[0].count("\n"), source))
    yield from parser.texts


def _quoted(code: str) -> Iterator[str]:
    for found in QUOTED.finditer(code):
        yield found[1] or found[2] or ""


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[Text] = []
        self._is_code = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._is_code = tag in ("script", "style", "code")
        for name, value in attrs:
            if value and " " in value and name not in NOT_PROSE:
                self.texts.append(Text(self.getpos()[0], value))

    def handle_endtag(self, tag: str) -> None:
        self._is_code = False

    def handle_data(self, data: str) -> None:
        if not self._is_code:
            self.texts += _prose(self.getpos()[0], data)


SCRIPT_LITERAL: Final = re.compile(r"\"([^\"\\\n]|\\.)*\"|'([^'\\\n]|\\.)*'|`[^`]*`")


def of_script(source: str) -> Iterator[Text]:
    """The literals of JavaScript that contain a space."""
    for number, line in enumerate(source.splitlines(), 1):
        if not line.lstrip().startswith(("//", "*", "/*")):
            for found in SCRIPT_LITERAL.finditer(line):
                if " " in found[0]:
                    yield Text(number, found[0][1:-1])


# Other files --------------------------------------------------------------------------------------


def of_proto(source: str) -> Iterator[Text]:
    """Comments of a proto file."""
    for number, line in enumerate(source.splitlines(), 1):
        if "//" in line:
            yield from _prose(number, line.partition("//")[2])


def of_comments(source: str) -> Iterator[Text]:
    """Comments that start with a number sign, and the descriptions of systemd units."""
    for number, line in enumerate(source.splitlines(), 1):
        if line.startswith("Description="):
            yield from _prose(number, line)
        elif "#" in line:
            yield from _prose(number, line.partition("#")[2])


def of_markdown(source: str) -> Iterator[Text]:
    """The prose of a page, without code blocks."""
    is_fenced = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_fenced = not is_fenced
        elif not is_fenced and not line.startswith("    "):
            yield from _prose(number, line)


BY_SUFFIX: Final[Mapping[str, Callable[[str], Iterator[Text]]]] = {
    ".py": of_python,
    ".html": of_html,
    ".js": of_script,
    ".proto": of_proto,
    ".md": of_markdown,
}
