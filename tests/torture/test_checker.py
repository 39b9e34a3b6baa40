"""The checker finds what it is there to find: one tampered run per promise, each by its own number."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from everwork.core.job import HistoryEntry, NewJob, StoredJob
from everwork.core.queries import Count, WorkerHour
from everwork.core.states import State
from tests.torture import plan
from tests.torture.checker import check
from tests.torture.history import Call, Histories, HistoryWriter, read_histories
from tests.torture.limited import check_limits
from tests.torture.verdict import FinalState, Spooled, Verdict


class SmallRun:
    """One job asked for and completed by its second attempt, after a failure; tests tamper with it."""

    def __init__(self) -> None:
        self.instant = 0
        self.histories = Histories()
        self.create("a", answer=[1, False])
        self.leased(1, 1, until=1_500)
        self.settle(1, 1, "fail", "accepted")
        self.leased(1, 2, until=2_500)
        self.settle(1, 2, "complete", "accepted", result='"1@2"')
        self.job = StoredJob(
            key=1, type=plan.WORK, state=State.COMPLETED, variables='{"r": "a"}', attempt=2, attempts=2, max_attempts=4,
            result='"1@2"',
        )  # fmt: skip
        self.events = [
            HistoryEntry(1, "fail", 1_100, activated_at_ms=1_000, retry_at_ms=1_100),
            HistoryEntry(2, "complete", 2_100, activated_at_ms=2_000),
        ]
        self.counts = [Count("<default>", plan.WORK, "", State.COMPLETED, 1)]
        self.others: list[StoredJob] = []
        self.spooled: list[Spooled] = []
        self.stops: list[tuple[int, int]] = []
        self.lapses_counted = 0

    def create(self, name: str, *, answer: Any = "unknown", dedupe: str | None = None, **variables: object) -> None:
        job = NewJob(plan.WORK, json.dumps({"r": name, **variables}), dedupe_key=dedupe)
        self.call("create", [{"r": name, "type": plan.WORK, "dedupe": dedupe, "job": list(job)}], [answer])

    def leased(self, key: int, attempt: int, *, until: int = 0, attempts: int = 1) -> None:
        self.call("settle", [], [], leased=[[key, attempt, attempts, 4, until]])
        self.histories.begins.append(("worker-0", key, attempt))

    def settle(self, key: int, attempt: int, kind: str, verdict: str, **fields: Any) -> None:
        item = {"k": key, "a": attempt, "o": kind, "fields": [], "result": None, "events": [], **fields}
        self.call("settle", [item], [verdict])

    def call(self, name: str, items: list[Any], answers: list[Any], leased: list[Any] | None = None) -> None:
        status = answers[0] if answers and answers[0] in ("unknown", "refused") else "ok"
        self.instant += 10
        call = Call(
            "worker-0", name, items, self.instant, self.instant, status, self.instant + 5, answers, leased or []
        )
        self.histories.calls.append(call)

    def violations(self) -> set[str]:
        jobs = {job.key: job for job in (self.job, *self.others)}
        events = {
            1: self.events,
            **{job.key: [HistoryEntry(1, "complete", 9, activated_at_ms=8)] for job in self.others},
        }
        happened = [event for of_job in events.values() for event in of_job]
        hours = [
            WorkerHour(
                0, plan.WORK, "worker-0",
                sum(event.kind == "complete" for event in happened),
                sum(event.kind in ("fail", "lapse") and event.retry_at_ms is None for event in happened),
                sum(event.retry_at_ms is not None for event in happened) + self.lapses_counted,
                0, 0,
            )
        ]  # fmt: skip
        final = FinalState(jobs, events, self.counts, hours, spooled=self.spooled, stops=self.stops)
        return set(check(self.histories, final).found)

    def add_job(self, key: int, name: str, **fields: Any) -> None:
        self.others.append(
            replace(self.job, key=key, variables=json.dumps({"r": name}), attempt=1, attempts=1, **fields)
        )
        self.counts = [self.counts[0]._replace(jobs=self.counts[0].jobs + 1)]


def test_a_sound_run_has_no_violation() -> None:
    assert SmallRun().violations() == set()


def test_an_error_nobody_expected_is_v0() -> None:
    run = SmallRun()
    run.histories.broken.append("worker-1: OperationalError: database is locked")
    assert run.violations() == {"V0"}


def test_an_acknowledged_job_that_is_missing_is_v1() -> None:
    run = SmallRun()
    run.create("b", answer=[7, False])
    assert run.violations() == {"V1"}


def test_a_job_that_is_still_pending_after_the_drain_is_v1() -> None:
    run = SmallRun()
    run.create("b", answer=[7, False])
    run.add_job(7, "b", state=State.PENDING)
    run.counts = [
        Count("<default>", plan.WORK, "", State.COMPLETED, 1),
        Count("<default>", plan.WORK, "", State.PENDING, 1),
    ]
    assert run.violations() == {"V1"}


def test_a_job_nobody_asked_for_is_v2() -> None:
    run = SmallRun()
    run.add_job(7, "never asked")
    assert run.violations() == {"V2"}


def test_a_refused_create_that_exists_is_v2() -> None:
    run = SmallRun()
    run.create("b", answer="refused")
    run.add_job(7, "b")
    assert run.violations() == {"V2"}


def test_an_unanswered_create_may_exist_or_not() -> None:
    run = SmallRun()
    run.create("b")
    run.create("c")
    run.add_job(7, "b")
    assert run.violations() == set()


def test_half_of_a_batch_is_v2() -> None:
    run = SmallRun()
    items = [{"r": name, "type": plan.WORK, "dedupe": None, "job": ["", "{}"]} for name in ("b", "c")]
    run.call("create", items, ["unknown"] * 2)
    run.add_job(7, "b")
    assert run.violations() == {"V2"}


def test_two_jobs_under_one_dedupe_key_are_v3() -> None:
    run = SmallRun()
    for key, name in ((7, "b"), (8, "c")):
        run.create(name, answer=[key, False], dedupe="once")
        run.add_job(key, name, dedupe_key="once")
    assert run.violations() == {"V3"}


def test_a_second_terminal_transition_is_v4() -> None:
    run = SmallRun()
    run.events.append(HistoryEntry(2, "cancel", 2_200))
    run.job = replace(run.job, state=State.CANCELLED)
    run.counts = [run.counts[0]._replace(state=State.CANCELLED)]
    assert run.violations() == {"V4"}


def test_an_attempt_begun_twice_is_v5() -> None:
    run = SmallRun()
    run.histories.begins.append(("worker-1", 1, 2))
    assert run.violations() == {"V5"}


def test_an_attempt_number_used_again_is_v5() -> None:
    run = SmallRun()
    run.events.insert(1, HistoryEntry(1, "fail", 1_900, activated_at_ms=1_800, retry_at_ms=1_900))
    run.job = replace(run.job, attempts=3)
    assert run.violations() == {"V5"}


def test_a_failed_attempt_that_was_not_counted_is_v5() -> None:
    run = SmallRun()
    run.job = replace(run.job, attempts=1)
    assert run.violations() == {"V5"}


def test_an_accepted_outcome_of_an_old_attempt_is_v6() -> None:
    run = SmallRun()
    run.histories.calls.insert(2, run.histories.calls.pop(3))
    run.histories.calls[3].invoked_m = run.histories.calls[2].answered_m + 1 if run.histories.calls[2].answered_m else 0
    assert run.violations() == {"V6"}


def test_leases_that_overlap_are_v6() -> None:
    run = SmallRun()
    run.events[1] = run.events[1]._replace(activated_at_ms=1_050)
    assert run.violations() == {"V6"}


def test_a_lease_taken_away_before_its_end_is_v6() -> None:
    run = SmallRun()
    run.events[0] = run.events[0]._replace(kind="lapse", at_ms=1_499)
    run.histories.calls = [
        call for call in run.histories.calls if not any(item.get("o") == "fail" for item in call.items)
    ]
    assert run.violations() == {"V6"}


def test_an_old_lease_that_is_said_to_be_held_is_v6() -> None:
    run = SmallRun()
    run.call("extend", [[1, 1, 700]], ["held"])
    assert run.violations() == {"V6"}


def test_an_attempt_after_a_terminal_state_is_v7() -> None:
    run = SmallRun()
    run.events.append(HistoryEntry(3, "release", 3_100, activated_at_ms=3_000))
    run.events.append(HistoryEntry(3, "cancel", 3_200))
    run.job = replace(run.job, attempt=3, state=State.CANCELLED)
    run.counts = [run.counts[0]._replace(state=State.CANCELLED)]
    assert run.violations() == {"V7"}


def test_a_lease_of_a_completed_job_is_v7() -> None:
    run = SmallRun()
    run.leased(1, 3)
    assert "V7" in run.violations()


def test_an_accepted_outcome_that_is_not_in_the_state_is_v8() -> None:
    run = SmallRun()
    run.events[0] = run.events[0]._replace(kind="release")
    run.job = replace(run.job, attempts=1)
    assert "V8" in run.violations()


def test_a_completion_without_its_event_is_v8() -> None:
    run = SmallRun()
    run.histories.calls[-1].items[0]["events"] = ["a/e0"]
    assert run.violations() == {"V8"}


def test_a_refused_outcome_that_is_in_the_state_is_v9() -> None:
    run = SmallRun()
    run.histories.calls[-1].answers[0] = "lease lost"
    assert "V9" in run.violations()


def test_a_repeat_that_is_refused_is_v9() -> None:
    run = SmallRun()
    run.settle(1, 2, "complete", "lease lost", result='"1@2"')
    assert run.violations() == {"V9"}


def test_the_event_of_a_refused_completion_is_v9() -> None:
    run = SmallRun()
    run.settle(1, 1, "complete", "lease lost", result='"stale"', events=["stale/1@1"])
    run.add_job(7, "stale/1@1")
    assert run.violations() == {"V9"}


def test_a_cancel_that_was_accepted_and_did_nothing_is_v8() -> None:
    run = SmallRun()
    run.call("cancel", [1], ["accepted"])
    assert run.violations() == {"V8"}


def test_a_count_that_does_not_add_up_is_v10() -> None:
    run = SmallRun()
    run.counts = [run.counts[0]._replace(jobs=2)]
    assert run.violations() == {"V10"}


def lapsed_at(at_ms: int, *lost: tuple[str, int, int | None], stops: Sequence[tuple[int, int]] = ()) -> set[str]:
    """What is said of a lease until 1,500 that lapsed then; lost calls: name, when made, when given up. Term: 8,000."""
    run = SmallRun()
    run.events[0] = run.events[0]._replace(kind="lapse", at_ms=at_ms, retry_at_ms=at_ms)
    run.events[1] = run.events[1]._replace(activated_at_ms=at_ms, at_ms=at_ms)
    run.histories.calls = [call for call in run.histories.calls if not any("k" in item for item in call.items)]
    for name, invoked_ms, given_up_ms in lost:
        item = [1, 1, 8_000]
        run.histories.calls.append(Call("w", name, [item], 1, invoked_ms, "unknown", 2, answered_t=given_up_ms))
    run.stops = list(stops)
    return run.violations()


def test_a_lease_that_is_taken_a_second_late_is_v11() -> None:
    assert lapsed_at(2_500) == set()
    assert lapsed_at(2_501) == {"V11"}


def test_an_extension_whose_answer_was_lost_may_have_been_made_until_it_was_given_up() -> None:
    assert lapsed_at(2_100 + 8_000 + 1_000, ("extend", 100, 2_100)) == set()
    assert lapsed_at(2_101 + 8_000 + 1_000, ("extend", 100, 2_100)) == {"V11"}


def test_what_a_worker_sent_before_it_died_arrives_within_a_stall_of_the_network() -> None:
    assert lapsed_at(100 + 1_500 + 8_000 + 1_000, ("extend", 100, None)) == set()
    assert lapsed_at(101 + 1_500 + 8_000 + 1_000, ("extend", 100, None)) == {"V11"}


def test_an_extension_that_was_sent_into_an_outage_may_arrive_at_its_end_and_not_later() -> None:
    outage = [(90, 20_000)]
    assert lapsed_at(20_000 + 8_000 + 1_000, ("extend", 100, 2_100), stops=outage) == set()
    assert lapsed_at(20_001 + 8_000 + 1_000, ("extend", 100, 2_100), stops=outage) == {"V11"}
    assert lapsed_at(21_001, stops=outage) == {"V11"}


def test_an_extension_that_came_after_the_lease_must_have_lapsed_excuses_nothing() -> None:
    assert lapsed_at(9_000, ("extend", 2_500, 2_600)) == set()
    assert lapsed_at(9_000, ("extend", 2_501, 2_600)) == {"V11"}


def test_lost_extensions_one_after_the_other_each_last_a_term_from_their_own_time() -> None:
    calls = [("extend", 1_000, 1_010), ("extend", 9_000, 9_010)]
    assert lapsed_at(9_010 + 8_000 + 1_000, *calls) == set()
    assert lapsed_at(9_011 + 8_000 + 1_000, *calls) == {"V11"}


def test_a_reclaim_whose_answer_was_lost_may_have_begun_a_lease_of_its_own() -> None:
    assert lapsed_at(60_100 + 8_000 + 1_000, ("reclaim", 60_000, 60_100)) == set()
    assert lapsed_at(60_101 + 8_000 + 1_000, ("reclaim", 60_000, 60_100)) == {"V11"}


def test_an_extension_that_was_answered_lasts_at_least_from_its_call_and_at_most_from_its_answer() -> None:
    def lapsed(at_ms: int) -> set[str]:
        run = SmallRun()
        run.events[0] = run.events[0]._replace(kind="lapse", at_ms=at_ms, retry_at_ms=at_ms)
        run.events[1] = run.events[1]._replace(activated_at_ms=at_ms, at_ms=at_ms)
        call = Call("w", "extend", [[1, 1, 8_000]], 1, 1_000, "ok", 2, ["held"], answered_t=1_300)
        run.histories.calls.append(call)
        return run.violations() & {"V6", "V11"}

    assert lapsed(8_999) == {"V6"}
    assert lapsed(9_000) == lapsed(1_300 + 8_000 + 1_000) == set()
    assert lapsed(1_301 + 8_000 + 1_000) == {"V11"}


def test_a_trigger_point_fired_twice_is_v12() -> None:
    run = SmallRun()
    for key, name in ((7, "b"), (8, "c")):
        run.create(name, answer=[key, False], trigger="tick", point=250)
        run.add_job(key, name)
        run.others[-1] = replace(run.others[-1], variables=json.dumps({"r": name, "trigger": "tick", "point": 250}))
    assert run.violations() == {"V12"}


def test_more_jobs_of_a_limit_key_at_once_than_allowed_are_v16() -> None:
    def found(ends_ms: int) -> set[str]:
        keys = range(1, plan.LIMITS.max_running_per_key + 2)
        calls = [Call("w", "settle", [], 0, 0, "ok", 0, [], [[key, 1, 1, 4, 0]], answered_t=key * 10) for key in keys]
        job = StoredJob(key=1, type=plan.LIMITED, state=State.COMPLETED, variables="{}", limit_key="a")
        events = {key: [HistoryEntry(1, "complete", key * 10 + ends_ms, activated_at_ms=key * 10)] for key in keys}
        verdict = Verdict()
        check_limits(calls, FinalState({key: replace(job, key=key) for key in keys}, events), verdict)
        return set(verdict.found)

    assert found(ends_ms=30) == set()
    assert found(ends_ms=31) == {"V16"}


def test_a_history_survives_a_line_cut_short_by_a_kill(tmp_path: Path) -> None:
    history = HistoryWriter(tmp_path / "worker-0.0000.jsonl")
    history.answered(history.invoked("create", [{"r": "a"}]), [[1, False]])
    history.invoked("settle", [])
    with (tmp_path / "worker-0.0000.jsonl").open("ab") as file:
        file.write(b'{"e":"ok","id":2')
    assert [(call.name, call.status) for call in read_histories(tmp_path).calls] == [
        ("create", "ok"),
        ("settle", "unknown"),
    ]
