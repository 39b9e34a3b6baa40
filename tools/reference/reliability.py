"""The results of torture runs, from their counters: `make torture` writes them (`RELIABILITY.json`)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

COUNTERS: Final = Path(__file__).parents[2] / "docs" / "explanation" / "reliability.json"
_STORES: Final = {"sqlite": "SQLite", "postgres": "PostgreSQL", "redis": "Redis", "redis-cluster": "Redis Cluster"}
_TITLES: Final = {
    "kills": "workers, producers and managers on the store",
    "offline": "offline mode",
    "offline-server": "offline mode, through a server",
    "fleet": "the whole fleet",
}

_FAILOVER: Final = "failovers: "
_ROLES: Final = {
    "producer": "producers",
    "server": "servers",
    "grpc": "gRPC workers",
    "rest": "REST workers",
    "stream": "stream workers",
    "zeebe": "pyzeebe workers",
    "functions": "`everwork worker`",
    "manager": "managers",
    "managed processes": "processes of managers and `everwork worker`",
}

Lane = Mapping[str, Any]


def results(*lanes: str) -> str:
    """A table per lane, with one column for each engine that has run it."""
    counters: dict[str, dict[str, Any]] = json.loads(COUNTERS.read_text("utf-8"))
    wanted = lanes or tuple(_TITLES)
    tables = [_table(lane, {name: one[lane] for name, one in counters.items() if lane in one}) for lane in wanted]
    return "\n".join([*filter(None, tables), _mutants(counters)])


def _table(lane: str, runs: Mapping[str, Lane]) -> str:
    if not runs:
        return ""
    rows: dict[str, Callable[[Lane], str]] = {
        "store, durability": lambda run: f"{run['store']}, `{run['durability']}`",
        "date, commit, seed": lambda run: f"{run['at']}, `{run['commit']}`, {run['seed']}",
        "minutes": lambda run: f"{run['minutes']:g}",
        "acknowledged jobs; attempts": lambda run: f"{run['acknowledged']:,}; {run['attempts']:,}",
        "SIGKILLs of processes": _kills,
        "SIGKILLs of the database": lambda run: f"{run['store_kills']:,}" if run["store_kills"] else "-",
        "failovers": _failovers,
        "other faults": _faults,
        "violations": _violations,
    }
    lines = [
        f'**{_TITLES[lane][:1].upper()}{_TITLES[lane][1:]}** (`make torture ARGS="--lane {lane}"`)',
        "",
        _line("", *(_STORES.get(name, name) for name in runs)),
        _line(*["---"] * (len(runs) + 1)),
        *(_line(name, *map(cell, runs.values())) for name, cell in rows.items()),
        "",
    ]
    return "\n".join(lines)


def _kills(run: Lane) -> str:
    parts = ", ".join(f"{_ROLES.get(name, name)} {times:,}" for name, times in sorted(run["kills"].items()))
    return f"{sum(run['kills'].values()):,} ({parts})" if parts else "-"


def _failovers(run: Lane) -> str:
    """How often a replica took over, by the reason."""
    found = {name: times for name, times in run["nemeses"].items() if name.startswith(_FAILOVER)}
    parts = ", ".join(f"{name.removeprefix(_FAILOVER)} {times:,}" for name, times in sorted(found.items()))
    return f"{sum(found.values()):,} ({parts})" if parts else "-"


def _faults(run: Lane) -> str:
    """All other faults: SIGSTOPs, graceful shutdowns, and those of networks, clocks and disks."""
    known = ("kills", _FAILOVER, "of these", "at fault points", "unexpected")
    others: Counter[str] = Counter()
    for name, times in run["nemeses"].items():
        if times and not name.startswith(known):
            others[name.partition(":")[0]] += times
    return ", ".join(f"{name} {times:,}" for name, times in sorted(others.items())) or "-"


def _violations(run: Lane) -> str:
    found = [f"{number}: {count:,}" for number, count in run["violations"].items() if count]
    first, *_, last = run["violations"]
    return ", ".join(found) or f"{first} to {last}: zero"


def _mutants(counters: Mapping[str, Mapping[str, Any]]) -> str:
    lines = []
    for name, engine in counters.items():
        caught = [how for how in engine.get("mutants", {}).values() if how != "NOT CAUGHT"]
        if caught:
            lines.append(f"{_STORES.get(name, name)} {len(caught)} of {len(engine['mutants'])}")
    return f"Mutants detected: {', '.join(lines)}.\n" if lines else ""


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
