"""Figures for Prometheus, and whether the server is ready: what is printed, and that it is true."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import httpx
from grpc_health.v1 import health_pb2
from prometheus_client.parser import text_string_to_metric_families

from everwork.core.breaker import BreakerState
from everwork.core.leasing import Demand
from everwork.core.outcome import Complete, Failed
from everwork.core.queries import Count, Oldest, TypeInfo
from everwork.core.states import State
from everwork.server.metrics import OTHER_TYPES, TYPES_MAX, FleetState, Metrics
from everwork.server.readiness import UPKEEP_SECONDS
from everwork.service.monitor.sampler import Sample
from tests.app.waiting import until
from tests.server.whole import KEY, TYPE
from tools.reference.metrics import exported

if TYPE_CHECKING:
    from tests.server.whole import Whole

AT_MS: Final = 1_700_000_000_000
HOSTILE: Final = 'a"b\\c{}%d%s \u2066<script>,le="1"'


def a_reading(jobs: dict[str, int], **said: Any) -> Sample:
    counts = [Count("t", type, "", State.PENDING, number) for type, number in jobs.items()]
    types = [TypeInfo(type, **said) for type in sorted(jobs)]
    return Sample(1, AT_MS, counts, types, [Oldest(type, "", AT_MS - 1_500) for type in jobs])


def samples(metrics: Metrics, seen: FleetState | None = None) -> dict[tuple[str, ...], float]:
    """Every number by its name and the values of its labels, in order of their names."""
    return parsed(metrics.text(seen).decode())


def parsed(text: str) -> dict[tuple[str, ...], float]:
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(one.name, *(value for _, value in sorted(one.labels.items()))): one.value for one in found}


async def scraped(whole: Whole) -> str:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{whole.ports.http}") as client:
        return (await client.get("/metrics", headers={"X-API-Key": KEY})).raise_for_status().text


async def ready(whole: Whole) -> tuple[int, str, int]:
    """What REST says, and what gRPC says."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{whole.ports.http}") as client:
        answer = await client.get("/readyz")
        assert (await client.get("/healthz")).status_code == 200
    async with whole.channel() as channel:
        check: Any = channel.unary_unary("/grpc.health.v1.Health/Check", None, None)
        status = health_pb2.HealthCheckResponse.FromString(await check(b"")).status
    return answer.status_code, answer.json().get("code", ""), status


def test_calls_and_outcomes_are_counted_by_door() -> None:
    metrics = Metrics()
    for _ in range(3):
        metrics.called("rest", "listJobs", "200")
    metrics.unfenced("zeebe", 4)
    found = samples(metrics)
    assert found["everwork_calls_total", "rest", "listJobs", "200"] == 3
    assert found["everwork_unfenced_outcomes_total", "zeebe"] == 4


def test_whoever_waits_is_counted_as_long_as_he_waits() -> None:
    metrics = Metrics()
    with metrics.polling("rest"):
        assert samples(metrics)["everwork_pollers", "rest"] == 1
    assert samples(metrics)["everwork_pollers", "rest"] == 0


def test_steps_and_polls_of_this_process_are_told() -> None:
    metrics = Metrics()
    metrics.committed("settle", 30, 0.002)
    metrics.polled(0.2, 1)
    metrics.polled(30.0, 0)
    found = samples(metrics)
    assert (found["everwork_commit_items_sum", "settle"], found["everwork_commit_items_count", "settle"]) == (30, 1)
    assert found["everwork_commit_seconds_bucket", "0.0025", "settle"] == 1
    assert (found["everwork_poll_seconds_count", "jobs"], found["everwork_poll_seconds_sum", "empty"]) == (1, 30)


def test_what_the_engine_has_counted_is_told_by_type() -> None:
    reading = a_reading({"a": 2}, paused=True, breaker=BreakerState.OPEN)
    total = {"completed": 3, "failed": 1, "execution_ms": 2_500, "e00": 3, "e07": 1, "w00": 4, "f:lapsed": 1}
    found = samples(Metrics(), FleetState(reading, {"a": total}, 1, 2))
    assert found["everwork_jobs", "pending", "a"] == 2
    assert found["everwork_oldest_waiting_seconds", "a"] == 1.5
    assert [found["everwork_attempts_total", one, "a"] for one in ("completed", "failed", "retried")] == [3, 1, 0]
    assert [found["everwork_execution_seconds_bucket", end, "a"] for end in ("0.005", "0.5", "1", "+Inf")] == [
        3,
        3,
        4,
        4,
    ]
    assert (found["everwork_execution_seconds_sum", "a"], found["everwork_wait_seconds_count", "a"]) == (2.5, 4)
    assert (found["everwork_failures_total", "lapsed", "a"], found["everwork_leases_lapsed_total", "a"]) == (1, 1)
    assert (found["everwork_breaker_state", "a"], found["everwork_paused", "a"]) == (2, 1)
    assert (found["everwork_managers",], found["everwork_processes",], found["everwork_engine_up",]) == (1, 2, 1)


def test_a_state_that_runs_empty_is_shown_as_0_and_long_waits_to_the_millisecond() -> None:
    reading = replace(a_reading({"a": 2}), oldest=[Oldest("a", "", AT_MS - 2_000_000_123)])
    found = samples(Metrics(), FleetState(reading, {}))
    assert [found["everwork_jobs", state.label, "a"] for state in State] == [2, 0, 0, 0, 0]
    assert found["everwork_oldest_waiting_seconds", "a"] == 2_000_000.123


def test_a_type_that_has_gone_is_shown_no_longer() -> None:
    metrics = Metrics()
    assert ("everwork_jobs", "pending", "a") in samples(metrics, FleetState(a_reading({"a": 1}), {}))
    assert ("everwork_jobs", "pending", "a") not in samples(metrics, FleetState(a_reading({"b": 1}), {}))


def test_a_hostile_name_of_a_type_stays_a_name() -> None:
    found = samples(Metrics(), FleetState(a_reading({HOSTILE: 1}), {HOSTILE: {"completed": 1, "e00": 1, "f:<b>": 1}}))
    assert found["everwork_jobs", "pending", HOSTILE] == 1
    assert found["everwork_execution_seconds_bucket", "0.005", HOSTILE] == 1
    assert {key[-1] for key in found if key[0].startswith(("everwork_jobs", "everwork_exec"))} == {HOSTILE}


def test_more_types_than_a_store_of_figures_bears_are_shown_as_one() -> None:
    metrics = Metrics()
    names = [f"t{number:05}" for number in range(TYPES_MAX + 5)]
    samples(metrics, FleetState(a_reading(dict.fromkeys(names[1:], 1)), {}))
    found = samples(metrics, FleetState(a_reading(dict.fromkeys(names, 1)), {name: {"completed": 2} for name in names}))
    assert found["everwork_jobs", "pending", OTHER_TYPES] == 5
    assert found["everwork_attempts_total", "completed", OTHER_TYPES] == 10
    assert len([key for key in found if key[:2] == ("everwork_jobs", "pending")]) == TYPES_MAX + 1
    assert ("everwork_jobs", "pending", names[1]) in found  # Whoever has a line keeps it: counters never go back.


async def test_every_figure_is_in_the_documentation_and_the_other_way_round(sqlite_whole: Whole) -> None:
    await sqlite_whole.create(2)
    for job in await sqlite_whole.service.activate(Demand(TYPE, "w1", 2)):
        is_first = job.attempt == 1 and job.key % 2
        outcome = Complete(job.key, 1) if is_first else Failed(job.key, 1, "no", final=True)
        await sqlite_whole.service.settle([outcome])
    await sqlite_whole.service.activate(Demand(TYPE, "w1", 1))
    sqlite_whole.server.metrics.unfenced("rest")
    sqlite_whole.server.metrics.called("rest", "healthz", "200")
    await sqlite_whole.server.sampler.fresh()
    with sqlite_whole.server.metrics.polling("rest"):
        text = await scraped(sqlite_whole)
    told = {
        (family.name if family.type != "counter" else f"{family.name}_total", family.type,
         tuple(sorted({label for one in family.samples for label in one.labels} - {"le"})))
        for family in text_string_to_metric_families(text)
    }  # fmt: skip
    documented = [one for scope in ("fleet", "server") for one in exported()[scope]]
    assert told == {(one.name, one.kind, one.labels) for one in documented}
    found = parsed(text)
    assert (found["everwork_attempts_total", "completed", TYPE], found["everwork_engine_up",]) == (1, 1)
    assert found["everwork_commit_items_count", "settle"] == 2


async def test_without_its_engine_a_server_tells_its_own_figures_and_is_not_ready(sqlite_whole: Whole) -> None:
    await sqlite_whole.create()
    assert await ready(sqlite_whole) == (200, "", health_pb2.HealthCheckResponse.SERVING)
    await sqlite_whole.service._engine.close()
    found = parsed(await scraped(sqlite_whole))
    assert (found["everwork_engine_up",], found["everwork_commit_items_count", "create"]) == (0, 1)
    assert not [key for key in found if key[0] == "everwork_jobs"]

    async def is_unready() -> bool:
        return await ready(sqlite_whole) == (503, "engine_unavailable", health_pb2.HealthCheckResponse.NOT_SERVING)

    await until(is_unready)


async def test_a_server_whose_upkeep_is_late_is_not_ready_and_says_so(sqlite_whole: Whole) -> None:
    service = sqlite_whole.service
    await service._upkeep.abort()
    assert service._upkeep_at is not None
    service._upkeep_at -= UPKEEP_SECONDS + 1
    assert await ready(sqlite_whole) == (503, "upkeep_late", health_pb2.HealthCheckResponse.NOT_SERVING)
    assert parsed(await scraped(sqlite_whole))["everwork_upkeep_age_seconds",] > UPKEEP_SECONDS
