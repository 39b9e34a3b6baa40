"""`python -m tests.soak`: hours of moderate load with faults on a real deployment, and a judge that looks for leaks.

Two servers, a manager with processes, an application, and workers over gRPC streams and REST share one store.
Producers, dashboards, scrapes, searches and callers that disconnect use them; workers are killed, and connections to
the database are closed. Memory, descriptors, threads, tasks, rows and latencies are measured every minute. The run
fails if one of them grows faster than its limit (see tests/soak/judge.py), if an acknowledged job is lost, or if counts
do not add up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from tests.soak import report
from tests.soak.judge import judge
from tests.soak.picture import picture
from tests.soak.run import Outcome, Plan, soak
from tests.soak.series import FILE, load
from tests.stores import ENGINES
from tests.torture.places import own_place

DOCS: Final = Path(__file__).parents[2] / "docs"
EXAMPLES: Final = """\
examples:
  make soak ARGS="--hours 2 --engine sqlite"      two hours on SQLite
  make soak ARGS="--hours 24 --engine postgres"   a day on a separate PostgreSQL server
  make soak ARGS="--hours 0.1 --every 5"          six minutes, a sample every five seconds
  make soak ARGS="--judge build/soak/sqlite-..."  judge and chart a run again, even while it is running

exit code: 0 no leak and no lost job; 1 a leak or a lost job; 2 too few samples to judge, or bad arguments
"""


def main() -> int:
    """Run, judge and report; returns the exit code."""
    options = _options()
    if options.judge:
        return _again(options.judge)
    if options.publish:
        report.publish(options.publish, DOCS)
        return 0
    engine: str = options.engine
    folder: Path = options.out / f"{engine}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    print(f"soak of {options.hours:g} h on {engine} in {folder}", file=sys.stderr, flush=True)
    with own_place(engine) as place:
        plan = Plan(
            place, folder.resolve(), options.hours * 3_600, options.every, options.rate, options.fault_every,
            60 * options.restart_minutes, options.keep_minutes, seed=options.seed,
        )  # fmt: skip
        outcome = asyncio.run(_soak(plan))
    return conclude(folder, engine, outcome)


def conclude(folder: Path, engine: str, outcome: Outcome) -> int:
    """Judge, write all results and print the table; returns the exit code."""
    judged = judge(outcome.series)
    report.write(folder, engine, outcome, judged)
    title = f"Soak on {engine}: {outcome.seconds / 3_600:.2g} h, {outcome.jobs:,} jobs"
    (folder / report.PICTURE).write_text(picture(outcome.series, title), "utf-8")
    print(report.table(judged))
    for violation in outcome.violations:
        print(f"VIOLATION {violation}")
    for problem, count in sorted(outcome.problems.items()):
        print(f"problem {problem}: {count}")
    if not judged and not outcome.violations:
        print(f"inconclusive, too few samples: {folder}")
        return 2
    passed = report.passed(outcome, judged)
    print(f"{'passed' if passed else 'FAILED'}: {folder}")
    return 0 if passed else 1


def _again(folder: Path) -> int:
    """Judge an earlier run, or one that is still running, by the current rules."""
    known: dict[str, Any] = json.loads((folder / report.FILE).read_text()) if (folder / report.FILE).exists() else {}
    series = load(folder / FILE)
    outcome = Outcome(
        series, known.get("done", {}), known.get("problems", {}), known.get("violations", []), known.get("jobs", 0),
        known.get("seconds", series.ends_at), known.get("seed", 0), known.get("store", ""),
    )  # fmt: skip
    return conclude(folder, known.get("engine", folder.name.partition("-")[0]), outcome)


async def _soak(plan: Plan) -> Outcome:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return await soak(plan, stop, lambda text: print(text, file=sys.stderr, flush=True))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tests.soak", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--engine", choices=ENGINES, default="sqlite", help="the store (default sqlite)")
    parser.add_argument("--hours", type=float, default=2.0, help="how long (default 2)")
    parser.add_argument("--rate", type=float, default=40.0, help="jobs created per second (default 40)")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between samples (default 60)")
    parser.add_argument("--fault-every", type=float, default=45.0, help="seconds between faults (default 45)")
    parser.add_argument(
        "--restart-minutes", type=float, default=math.inf,
        help="minutes between restarts of the second server, whose memory is then not judged (default never)",
    )  # fmt: skip
    parser.add_argument(
        "--keep-minutes", type=float, default=5.0,
        help="retention of finished jobs, short so that the number of rows levels off (default 5)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="seeds the choices, not their timing (default 1)")
    parser.add_argument("--out", type=Path, default=Path("build/soak"), help="where results go (default build/soak)")
    parser.add_argument("--judge", type=Path, metavar="FOLDER", help="judge and chart an earlier run again")
    parser.add_argument("--publish", type=Path, metavar="FOLDER", help="put an earlier run into docs/, run nothing")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
