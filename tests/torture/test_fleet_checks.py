"""The checker for fleets: two views of one attempt, workers without attempt numbers, tenants, ineffective attempts."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from everwork.core.job import HistoryEntry
from tests.torture import report
from tests.torture.controller import Run
from tests.torture.duplicates import check_duplicates
from tests.torture.history import Call, Histories, HistoryWriter, read_histories
from tests.torture.mutants import MISSED
from tests.torture.reported import check_attempts, check_changes, check_fencing, check_reports, reports_of
from tests.torture.test_checker import SmallRun
from tests.torture.verdict import FinalState, Verdict
from tools.reference import reliability

WORKER = "rest-a.0000"


def a_run_seen_by_a_server_too() -> SmallRun:
    """A small run in which a server has also logged the calls of its client."""
    run = SmallRun()
    run.histories.calls += [
        replace(call, process="server-0.0000") for call in run.histories.calls if call.name != "create"
    ]
    return run


def test_a_client_and_its_server_may_both_log_an_attempt() -> None:
    assert a_run_seen_by_a_server_too().violations() == set()


def test_an_attempt_leased_to_two_clients_is_v5() -> None:
    run = SmallRun()
    [leased] = [call for call in run.histories.calls if [1, 2, 1, 4, 2_500] in call.leased]
    run.histories.calls.append(replace(leased, process="rest-b.0000"))
    verdict = Verdict()
    check_attempts(run.histories, verdict)
    assert set(verdict.found) == {"V5"}


def after_zeebe(*reports: tuple[str, str]) -> set[str]:
    """The violations found for completions without attempt numbers, each with its result and verdict."""
    run = SmallRun()
    run.histories.calls = [call for call in run.histories.calls if call.name != "settle" or not call.items]
    for result, answer in reports:
        run.settle(1, 0, "complete", answer, result=result)
    run.histories.calls = [replace(call, process="zeebe-b.0000") for call in run.histories.calls]
    final = FinalState({1: run.job}, {1: run.events})
    verdict = Verdict()
    check_reports(reports_of(run.histories.calls), final, verdict)
    check_fencing(run.histories.calls, verdict)
    return set(verdict.found)


def test_a_completion_without_an_attempt_is_judged_by_the_state() -> None:
    assert after_zeebe(('"1@2"', "stored")) == set()
    assert after_zeebe(('"1@2"', "accepted"), ('"other"', "not found")) == set()


def test_an_accepted_completion_without_an_attempt_that_is_missing_is_v8() -> None:
    assert after_zeebe(('"other"', "stored")) == {"V8"}


def test_a_job_of_another_tenant_that_was_shown_is_v14(tmp_path: Path) -> None:
    HistoryWriter(tmp_path / f"{WORKER}.jsonl").foreign("/api/v1/jobs", "tenant-b")
    run = SmallRun()
    run.histories.foreign += read_histories(tmp_path).foreign
    assert run.violations() == {"V14"}


def after_vain(
    end: HistoryEntry, *struck: tuple[str, int, int], how: str = "complete", call: Call | None = None
) -> set[str]:
    """The violations found for a handler that finished in an attempt that ended otherwise."""
    histories = Histories(calls=[call] if call else [], through=[(WORKER, 1, 1, how, 10_100)])
    final = FinalState({}, {1: [end]}, struck=[("grpc-b.0", 0, 1), *struck])
    verdict = Verdict()
    check_duplicates(histories, final, verdict)
    return set(verdict.found)


def a_lapse(at_ms: int) -> HistoryEntry:
    return HistoryEntry(1, "lapse", at_ms, worker="rest-a.0", activated_at_ms=10_000)


def test_a_handler_that_ran_in_vain_for_no_reason_is_v15() -> None:
    assert after_vain(a_lapse(20_000)) == {"V15"}
    assert after_vain(HistoryEntry(1, "release", 10_200, activated_at_ms=10_000)) == {"V15"}


def test_a_fault_of_the_worker_or_of_shared_parts_explains_a_run_in_vain() -> None:
    for name in ("rest-a.0", "server-1.3", "store", "network"):
        assert after_vain(a_lapse(20_000), (name, 12_000, 13_000)) == set()


def test_a_report_refused_before_the_lease_expired_explains_nothing() -> None:
    item = {"k": 1, "a": 1, "o": "complete", "fields": [], "result": None, "events": []}
    told = Call("server-0.0000", "settle", [item], 0, 10_110, "ok", 1, ["lease lost"], answered_t=10_120)
    assert after_vain(a_lapse(20_000), call=told) == {"V15"}
    assert after_vain(a_lapse(20_000), call=replace(told, answered_t=20_001)) == set()


def test_an_expired_lease_explains_a_run_in_vain() -> None:
    assert after_vain(a_lapse(10_050)) == set()


def test_an_attempt_that_fails_as_planned_is_not_in_vain() -> None:
    assert after_vain(a_lapse(20_000), how="fail-now") == set()


def test_a_lease_for_a_dead_caller_that_is_not_released_is_v11() -> None:
    verdict = Verdict()
    check_duplicates(Histories(), FinalState({}, {1: [a_lapse(20_000)]}, ended={"rest-a.0": 8_000}), verdict)
    assert set(verdict.found) == {"V11"}


def test_time_in_which_the_clock_jumped_does_not_count_against_a_dead_caller() -> None:
    verdict = Verdict()
    final = FinalState({}, {1: [a_lapse(20_000)]}, ended={"rest-a.0": 8_000}, stops=[(8_500, 9_900)])
    check_duplicates(Histories(), final, verdict)
    assert not verdict.found


def test_a_lease_that_a_jump_of_the_clock_has_moved_began_before_it() -> None:
    def found(jump: tuple[int, int]) -> set[str]:
        verdict = Verdict()
        final = FinalState({}, {1: [a_lapse(20_000)]}, ended={"rest-a.0": 8_000}, jumps=[jump])
        check_duplicates(Histories(), final, verdict)
        return set(verdict.found)

    assert found((8_100, 2_500)) == set()
    assert found((7_000, 2_500)) == {"V11"}, "leased after the jump"
    assert found((20_100, 2_500)) == {"V11"}, "expired before the jump"
    assert found((9_200, 1_500)) == {"V11"}, "the store moves nothing by so little"


def test_a_worker_killed_before_its_late_report_explains_a_run_in_vain() -> None:
    assert after_vain(a_lapse(20_000), ("rest-a.0", 21_000, 21_000)) == set()
    assert after_vain(a_lapse(20_000), ("rest-a.0", 23_000, 23_000)) == {"V15"}


def after_cancels(*answered: tuple[str, str], events: int) -> set[str]:
    """The violations found for cancels of one job, by process and response, of which this many are in its history."""
    calls = [Call(process, "cancel", [1], 0, 10, "ok", 1, [answer]) for process, answer in answered]
    verdict, end = Verdict(), HistoryEntry(1, "cancel", 20)
    check_changes(calls, FinalState({}, {1: [end] * events}), verdict)
    return {number for number, times in verdict.found.items() if times}


def test_a_cancel_over_rest_may_be_a_repeated_one() -> None:
    assert after_cancels(("grpc-producer-b.0001", "accepted"), ("rest-producer-b.0002", "accepted"), events=1) == set()
    assert after_cancels(("grpc-a.0", "accepted"), ("grpc-b.0", "accepted"), events=1) == {"V8"}
    assert after_cancels(("rest-producer-b.0002", "accepted"), events=0) == {"V8"}


def after_deduplicated(process: str, dedupe_key: str | None) -> set[str]:
    """The violations found if a create is reported as deduplicated by the job that it has created itself."""
    run = SmallRun()
    run.create("b", answer=[7, True], dedupe=dedupe_key)
    run.histories.calls[-1] = replace(run.histories.calls[-1], process=process)
    run.add_job(7, "b", dedupe_key=dedupe_key)
    return run.violations()


def test_a_create_that_the_client_repeats_finds_its_own_job() -> None:
    assert after_deduplicated("grpc-producer-a.0001", "once") == set()
    assert after_deduplicated("grpc-producer-a.0001", None) == {"V2"}
    assert after_deduplicated("rest-producer-a.0001", "once") == {"V2"}


def a_judgement(engine: str, lane: str, *, caught: dict[str, str] | None = None, **found: int) -> report.Judgement:
    facts = {"store": "sqlite 3", "durability": "power-loss"}
    run = Run(engine, 1, Verdict(found=Counter(found)), Counter({"kills: server": 2, "kills: store": 1}), 60, facts)
    return report.Judgement(engine, {lane: run}, caught or {})


def test_runs_of_several_lanes_and_engines_are_kept_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "RELIABILITY.json"
    report.write(path, [a_judgement("sqlite", "kills", caught={"m": "V1"})])
    report.write(path, [a_judgement("sqlite", "fleet"), a_judgement("redis", "fleet", V1=3)])
    told: dict[str, Any] = json.loads(path.read_text())
    assert (told["sqlite"]["passed"], told["redis"]["passed"]) == (True, False)
    assert set(told["sqlite"]) == {"passed", "kills", "fleet", "mutants"}
    assert (told["redis"]["fleet"]["kills"], told["redis"]["fleet"]["store_kills"]) == ({"server": 2}, 1)


def test_a_mutant_that_is_missed_shows_in_the_file(tmp_path: Path) -> None:
    report.write(tmp_path / "R.json", [a_judgement("sqlite", "fleet", caught={"m": MISSED})])
    assert json.loads((tmp_path / "R.json").read_text())["sqlite"]["passed"] is False


def test_the_page_on_reliability_shows_the_counters_that_are_in_the_repository() -> None:
    assert "| SIGKILLs of processes |" in reliability.results("fleet")
    assert reliability.COUNTERS.read_text("utf-8").startswith("{")
