"""Metrics of the spool of this process, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from everwork.spool.contents import SpoolStatus


def spool_text(spool: SpoolStatus) -> str:
    """All metric families."""
    return "".join(_families(spool))


def _families(spool: SpoolStatus) -> Iterator[str]:
    counts, oldest_s = spool.counts, (spool.counts.oldest_ms or 0) / 1000
    waiting = {'{kind="job"}': counts.jobs, '{kind="outcome"}': counts.outcomes}
    delivered = {'{kind="job"}': spool.delivered, '{kind="outcome"}': spool.reported}
    yield _family("everwork_spool_waiting", "gauge", "Spool entries waiting for delivery", waiting)
    yield _family("everwork_spool_aside", "gauge", "Spool entries set aside", {"": counts.aside})
    yield _family("everwork_spool_bytes", "gauge", "Size of the spool", {"": counts.bytes})
    yield _family("everwork_spool_max_bytes", "gauge", "Maximum size of the spool", {"": spool.max_bytes})
    yield _family("everwork_spool_oldest_seconds", "gauge", "Age of the oldest waiting spool entry", {"": oldest_s})
    yield _family("everwork_spool_delivered_total", "counter", "Spool entries delivered by this process", delivered)
    yield _family("everwork_spool_away", "gauge", "Whether new jobs go to the spool now", {"": int(spool.is_away)})


def _family(name: str, kind: str, help: str, values: Mapping[str, float]) -> str:
    lines = [f"{name}{labels} {value}\n" for labels, value in values.items()]
    return "".join([f"# HELP {name} {help}\n# TYPE {name} {kind}\n", *lines])
