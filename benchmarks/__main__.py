"""Measure Everwork: `make bench`, or `python -m benchmarks --help`; also `python -m benchmarks peers` and `beside`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from benchmarks import results
from benchmarks.bench import HISTORY_JOBS, Bench, Row
from benchmarks.beside import main as measure_beside
from benchmarks.drain import measure_drain, measure_lanes
from benchmarks.enqueue import measure_enqueue
from benchmarks.handlers import measure_handlers
from benchmarks.history import measure_history
from benchmarks.hosts import HOSTS, host_of
from benchmarks.latency import measure_latency
from benchmarks.limited import measure_limits
from benchmarks.manager import measure_manager
from benchmarks.neighbors import measure_neighbors
from benchmarks.offline import measure_offline
from benchmarks.pages import measure_pages
from benchmarks.peers.command import main as measure_peers
from benchmarks.report import as_json, as_markdown, as_text, engine_facts, facts, file_system
from benchmarks.server import measure_server
from benchmarks.snapshot import measure_snapshot
from benchmarks.stages import measure_stages
from everwork.aio.loops import new_loop

PARTS: dict[str, Callable[[Bench], Coroutine[Any, Any, list[Row]]]] = {
    "drain": measure_drain,
    "handlers": measure_handlers,
    "enqueue": measure_enqueue,
    "offline": measure_offline,
    "latency": measure_latency,
    "stages": measure_stages,
    "manager": measure_manager,
    "server": measure_server,
    "pages": measure_pages,
    "history": measure_history,
    "lanes": measure_lanes,
    "limits": measure_limits,
    "snapshot": measure_snapshot,
    "neighbors": measure_neighbors,
}
ONLY_FOR = {"snapshot": "postgres"}
FOLDER = Path("/var/tmp")
"""On a disk, even where /tmp is in memory."""

Measured = tuple[list[Row], dict[str, str]]
T = TypeVar("T")


def main() -> None:
    """Run the requested measurements, and print one table for each engine."""
    for command, measure in (("peers", measure_peers), ("beside", measure_beside)):
        if sys.argv[1:2] == [command]:
            measure(sys.argv[2:])
            return
    options = _options()
    say = _progress()
    measured = {}
    for name in options.engine or HOSTS:
        measured[name] = rows, known = _measure(name, options, say)
        if not options.json:
            print(f"{name}\n\n{as_text(rows, known)}\n", flush=True)
        if options.write:
            parts = options.only or ()
            results.put(", ".join([name, *parts]), as_markdown(HOSTS[name], rows, known, parts))
    if options.json:
        print(as_json(measured))


def _measure(name: str, options: argparse.Namespace, say: Callable[[str], None]) -> Measured:
    load_before = os.getloadavg()[0]
    with host_of(name, options.folder) as host:
        bench = Bench(host, options.quick, lambda text: say(f"{name}: {text}"), options.keep, options.history_jobs)
        parts = [part for part in options.only or PARTS if ONLY_FOR.get(part, name) == name]
        rows = [row for part in parts for row in _run(PARTS[part](bench))]
        return rows, _run(engine_facts(bench)) | facts(options.folder, load_before)


def _run(part: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(part)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure the speed of Everwork on every engine, compared with the bare storage.",
        epilog="Comparison with other job queues: python -m benchmarks peers --help. Results: benchmarks/RESULTS.md.",
    )
    parser.add_argument("--engine", nargs="+", choices=HOSTS, metavar="ENGINE", help=f"some of: {', '.join(HOSTS)}")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"some of: {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="small counts, for a first impression in a minute or two")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the tables")
    parser.add_argument("--write", action="store_true", help=f"also write the tables into {results.RESULTS.name}")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder for the stores; default: %(default)s")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="folder that keeps the stores filled by `pages` for the next run"
    )
    parser.add_argument(
        "--history-jobs", type=int, metavar="N", default=HISTORY_JOBS,
        help="how many finished jobs, and how many future jobs, `history` measures with; default: %(default)s",
    )  # fmt: skip
    options = parser.parse_args()
    if options.write and options.quick:
        parser.error("--write needs full counts: omit --quick")
    if not options.folder.is_dir():
        parser.error(f"--folder: {options.folder} is not a directory")
    if file_system(options.folder) in ("tmpfs", "ramfs"):
        parser.error(f"--folder: {options.folder} is in memory, where durability costs nothing; use a folder on a disk")
    return options


def _progress() -> Callable[[str], None]:
    began = time.monotonic()
    return lambda text: print(f"{time.monotonic() - began:6.1f} s  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
