"""What a run shows: a table for people, RELIABILITY.json for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.torture.controller import Run
from tests.torture.mutants import MISSED
from tests.torture.verdict import VIOLATIONS


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


def write(path: Path, judged: Sequence[Judgement]) -> None:
    """Write the counters of every engine's lanes as JSON."""
    path.write_text(json.dumps({one.engine: _counters(one) for one in judged}, indent=2) + "\n", "utf-8")


def _counters(judged: Judgement) -> dict[str, Any]:
    runs = {lane: _counters_of(run) for lane, run in judged.runs.items()}
    return {"passed": judged.passed, **runs, "mutants": dict(judged.caught)}


def _counters_of(run: Run) -> dict[str, Any]:
    return {
        "seed": run.seed,
        "seconds": round(run.seconds, 1),
        "violations": {number: run.verdict.found[number] for number in VIOLATIONS},
        "examples": {number: texts for number, texts in run.verdict.shown.items() if texts},
        "nemeses": dict(run.nemeses),
        "figures": run.verdict.figures,
    }
