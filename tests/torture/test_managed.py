"""The checker over managers: their triggers' time points, the processes that died before their eyes, their logs."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from everwork.core.job import HistoryEntry, StoredJob
from everwork.core.states import State
from everwork.engines.values import TriggerMark
from tests.torture.asked import check_schedules
from tests.torture.deaths import RECOVERY_MS_MAX, check_deaths
from tests.torture.history import Call, Histories
from tests.torture.logs import is_expected
from tests.torture.verdict import FinalState, Overseen, Ticking, Verdict

PROCESS = "manager-5.0000-77"
DIED_MS = 10_000


def after_points(points: Iterable[int], *answers: list[int | None], due_ms: int = 0) -> set[str]:
    """What is said of a trigger of 100 ms that began at 1,000 and stands at 1,300."""
    jobs = {
        key: StoredJob(
            key=key, type="ticks", state=State.COMPLETED, variables="{}", dedupe_key=f"trigger:w:t:{point_ms}"
        )
        for key, point_ms in enumerate(points)
    }
    calls = [Call("manager-5.0000", "fire", [["w/t", 1_100]], 0, 0, "ok", 1, answer) for answer in answers]
    ticking = Ticking("w/t", "ticks", 100, TriggerMark(1_000, 1_300), due_ms)
    verdict = Verdict()
    check_schedules(calls, FinalState(jobs, {}, triggers=[ticking]), verdict)
    return set(verdict.found)


def test_each_time_point_fired_once_by_one_manager_is_sound() -> None:
    assert after_points([1_100, 1_200, 1_300], [7], [None]) == set()


@pytest.mark.parametrize(
    "points",
    [[1_100, 1_300], [1_100, 1_200, 1_300, 1_300], [1_100, 1_200, 1_250, 1_300], [1_100, 1_200, 1_300, 1_400]],
    ids=["missed", "twice", "beside the grid", "beyond the mark"],
)
def test_a_time_point_that_is_missed_doubled_or_none_at_all_is_v12(points: list[int]) -> None:
    assert after_points(points) == {"V12"}


def test_a_time_point_that_two_managers_were_given_is_v12() -> None:
    assert after_points([1_100, 1_200, 1_300], [7], [7]) == {"V12"}


def test_a_time_point_that_was_due_and_never_caught_up_with_is_v12() -> None:
    assert after_points([1_100, 1_200, 1_300], due_ms=1_400) == {"V12"}


def after_death(end: HistoryEntry, *, begun: bool = False, struck_ms: int | None = None) -> set[str]:
    """What is said of an attempt that a process held when it was killed, and of how it ended."""
    histories = Histories(begins=[(PROCESS, 1, 1)] if begun else [])
    histories.calls.append(Call(PROCESS, "settle", [], 0, 0, "ok", 1, [], [[1, 1, 1, 4, 0]]))
    manager = Overseen(is_near=True, struck_ms=[] if struck_ms is None else [struck_ms])
    verdict = Verdict()
    final = FinalState({}, {1: [end]}, managers={"manager-5": manager}, deaths={PROCESS: DIED_MS})
    check_deaths(histories, final, verdict)
    return set(verdict.found)


SOON_MS = DIED_MS + RECOVERY_MS_MAX
LATE_MS = SOON_MS + 1


def test_what_a_dead_process_leaves_is_failed_or_given_back_within_a_second() -> None:
    assert after_death(HistoryEntry(1, "fail", SOON_MS), begun=True) == set()
    assert after_death(HistoryEntry(1, "release", SOON_MS)) == set()


def test_what_a_dead_process_leaves_for_longer_is_v11() -> None:
    assert after_death(HistoryEntry(1, "lapse", LATE_MS)) == {"V11"}


def test_a_call_that_died_and_is_not_counted_is_v5() -> None:
    assert after_death(HistoryEntry(1, "release", SOON_MS), begun=True) == {"V5"}


def test_a_manager_that_was_struck_itself_is_excused() -> None:
    assert after_death(HistoryEntry(1, "lapse", LATE_MS), struck_ms=DIED_MS + 1) == set()


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"level": "error", "event": "process died, starting another", "how": "was killed by SIGKILL"}, True),
        ({"level": "error", "event": "process died, starting another", "how": "ended with exit code 1"}, False),
        ({"level": "error", "event": "Task exception was never retrieved"}, False),
        ({"level": "warning", "event": "attempt 1 of 5 failed, retrying in 1 s", "outcome": "retried"}, True),
        ({"level": "error", "event": "gave up after 5 attempts", "outcome": "failed"}, True),
    ],
)
def test_errors_in_the_log_that_no_nemesis_explains_count(facts: dict[str, str], expected: bool) -> None:
    assert is_expected(json.dumps(facts)) is expected
