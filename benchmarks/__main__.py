"""Measure Everwork: `make bench`, or `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.bench import Bench, Row
from benchmarks.drain import measure_drain, measure_lanes
from benchmarks.enqueue import measure_enqueue
from benchmarks.handlers import measure_handlers
from benchmarks.history import measure_history
from benchmarks.latency import measure_latency
from benchmarks.report import as_json, as_markdown, as_text, facts, file_system
from everwork.workers.portal import new_loop

PARTS: dict[str, Callable[[Bench], Coroutine[Any, Any, list[Row]]]] = {
    "drain": measure_drain,
    "handlers": measure_handlers,
    "enqueue": measure_enqueue,
    "latency": measure_latency,
    "history": measure_history,
    "lanes": measure_lanes,
}
RESULTS = Path(__file__).with_name("RESULTS.md")
FOLDER = Path("/var/tmp")
"""On a disk where /tmp may be memory."""


def main() -> None:
    """Measure what was asked for, and print one table."""
    options = _options()
    load_before = os.getloadavg()[0]
    with TemporaryDirectory(dir=options.folder, prefix="everwork-bench-") as name:
        folder = Path(name)
        bench = Bench(folder, options.quick, _progress())
        rows = [row for part in options.only or PARTS for row in _run(PARTS[part](bench))]
        known = facts(folder, load_before)
    print(as_json(rows, known) if options.json else as_text(rows, known))
    if options.write:
        RESULTS.write_text(as_markdown(rows, known), "utf-8")


def _run(part: Coroutine[Any, Any, list[Row]]) -> Sequence[Row]:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(part)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure the speed of Everwork.")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"some of: {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="small counts: a first impression, in under a minute")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--write", action="store_true", help=f"also write benchmarks/{RESULTS.name}")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the stores are made; default: %(default)s")
    options = parser.parse_args()
    if options.write and (options.only or options.quick):
        parser.error("--write is for a whole run: leave --only and --quick out")
    if not options.folder.is_dir():
        parser.error(f"--folder: {options.folder} is not a directory")
    if file_system(options.folder) in ("tmpfs", "ramfs"):
        parser.error(f"--folder: {options.folder} is in memory, where durability costs nothing; name one on a disk")
    return options


def _progress() -> Callable[[str], None]:
    began = time.monotonic()
    return lambda text: print(f"{time.monotonic() - began:6.1f} s  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
