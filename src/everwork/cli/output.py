"""Output of commands: one JSON document, or a table for people; errors are one line each."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

PIPE_WIDTH = 240
"""The width of output that is not written to a terminal."""
STYLES = {"pending": "yellow", "processing": "cyan", "completed": "green", "failed": "red", "cancelled": "dim"}


class OutputClosed(Exception):
    """The reader of standard output has closed it, as in `everwork jobs list | head -1`."""


class Column(NamedTuple):
    """A column of a table. A `whole` one is never truncated or wrapped; others keep at least `width_min` characters."""

    title: str
    whole: bool = False
    right: bool = False
    one_line: bool = False
    width_min: int = 8


def write_stderr(message: str) -> None:
    """Write one line to standard error."""
    print(f"everwork: {one_line(message)}", file=sys.stderr)


def command_name() -> str:
    """How to type this command here: `everwork`, or its path if the shell would not find it."""
    called = Path(sys.argv[0])
    if called.name != "everwork" or len(called.parts) == 1:
        return "everwork"
    found = shutil.which("everwork")
    if found is not None and Path(found).resolve() == called.resolve():
        return "everwork"
    return shlex.quote(os.path.relpath(called) if called.absolute().is_relative_to(Path.cwd()) else str(called))


def write(text: str) -> None:
    """Write text to standard output, unbuffered; characters that its encoding lacks become question marks."""
    left = memoryview(text.encode(sys.stdout.encoding or "utf-8", "replace"))
    try:
        sys.stdout.flush()
        while left:
            # Without a buffer (PYTHONUNBUFFERED), a write may be partial.
            left = left[sys.stdout.buffer.write(left) :]
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise OutputClosed from None


def write_json(document: Any) -> None:
    """Write one JSON document: on one line for programs, indented on a terminal."""
    import orjson  # noqa: PLC0415 - only what is used is loaded

    option = orjson.OPT_APPEND_NEWLINE | (orjson.OPT_INDENT_2 if sys.stdout.isatty() else 0)
    write(orjson.dumps(document, option=option).decode())


def write_rich(*parts: RenderableType) -> None:
    """Write tables and texts for people."""
    from rich.console import Console  # noqa: PLC0415 - only what is used is loaded

    is_terminal = sys.stdout.isatty()
    console: Console = Console(
        force_terminal=is_terminal, width=None if is_terminal else PIPE_WIDTH, highlight=False, emoji=False
    )
    with console.capture() as captured:
        for part in parts:
            # Keep a command to be pasted on one line, however narrow the terminal is.
            console.print(part, soft_wrap=bool(getattr(part, "no_wrap", False)))
    lines = captured.get().splitlines()
    write("".join(f"{line.rstrip()}\n" for line in lines))


def table(columns: Sequence[Column], rows: Sequence[Sequence[str | Text]]) -> Table:
    """A plain table; only columns that are not `whole` shrink on a narrow terminal."""
    from rich.table import Table  # noqa: PLC0415 - only what is used is loaded
    from rich.text import Text  # noqa: PLC0415

    built = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for at, column in enumerate(columns):
        width = max([len(column.title), *(len(row[at]) for row in rows)])
        built.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=column.whole or column.one_line,
            min_width=width if column.whole else min(width, column.width_min),
            overflow="ellipsis" if column.one_line else "fold",
        )
    for row in rows:
        built.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return built


def state_text(state: str, shown: str | None = None) -> Text:
    """A state in its color."""
    from rich.text import Text  # noqa: PLC0415 - only what is used is loaded

    return Text(shown or state, style=STYLES.get(state, ""))


def one_line(text: str) -> str:
    """A text on one line, without control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def span(milliseconds: int) -> str:
    """A duration in its largest unit: 59s, 3m, 5h, 2d."""
    seconds = abs(milliseconds) // 1000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def delay_text(milliseconds: int) -> str:
    """The delay before a retry: 0.5 s, 59 s, 3m, 5h, 2d."""
    return f"{milliseconds / 1000:g} s" if milliseconds < 60_000 else span(milliseconds)
