"""The figures of each peer, from the harness's rows: medians over the rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

CALLERS = "_callers"
"""The suffix of adapters whose bulk enqueue uses many concurrent callers."""
WITHOUT_SYNC = frozenset({"litequeue"})
"""Queues that do not wait for the disk where Everwork does: shown, but not compared."""


@dataclass(slots=True)
class Figures:
    """The figures of one peer, or of Everwork."""

    name: str
    version: str = "?"
    config: str = ""
    ack: str = ""
    bulk_kind: str | None = None
    jobs: int = 0
    taken: dict[str, list[float]] = field(default_factory=dict)
    is_exact: bool = True
    failures: list[str] = field(default_factory=list)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add one row of the harness."""
        if row.get("failed"):
            self.failures.append(f"{row['workload']}: {row['figure']}")
            return
        self.version = row["version"]
        self.is_exact = self.is_exact and bool(row["exact"])
        if row["workload"] == "W1":
            self.config, self.ack, self.bulk_kind, self.jobs = row["config"], row["ack"], row["bulk_kind"], row["n"]
        for name in ("rate", "single", "bulk", "p50", "p99", "worker_us", "server_us"):
            if row.get(name) is not None:
                self.taken.setdefault(name, []).append(row[name])

    def median(self, name: str) -> float | None:
        """The median of a figure; None if it was not measured."""
        return median(self.taken[name]) if self.taken.get(name) else None


def figures_of(rows: Iterable[Mapping[str, Any]], engine: str) -> dict[str, Figures]:
    """All queues that were measured on an engine."""
    found: dict[str, Figures] = {}
    for row in rows:
        if row["engine"] == engine and row["workload"] in ("W1", "W2", "install"):
            found.setdefault(row["peer"], Figures(row["peer"])).add(row)
    return found


@dataclass(frozen=True, slots=True)
class Ask:
    """One target relative to a peer."""

    what: str
    ours: float | None
    peer: str
    theirs: float | None
    at_least: float | None = None
    at_most: float | None = None

    @property
    def ratio(self) -> float | None:
        """Everwork's figure divided by the peer's."""
        return self.ours / self.theirs if self.ours is not None and self.theirs else None

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met; None if it was not measured."""
        if self.ratio is None:
            return None
        return self.ratio >= self.at_least if self.at_least is not None else self.ratio <= (self.at_most or 0)


DRAIN_MIN = {"postgres": 1.5, "redis": 7.0, "sqlite": 1.5}
P50, P99 = "latency p50, ms", "latency p99, ms"


def asks_of(engine: str, found: Mapping[str, Figures], bulk_peer: Figures | None) -> list[Ask]:
    """The targets on an engine: each compares Everwork with the best measured peer of the same durability."""
    ours = found[f"everwork_{engine}"]
    callers = found.get(f"everwork_{engine}{CALLERS}")
    peers = [one for name, one in found.items() if not name.startswith("everwork") and name not in WITHOUT_SYNC]

    def ask(what: str, name: str, among: Sequence[Figures] = peers, *, best: bool = True, **wanted: float) -> Ask:
        peer = _best(among, name, largest=best)
        return Ask(what, ours.median(name), peer.name if peer else "", peer.median(name) if peer else None, **wanted)

    single = _best(peers, "single", largest=True)
    single_rate = single.median("single") if single else None
    asks = [
        ask("drain, jobs/s", "rate", at_least=DRAIN_MIN[engine]),
        ask("single enqueue, /s", "single", at_least=1.0),
        Ask("64 callers, /s, vs. single enqueue of the peer", callers.median("bulk") if callers else None,
            single.name if single else "", single_rate, at_least=3.0),
    ]  # fmt: skip
    for ack, at_most in (("after", 1.0), ("before", 1.1)):
        among = [peer for peer in peers if peer.ack == ack]
        if among:
            of = f"of peers that acknowledge {ack} the run"
            asks.append(ask(f"{P50}, {of}", "p50", among, best=False, at_most=at_most))
            asks.append(ask(f"{P99}, {of}", "p99", among, best=False, at_most=at_most))
    if bulk_peer is not None:
        asks.append(
            Ask("bulk enqueue, /s", ours.median("bulk"), bulk_peer.name, bulk_peer.median("bulk"), at_least=1.0)
        )
    return asks


def _best(peers: Iterable[Figures], name: str, *, largest: bool) -> Figures | None:
    measured = [peer for peer in peers if peer.median(name) is not None]
    return (max if largest else min)(measured, key=lambda peer: peer.median(name) or 0.0, default=None)
