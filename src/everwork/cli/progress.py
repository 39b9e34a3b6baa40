"""Progress of long commands: a bar on a terminal, a line every few seconds elsewhere; always on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from everwork.cli.output import write_stderr
from everwork.service.store_copy import Progress

LINE_SECONDS = 5.0


class Step(NamedTuple):
    """Progress of a command; the total may be unknown."""

    done: int
    total: int | None


@contextmanager
def shown_progress() -> Iterator[Callable[[Progress | Step], None]]:
    """Yields a function to call with each step."""
    if not sys.stderr.isatty():
        yield _line_writer()
        return
    from rich.console import Console  # noqa: PLC0415 - only what is used is loaded
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn  # noqa: PLC0415
    from rich.progress import Progress as Bar  # noqa: PLC0415

    columns = (TextColumn("jobs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("jobs", total=None)
        yield lambda step: bar.update(task, completed=step.done, total=step.total)


def _line_writer() -> Callable[[Progress | Step], None]:
    written_at = time.monotonic()

    def show(step: Progress | Step) -> None:
        nonlocal written_at
        if time.monotonic() - written_at >= LINE_SECONDS:
            written_at = time.monotonic()
            write_stderr(f"{step.done:,} jobs" if step.total is None else f"{step.done:,} of {step.total:,} jobs")

    return show
