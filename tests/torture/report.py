"""What a run shows: a table for people, RELIABILITY.json for programs."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from tests.torture.controller import Run
from tests.torture.fleet.storm import FAILOVER
from tests.torture.mutants import MISSED
from tests.torture.verdict import VIOLATIONS

MUTANTS: Final = "mutants"
PASSED: Final = "passed"
_ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What an engine's lanes came to, by their names, and how each mutant was caught."""

    engine: str
    runs: Mapping[str, Run]
    caught: Mapping[str, str]

    @property
    def passed(self) -> bool:
        """Whether nothing was violated and every mutant was caught."""
        return all(run.verdict.passed_in_time for run in self.runs.values()) and MISSED not in self.caught.values()


def table(judged: Judgement) -> str:
    """The violations and figures of each lane, and the mutants, in lines."""
    lines: list[str] = []
    for lane, run in judged.runs.items():
        lines += ["", f"{judged.engine}, {lane}", *_lines(run)]
    if judged.caught:
        lines += ["", "mutants", *(f"  {how:<24}  {name}" for name, how in judged.caught.items())]
    return "\n".join(lines)


def _lines(run: Run) -> list[str]:
    verdict = run.verdict
    lines = ["", "must be zero"]
    for number, meaning in VIOLATIONS.items():
        lines.append(f"  {number:<4}{verdict.found[number]:>8}  {meaning}")
        lines += [f"{'':16}{text}" for text in verdict.shown.get(number, [])[:5]]
    figures = {**run.nemeses, **verdict.figures, "seconds": round(run.seconds)}
    return [*lines, "", "figures", *(f"  {value:>10}  {name}" for name, value in figures.items())]


def summary(judged: Sequence[Judgement]) -> str:
    """One line for each lane of each engine."""
    head = f"{'engine':<14} {'lane':<15} {'jobs':>8} {'attempts':>9} {'kills':>6} {'store':>6} {'min':>6}  verdict"
    lines = [head]
    for one in judged:
        for lane, run in one.runs.items():
            shown = counters(run)
            broken = {number: count for number, count in shown["violations"].items() if count}
            lines.append(
                f"{one.engine:<14} {lane:<15} {shown['acknowledged']:>8} {shown['attempts']:>9} "
                f"{sum(shown['kills'].values()):>6} {shown['store_kills']:>6} {shown['minutes']:>6}  "
                f"{', '.join(f'{number}: {count}' for number, count in broken.items()) or 'all zero'}"
            )
        missed = [name for name, how in one.caught.items() if how == MISSED]
        if one.caught:
            text = f"missed: {', '.join(missed)}" if missed else "all caught"
            lines.append(f"{one.engine:<14} {len(one.caught)} mutants: {text}")
    return "\n".join(lines)


def write(path: Path, judged: Sequence[Judgement]) -> None:
    """Merge the counters of these engines' lanes into the file, where they replace older ones."""
    known: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    for one in judged:
        entry = known.setdefault(one.engine, {})
        entry.update({lane: counters(run) for lane, run in one.runs.items()})
        entry.setdefault(MUTANTS, {}).update(one.caught)
        lanes = [lane for name, lane in entry.items() if name not in (MUTANTS, PASSED)]
        is_clean = not any(count for lane in lanes for count in lane["violations"].values())
        entry[PASSED] = is_clean and MISSED not in entry[MUTANTS].values()
    path.write_text(json.dumps(known, indent=2) + "\n", "utf-8")


def counters(run: Run) -> dict[str, Any]:
    """The figures of a run."""
    figures = run.verdict.figures
    return {
        "at": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "versions": {"everwork": version("everwork"), "python": platform.python_version()},
        **run.facts,
        "seed": run.seed,
        "minutes": round(run.seconds / 60, 1),
        "violations": {number: run.verdict.found[number] for number in VIOLATIONS},
        "examples": {number: texts for number, texts in run.verdict.shown.items() if texts},
        "kills": _kills(run.nemeses),
        "store_kills": run.nemeses["kills: store"] + run.nemeses["kills of the server"],
        "failovers": {name.removeprefix(FAILOVER): n for name, n in run.nemeses.items() if name.startswith(FAILOVER)},
        "acknowledged": figures.get("acknowledged", 0),
        "attempts": figures.get("attempts started", 0),
        "nemeses": dict(run.nemeses),
        "figures": figures,
    }


def _kills(nemeses: Mapping[str, int]) -> dict[str, int]:
    """SIGKILLs of Everwork processes by role, including those at fault points."""
    kills: dict[str, int] = {}
    for name, times in nemeses.items():
        target = name.removeprefix("kills: ").removeprefix("kills of ").removesuffix(" at fault points")
        if name.startswith("kills") and target not in ("store", "the server"):
            kills[target] = kills.get(target, 0) + times
    return kills


def commit() -> str:
    """The commit that is checked out."""
    told = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    return told.stdout.strip() or "unknown"
