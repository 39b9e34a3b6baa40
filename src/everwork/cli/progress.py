"""How far a long command is: a bar on a terminal, now and then a line elsewhere; always on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from everwork.cli.output import tell
from everwork.service.move import Progress

LINE_SECONDS = 5.0


@contextmanager
def watched() -> Iterator[Callable[[Progress], None]]:
    """What to call with each step, while the work lasts."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console  # noqa: PLC0415 - only what is used is loaded
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn  # noqa: PLC0415
    from rich.progress import Progress as Bar  # noqa: PLC0415

    columns = (TextColumn("jobs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("jobs", total=None)
        yield lambda step: bar.update(task, completed=step.done, total=step.total)


def _lines() -> Callable[[Progress], None]:
    told_at = time.monotonic()

    def show(step: Progress) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= LINE_SECONDS:
            told_at = time.monotonic()
            tell(f"{step.done:,} of {step.total:,} jobs")

    return show
