"""The results of a run: a table on the terminal, `soak.json`, and the chart."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.soak.judge import BY_DESIGN, RULES, WARM_UP_SHARE, Judged
from tests.soak.run import Outcome
from tests.torture.report import commit

FILE: Final = "soak.json"
PICTURE: Final = "soak.svg"
MIB: Final = 1_048_576


def write(folder: Path, engine: str, outcome: Outcome, judged: Sequence[Judged]) -> dict[str, Any]:
    """Write `soak.json`; returns its contents."""
    report = {
        "engine": engine,
        "at": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "seed": outcome.seed,
        "store": outcome.store,
        "passed": passed(outcome, judged),
        "seconds": round(outcome.seconds, 1),
        "machine": {"python": platform.python_version(), "system": platform.platform()},
        "jobs": outcome.jobs,
        "violations": outcome.violations,
        "problems": outcome.problems,
        "done": outcome.done,
        "faults": [[round(seconds, 1), name] for seconds, name in outcome.series.faults()],
        "rule": {
            "warm_up_share": WARM_UP_SHARE,
            "bounds": [{"measure": rule.measure, "per_hour": rule.per_hour, "share_per_hour": rule.share_per_hour,
                        "floor": rule.floor, "reason": rule.reason} for rule in RULES],
            "by_design": BY_DESIGN,
        },
        "judged": [one._asdict() for one in judged],
    }  # fmt: skip
    (folder / FILE).write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    return report


def publish(folder: Path, docs: Path) -> None:
    """Put a finished run into the documentation: its figures next to those of other engines, and its chart."""
    report = json.loads((folder / FILE).read_text("utf-8"))
    results = docs / "explanation" / "soak.json"
    known: dict[str, Any] = json.loads(results.read_text("utf-8")) if results.exists() else {}
    known[report["engine"]] = {name: value for name, value in report.items() if name not in ("rule", "done")}
    results.write_text(json.dumps(known, indent=1) + "\n", "utf-8")
    shutil.copyfile(folder / PICTURE, docs / "images" / f"soak-{report['engine']}.svg")


def passed(outcome: Outcome, judged: Sequence[Judged]) -> bool:
    """Whether nothing grows and nothing is lost; a run too short to judge anything has not passed."""
    return bool(judged) and not outcome.violations and not any(one.fails for one in judged)


def table(judged: Sequence[Judged]) -> str:
    """Every series that was judged, failures first."""
    lines = [f"{'':5} {'subject':22} {'measure':26} {'first':>11} {'last':>11} {'per hour':>11} {'bound':>11}  "]
    for one in judged:
        values = [shown(one.measure, value) for value in (one.first, one.last, one.slope, one.bound)]
        cells = " ".join(f"{value:>11}" for value in values)
        lines.append(f"{'FAIL' if one.fails else 'ok':5} {one.subject:22} {one.measure:26} {cells}  {one.why}")
    return "\n".join(lines)


def shown(measure: str, value: float) -> str:
    """A value with its unit."""
    if measure.endswith("_bytes"):
        return f"{value / MIB:,.2f} MiB"
    return f"{value:,.2f} ms" if measure.endswith("_ms") else f"{value:,.1f}"
