"""`python -m benchmarks peers`: Everwork and other job queues in turn, in one harness, on the same servers."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks import results
from benchmarks.peers.figures import CALLERS, figures_of
from benchmarks.peers.figures import asks_of as wanted_of
from benchmarks.peers.harness import ROOT, Harness, missing
from benchmarks.peers.table import as_markdown
from benchmarks.report import Facts, facts

PEERS = {
    "postgres": ("pgqueuer", "huey_postgres", "bullmq_postgres"),
    "redis": ("huey_redis", "taskiq_list", "taskiq_stream"),
    "sqlite": ("huey_sqlite", "persistqueue", "litequeue"),
}
BULK_PEER = "pgqueuer"
"""The peer whose bulk enqueue is the target on every engine."""


def main(arguments: Sequence[str]) -> None:
    """Measure all queues in turn, for the requested number of rounds, and print the medians."""
    options = _options(arguments)
    load_before = os.getloadavg()[0]
    with _home() as home:
        harness = Harness(options.harness, home, (options.rows or home / "rows.jsonl").resolve(), options.jobs)
        for number in range(1, options.repeat + 1):
            for engine in options.engine:
                print(f"round {number} of {options.repeat}: {engine}", file=sys.stderr, flush=True)
                harness.measure(_in_turn(engine))
        known = {**harness.versions(options.engine), "rounds": str(options.repeat), **facts(home, load_before)}
        for engine in options.engine:
            _report(engine, harness, known, is_written=options.write)


def _in_turn(engine: str) -> list[str]:
    """The fastest peer first, then Everwork, then the others."""
    ours = f"everwork_{engine}"
    first, *others = PEERS[engine]
    return [first, ours, f"{ours}{CALLERS}", *others]


def _report(engine: str, harness: Harness, known: Facts, *, is_written: bool) -> None:
    rows = harness.read()
    found = figures_of(rows, engine)
    if f"everwork_{engine}" not in found:
        sys.exit(f"{harness.rows} has no figures for everwork_{engine}: run with --repeat 1 or more first")
    bulk_peer = figures_of(rows, "postgres").get(BULK_PEER)
    text = as_markdown(engine, found, wanted_of(engine, found, bulk_peer), known)
    print(text, flush=True)
    if is_written:
        results.put(f"peers, {engine}", text)


@contextmanager
def _home() -> Iterator[Path]:
    """Where the peers are installed: $BENCH_HOME, which is kept, or a temporary folder."""
    kept = os.environ.get("BENCH_HOME")
    if kept:
        Path(kept).mkdir(parents=True, exist_ok=True)
        yield Path(kept)
        return
    with tempfile.TemporaryDirectory(prefix="everwork-peers-") as folder:
        yield Path(folder)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks peers",
        description="Measure Everwork and its peers by turns, with the same durability. BENCH_HOME names a folder that "
        "keeps the peers installed between runs.",
    )
    default = ROOT.parent / "shared" / "bench" / "peers"
    parser.add_argument("--engine", nargs="+", choices=PEERS, default=tuple(PEERS), metavar="ENGINE",
                        help=f"some of: {', '.join(PEERS)}; default: all")  # fmt: skip
    parser.add_argument(
        "--repeat", type=int, default=5, help="number of rounds; 0 only reports --rows; default: %(default)s"
    )
    parser.add_argument("--harness", type=Path, default=default, help="the folder of the harness's run.py")
    parser.add_argument("--rows", type=Path, help="file to append every row to")
    parser.add_argument(
        "--jobs", type=int, help="number of jobs in a drain, instead of each peer's own, for a first impression"
    )
    parser.add_argument("--write", action="store_true", help=f"also write the tables into {results.RESULTS.name}")
    options = parser.parse_args(arguments)
    if options.write and options.jobs:
        parser.error("--write needs whole runs: omit --jobs")
    if not (options.harness / "run.py").is_file():
        parser.error(f"there is no harness at {options.harness}: set --harness to the folder of its run.py")
    problem = missing(options.engine)
    if problem:
        parser.error(problem)
    return options
