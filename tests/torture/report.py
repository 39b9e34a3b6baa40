"""What a run shows: a table for people, RELIABILITY.json for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests.torture.controller import Run
from tests.torture.verdict import VIOLATIONS


def table(run: Run, caught: Mapping[str, str]) -> str:
    """The violations, the figures and the mutants of a run, in lines."""
    verdict = run.verdict
    lines = ["", "must be zero"]
    for number, meaning in VIOLATIONS.items():
        lines.append(f"  {number:<4}{verdict.found[number]:>8}  {meaning}")
        lines += [f"{'':16}{text}" for text in verdict.shown.get(number, [])[:5]]
    figures = {**run.nemeses, **verdict.figures, "seconds": round(run.seconds)}
    lines += ["", "figures", *(f"  {value:>10}  {name}" for name, value in figures.items())]
    if caught:
        lines += ["", "mutants", *(f"  {how:<24}  {name}" for name, how in caught.items())]
    return "\n".join(lines)


def write(path: Path, run: Run, caught: Mapping[str, str]) -> None:
    """Write the counters of a run as JSON."""
    settings = run.settings
    content = {
        "engine": settings.url.partition(":")[0],
        "seed": settings.seed,
        "passed": run.verdict.passed_in_time,
        "seconds": round(run.seconds, 1),
        "violations": {number: run.verdict.found[number] for number in VIOLATIONS},
        "examples": {number: texts for number, texts in run.verdict.shown.items() if texts},
        "nemeses": dict(run.nemeses),
        "figures": run.verdict.figures,
        "mutants": dict(caught),
    }
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
