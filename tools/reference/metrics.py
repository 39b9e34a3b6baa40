"""The metrics, from what a server exports: name, type, labels and help text."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from everwork.core.measures import failure
from everwork.core.queries import Count, Oldest, TypeInfo
from everwork.core.states import State
from everwork.server.fleet_metrics import FleetState
from everwork.server.metrics import Metrics
from everwork.service.monitor.sampler import Sample
from everwork.spool.contents import SpoolStatus
from everwork.spool.file import SpoolCounts

_TYPE: Final = "email-send"
_HEAD: Final = "| metric | type | labels | description |\n|---|---|---|---|\n"


class Family(NamedTuple):
    """A metric as Prometheus sees it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


def families(scope: str) -> str:
    """A table of the metrics of the whole `fleet`, of this `server` or of its `spool`."""
    rows = [
        f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels) or 'none'} | {one.help} |\n"
        for one in exported()[scope]
    ]
    return "".join([_HEAD, *rows])


@cache
def exported() -> dict[str, list[Family]]:
    """Every metric, by what it is about."""
    spool = {one.name for one in _parsed(_spool_text())}
    fleet = {one.name for one in _parsed(_fleet_text())}
    found: dict[str, list[Family]] = {"fleet": [], "server": [], "spool": []}
    for one in _parsed(_server_text()):
        found["spool" if one.name in spool else "fleet" if one.name in fleet else "server"].append(one)
    return found


def _parsed(text: str) -> Iterator[Family]:
    for one in text_string_to_metric_families(text):
        if not one.samples:
            raise ValueError(f"no sample of {one.name}: its labels are unknown")
        labels = {label for sample in one.samples for label in sample.labels} - {"le"}
        name = f"{one.name}_total" if one.type == "counter" else one.name
        yield Family(name, one.type, tuple(sorted(labels)), one.documentation)


def _fleet() -> FleetState:
    """One job of one type, with one failure."""
    sample = Sample(1, 0, [Count("", _TYPE, "", State.PENDING, 1)], [TypeInfo(_TYPE)], [Oldest(_TYPE, "", 0)])
    return FleetState(sample, {_TYPE: {failure("permanent"): 1}})


def _used() -> Metrics:
    """With a sample of each of its own metrics."""
    metrics = Metrics()
    metrics.describe("1", "sqlite")
    metrics.called("rest", "createJobs", "201")
    metrics.unfenced("rest")
    metrics.committed("create", 1, 0.1)
    metrics.polled(0.1, 1)
    with metrics.polling("rest"):
        pass
    return metrics


def _spool() -> SpoolStatus:
    return SpoolStatus("", "", SpoolCounts(0, 0, 0, 0, None), max_bytes=0, max_age=0)


def _server_text() -> str:
    return _used().text(_fleet(), 0.0, _spool()).decode()


def _fleet_text() -> str:
    both, own = _used().text(_fleet()).decode(), _used().text(None).decode()
    return both[len(own) :]


def _spool_text() -> str:
    both, own = _used().text(None, None, _spool()).decode(), _used().text(None).decode()
    return both[len(own) :]
