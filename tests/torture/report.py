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
    """What an engine's run came to: the load, and how each mutant was caught."""

    run: Run
    caught: Mapping[str, str]

    @property
    def passed(self) -> bool:
        """Whether nothing was violated and every mutant was caught."""
        return self.run.verdict.passed_in_time and MISSED not in self.caught.values()


def table(judged: Judgement) -> str:
    """The violations, the figures and the mutants of a run, in lines."""
    run, caught = judged.run, judged.caught
    verdict = run.verdict
    lines = ["", run.settings.place.engine, "", "must be zero"]
    for number, meaning in VIOLATIONS.items():
        lines.append(f"  {number:<4}{verdict.found[number]:>8}  {meaning}")
        lines += [f"{'':16}{text}" for text in verdict.shown.get(number, [])[:5]]
    figures = {**run.nemeses, **verdict.figures, "seconds": round(run.seconds)}
    lines += ["", "figures", *(f"  {value:>10}  {name}" for name, value in figures.items())]
    if caught:
        lines += ["", "mutants", *(f"  {how:<24}  {name}" for name, how in caught.items())]
    return "\n".join(lines)


def write(path: Path, judged: Sequence[Judgement]) -> None:
    """Write the counters of every engine's run as JSON."""
    content = {one.run.settings.place.engine: _counters(one) for one in judged}
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def _counters(judged: Judgement) -> dict[str, Any]:
    run = judged.run
    return {
        "seed": run.settings.seed,
        "passed": judged.passed,
        "seconds": round(run.seconds, 1),
        "violations": {number: run.verdict.found[number] for number in VIOLATIONS},
        "examples": {number: texts for number, texts in run.verdict.shown.items() if texts},
        "nemeses": dict(run.nemeses),
        "figures": run.verdict.figures,
        "mutants": dict(judged.caught),
    }
