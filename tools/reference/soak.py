"""The results of soak runs, from their reports: `python -m tests.soak --publish` puts them into docs/."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

DOCS: Final = Path(__file__).parents[2] / "docs"
_MIB: Final = 1_048_576

Report = Mapping[str, Any]


def results(docs: Path = DOCS) -> str:
    """A table with one column per engine, and the chart of each run."""
    runs: dict[str, Report] = json.loads((docs / "explanation" / "soak.json").read_text("utf-8"))
    rows: dict[str, Callable[[Report], str]] = {
        "date, commit, seed": lambda run: f"{run['at']}, `{run['commit']}`, {run['seed']}",
        "duration": lambda run: f"{run['seconds'] / 3_600:.1f} h",
        "acknowledged jobs": lambda run: f"{run['jobs']:,}",
        "faults": _faults,
        "lost, duplicated or miscounted jobs; internal errors": lambda run: str(len(run["violations"])),
        "measurements judged; of these, growing": _judged,
        "memory of the two servers, start and end of the judged half": lambda run: _first_and_last(run, "rss_bytes"),
        "descriptors of the two servers": lambda run: _first_and_last(run, "descriptors"),
        "enqueue over gRPC, median": lambda run: _latency(run, "enqueue grpc", "p50_ms"),
        "enqueue over gRPC, 99th percentile": lambda run: _latency(run, "enqueue grpc", "p99_ms"),
    }
    lines = [
        _line("", *(run["store"] for run in runs.values())),
        _line(*["---"] * (len(runs) + 1)),
        *(_line(name, *map(cell, runs.values())) for name, cell in rows.items()),
    ]
    charts = [
        f"![Soak on {run['store']}: memory, descriptors, threads, tasks, rows, size and latency over "
        f"{run['seconds'] / 3_600:.1f} hours](../images/soak-{engine}.svg)\n"
        for engine, run in runs.items()
    ]
    return "\n".join([*lines, "", *charts])


def _faults(run: Report) -> str:
    kinds = Counter(name for _, name in run["faults"])
    return f"{len(run['faults'])} ({', '.join(f'{name} {times}' for name, times in sorted(kinds.items()))})"


def _judged(run: Report) -> str:
    failing = [f"{one['subject']} {one['measure']}" for one in run["judged"] if one["fails"]]
    return f"{len(run['judged'])}; {len(failing)}{': ' * bool(failing)}{', '.join(failing)}"


def _first_and_last(run: Report, measure: str) -> str:
    servers = [one for one in run["judged"] if one["subject"].startswith("server") and one["measure"] == measure]
    return "; ".join(f"{_shown(measure, one['first'])} → {_shown(measure, one['last'])}" for one in servers)


def _latency(run: Report, name: str, measure: str) -> str:
    found = [one for one in run["judged"] if one["subject"] == f"latency {name}" and one["measure"] == measure]
    return "; ".join(f"{one['first']:.1f} → {one['last']:.1f} ms" for one in found) or "-"


def _shown(measure: str, value: float) -> str:
    return f"{value / _MIB:.0f} MiB" if measure.endswith("_bytes") else f"{value:g}"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")
