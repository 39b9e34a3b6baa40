"""How far a long command is: a bar on a terminal, now and then a line elsewhere; always on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from everwork.cli.output import tell
from everwork.service.store_copy import Progress

LINE_SECONDS = 5.0


class Step(NamedTuple):
    """How far something is; of how many nobody may know."""

    done: int
    total: int | None


@contextmanager
def watched() -> Iterator[Callable[[Progress | Step], None]]:
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


def _lines() -> Callable[[Progress | Step], None]:
    told_at = time.monotonic()

    def show(step: Progress | Step) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= LINE_SECONDS:
            told_at = time.monotonic()
            tell(f"{step.done:,} jobs" if step.total is None else f"{step.done:,} of {step.total:,} jobs")

    return show
