"""Figures for Prometheus, without any server."""

from __future__ import annotations

from everwork.core.states import State
from everwork.server.metrics import OTHER_TYPES, TYPES_MAX, Metrics


def lines(metrics: Metrics, jobs: dict[str, dict[State, int]] | None = None) -> list[str]:
    return metrics.text(jobs or {}).decode().splitlines()


def test_calls_and_outcomes_are_counted_by_door() -> None:
    metrics = Metrics()
    for _ in range(3):
        metrics.called("rest", "listJobs", "200")
    metrics.unfenced("zeebe", 4)
    assert 'everwork_calls_total{door="rest",method="listJobs",status="200"} 3.0' in lines(metrics)
    assert 'everwork_unfenced_outcomes_total{door="zeebe"} 4.0' in lines(metrics)


def test_whoever_waits_is_counted_as_long_as_he_waits() -> None:
    metrics = Metrics()
    with metrics.polling("rest"):
        assert 'everwork_pollers{door="rest"} 1.0' in lines(metrics)
    assert 'everwork_pollers{door="rest"} 0.0' in lines(metrics)


def test_a_type_that_has_gone_is_shown_no_longer() -> None:
    metrics = Metrics()
    assert 'everwork_jobs{state="failed",type="a"} 2.0' in lines(metrics, {"a": {State.FAILED: 2}})
    assert not [line for line in lines(metrics, {"b": {State.FAILED: 1}}) if 'type="a"' in line]


def test_more_types_than_a_store_of_figures_bears_are_shown_as_one() -> None:
    shown = lines(Metrics(), {f"t{n:05}": {State.PENDING: 1} for n in range(TYPES_MAX + 5)})
    assert f'everwork_jobs{{state="pending",type="{OTHER_TYPES}"}} 5.0' in shown
    assert len([line for line in shown if line.startswith("everwork_jobs{")]) == TYPES_MAX + 1
