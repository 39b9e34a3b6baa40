"""`python -m tests.torture`: kill real processes for a while, and count what was lost, doubled or taken twice."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.stores import ENGINES
from tests.torture import mutants, report
from tests.torture.controller import Run, torture
from tests.torture.fleet.campaign import Settings as FleetSettings
from tests.torture.fleet.campaign import storm
from tests.torture.nemesis import Settings
from tests.torture.offline.ordeal import Ordeal, endure
from tests.torture.places import Place, own_place
from tests.torture.scenarios import run_scenarios

KILLS, OFFLINE, SERVER, FLEET = "kills", "offline", "offline-server", "fleet"
LANES: Final = (KILLS, OFFLINE, SERVER, FLEET)
"""Kills of processes and databases; outages in offline mode; the same through an Everwork server; the whole fleet."""
CLUSTER: Final = "redis-cluster"
"""Only the fleet lane runs on it: the engine is the same."""
_SECONDS_BETWEEN_LINES: Final = 10


def main() -> int:
    """Run the lanes and the mutants; 0 when nothing was violated and every mutant was caught."""
    options, progress = _options(), Progress()
    judged = [_torture(engine, options, progress) for engine in options.engine or ENGINES]
    print(f"\n{report.summary(judged)}")
    if options.mutant:
        return 0 if all(any(not run.verdict.passed for run in one.runs.values()) for one in judged) else 1
    return 0 if all(one.passed for one in judged) else 1


def _torture(engine: str, options: argparse.Namespace, progress: Progress) -> report.Judgement:
    """One engine: its lanes, then the mutants, each on stores of their own."""
    lanes = [lane for lane in options.lane or LANES if engine != CLUSTER or lane == FLEET]
    root = options.keep or Path(tempfile.mkdtemp(prefix="everwork-torture-"))
    is_sound = False
    try:
        with own_place(engine) as place:
            runs = {
                lane: asyncio.run(_lane(lane, options, place, progress, _folder(root / f"{engine}-{lane}")))
                for lane in lanes
            }
            caught = _mutants(options, place, root, progress)
        judged = report.Judgement(engine, runs, caught)
        is_sound = judged.passed
    finally:
        # Even if the run itself fails, keep what it has recorded.
        if is_sound and not options.keep:
            shutil.rmtree(root, ignore_errors=True)
        else:
            print(f"stores and histories of {engine}: {root}", file=sys.stderr)
    progress("")
    print(report.table(judged))
    report.write(options.out, [judged])
    return judged


def _mutants(options: argparse.Namespace, place: Place, root: Path, progress: Progress) -> dict[str, str]:
    return {} if options.mutant or options.mutants == "none" else run_scenarios(place, root, progress)


async def _lane(lane: str, options: argparse.Namespace, place: Place, progress: Progress, folder: Path) -> Run:
    if lane == KILLS:
        return await torture(_settings(options, place, folder), progress)
    if lane == FLEET:
        return await storm(_fleet(options, place, folder), progress)
    ordeal = Ordeal(
        place, folder, options.outages, options.away, seed=options.seed, through_server=lane == SERVER,
        mutant=options.mutant,
    )  # fmt: skip
    return await endure(ordeal, progress)


def _folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _settings(options: argparse.Namespace, place: Place, folder: Path) -> Settings:
    return Settings(
        place, folder, _chosen(options.kills, 200), _chosen(options.server_kills, 20) if place.server else 0,
        options.minutes, options.seed, options.workers, options.producers, options.managers, mutant=options.mutant,
    )  # fmt: skip


def _fleet(options: argparse.Namespace, place: Place, folder: Path) -> FleetSettings:
    server_kills = _chosen(options.server_kills, 45) if place.server else 0
    return FleetSettings(
        place, folder, options.jobs, _chosen(options.kills, 450), server_kills, options.minutes, options.seed,
        mutant=options.mutant,
    )  # fmt: skip


def _chosen(given: int | None, usually: int) -> int:
    return usually if given is None else given


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.torture", description=__doc__)
    parser.add_argument(
        "--engine", choices=[*ENGINES, CLUSTER], action="append", help="may be repeated (default: every engine)"
    )
    parser.add_argument("--lane", choices=LANES, action="append", help="may be repeated (default: every lane)")
    parser.add_argument("--outages", type=int, default=3, help="outages in each lane of offline mode (default 3)")
    parser.add_argument("--away", type=float, default=60.0, help="seconds that each outage lasts (default 60)")
    parser.add_argument(
        "--minutes", type=float, default=0.0, help="go on for at least this long (default: until the kills are done)"
    )
    parser.add_argument(
        "--kills",
        type=int,
        help="SIGKILLs of workers, from outside and at fault points (default 200); in the fleet of all processes (450)",
    )
    parser.add_argument(
        "--server-kills", type=int, help="SIGKILLs of the database server, which is restarted (default 20; fleet 45)"
    )
    parser.add_argument("--jobs", type=int, default=100_000, help="acknowledged jobs of the fleet (default 100000)")
    parser.add_argument("--seed", type=int, default=1, help="seeds the choices, not their timing (default 1)")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--producers", type=int, default=2)
    parser.add_argument("--managers", type=int, default=2, help="managers with two processes each (default 2)")
    parser.add_argument(
        "--mutant",
        choices=mutants.EVERY,
        default="",
        help="run the load on a broken engine; exits 0 when that was noticed",
    )
    parser.add_argument(
        "--mutants", choices=("all", "none"), default="all", help="also run every mutant, after the lanes"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("RELIABILITY.json"), help="the file to merge the counters into"
    )
    parser.add_argument("--keep", type=Path, help="keep store and histories in this folder, which must be empty or new")
    return parser.parse_args()


class Progress:
    """One line that is written over on a terminal; elsewhere a line now and then."""

    def __init__(self) -> None:
        self._shown_at = time.monotonic()

    def __call__(self, text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        elif text and time.monotonic() - self._shown_at > _SECONDS_BETWEEN_LINES:
            self._shown_at = time.monotonic()
            print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
