"""What workers were told against what the engine shows: V5 to V9."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from everwork.core.job import StoredJob
from everwork.core.states import State
from tests.torture.history import HANDED, Call, Histories
from tests.torture.verdict import OK, FinalState, Verdict, answered, fired_point, variables_of


@dataclass(slots=True)
class Report:
    """One outcome as one call reported it, and the engine's verdict (`refused` or `unknown`: of the whole call)."""

    call: Call
    item: dict[str, Any]
    verdict: str


ReportKey = tuple[int, int, str]


def reports_of(calls: Iterable[Call]) -> dict[ReportKey, list[Report]]:
    """Every outcome that was reported, by job, attempt and kind."""
    reports: dict[ReportKey, list[Report]] = defaultdict(list)
    for call in calls:
        if call.name == "settle":
            for item, answer in answered(call):
                reports[item["k"], item["a"], item["o"]].append(Report(call, item, answer))
    return reports


def flat(reports: Mapping[ReportKey, list[Report]]) -> Iterable[Report]:
    """All reports, whatever they are about."""
    return (report for group in reports.values() for report in group)


def check_attempts(histories: Histories, verdict: Verdict) -> None:
    """V5: an attempt is leased once, begun once, and never over the limit."""
    # A server and its client both log a lease; each of them must see an attempt only once.
    leases: dict[bool, Counter[tuple[int, int]]] = {True: Counter(), False: Counter()}
    for call in histories.calls:
        for key, attempt, attempts, max_attempts, _ in call.leased:
            leases[call.is_inner][key, attempt] += 1
            if attempts > max_attempts:
                verdict.violation("V5", f"job {key} was leased with attempts {attempts} of {max_attempts}")
    begun = Counter((key, attempt) for _, key, attempt in histories.begins)
    for (key, attempt), times in (leases[True] | leases[False] | begun).items():
        if times > 1:
            verdict.violation("V5", f"job {key}: attempt {attempt} was leased or begun {times} times")
    verdict.figures["jobs handed over"] = sum(call.name == HANDED for call in histories.calls)
    verdict.figures["attempts started"] = len(begun)
    verdict.figures["attempts whose handler finished"] = len(histories.through)


class Newest:
    """The newest attempt that anybody had been told of at an instant, job by job."""

    def __init__(self, calls: Iterable[Call]) -> None:
        told: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for call in calls:
            for key, attempt, *_ in call.leased:
                told[key].append((call.answered_m or 0, attempt))
        self._told = {key: sorted(leases) for key, leases in told.items()}
        self._newest = {key: list(accumulate((one[1] for one in of_key), max)) for key, of_key in self._told.items()}

    def before(self, key: int, instant_m: int) -> int:
        """The highest attempt number leased, by an answer before this instant; 0 if there was none."""
        place = bisect_left(self._told.get(key, []), (instant_m, 0))
        return self._newest[key][place - 1] if place else 0


def check_fencing(calls: Sequence[Call], verdict: Verdict) -> None:
    """V6: nothing that an old attempt brings is taken, in the order that everybody saw."""
    newest = Newest(calls)
    for call, (key, attempt, _), answer in (*_items(calls, "extend"), *_items(calls, "reclaim")):
        if answer == "held" and newest.before(key, call.invoked_m) > attempt:
            verdict.violation("V6", f"job {key}: the lease of old attempt {attempt} was said to be held")
    for call, item, answer in _items(calls, "settle"):
        is_numbered = item["a"] or not call.may_lack_attempts
        if answer == "accepted" and is_numbered and newest.before(item["k"], call.invoked_m) > item["a"]:
            verdict.violation("V6", f"job {item['k']}: {item['o']} of old attempt {item['a']} was accepted")


def check_finished(calls: Sequence[Call], verdict: Verdict) -> None:
    """V7: no job is leased after somebody was told that it is finished, unless it was requeued."""
    requeues = _requeue_instants(calls)
    finished: dict[int, list[int]] = defaultdict(list)
    for call, item, answer in _items(calls, "settle"):
        is_final = item["o"] == "complete" or (answer == "accepted" and item["o"] in ("reject", "throw"))
        if answer in ("accepted", "stored") and is_final:
            insort(finished[item["k"]], call.answered_m or 0)
    for call in calls:
        for key, attempt, *_ in call.leased:
            place = bisect_left(finished[key], call.invoked_m)
            if place and not any(at >= finished[key][place - 1] or at == 0 for at in requeues[key]):
                verdict.violation("V7", f"job {key}: attempt {attempt} was leased after the job had finished")


def _items(calls: Iterable[Call], name: str) -> Iterable[tuple[Call, Any, Any]]:
    return ((call, item, answer) for call in calls if call.name == name for item, answer in answered(call))


def _requeue_instants(calls: Iterable[Call]) -> dict[int, list[int]]:
    """When requeues that may have had an effect returned; 0 when that is not known."""
    requeues: dict[int, list[int]] = defaultdict(list)
    for call, key, answer in _items(calls, "requeue"):
        if answer in (*OK, "unknown"):
            requeues[key].append(0 if answer == "unknown" else call.answered_m or 0)
    return requeues


def check_reports(reports: Mapping[ReportKey, list[Report]], final: FinalState, verdict: Verdict) -> None:
    """V8, V9: what was accepted stands in the job's history, what was refused does not."""
    names = {variables_of(job)["r"] for job in final.jobs.values() if fired_point(job) is None}
    verdicts: Counter[str] = Counter()
    for (key, attempt, kind), group in reports.items():
        if key not in final.jobs:
            continue  # V1 has it already.
        events = final.events.get(key, ())
        stands = any(one.kind == kind and attempt in (0, one.attempt) for one in events)
        verdicts.update(report.verdict for report in group)
        first_told = _first_told(group)
        for report in group:
            told = f"job {key}: {kind} of attempt {attempt} was '{report.verdict}'"
            if report.verdict in OK and not stands:
                verdict.violation("V8", f"{told} and is not in its history")
            is_late = report.call.invoked_m > first_told.get(str(report.item["fields"]), report.call.invoked_m)
            if attempt and report.verdict not in (*OK, "unknown") and is_late:
                verdict.violation("V9", f"{told} although it had been accepted before")
        if stands and not any(report.verdict in (*OK, "unknown") for report in group):
            verdict.violation("V9", f"job {key}: {kind} of attempt {attempt} was refused and is in its history")
        times = Counter(report.call.is_inner for report in group if report.verdict == "accepted")
        if attempt and max(times.values(), default=0) > 1:
            verdict.violation("V9", f"job {key}: {kind} of attempt {attempt} was accepted twice")
        if kind == "complete":
            _check_completion(final.jobs[key], stands, group, names, verdict)
    verdict.figures.update({f"outcomes {name}": count for name, count in verdicts.items()})


def _first_told(group: Sequence[Report]) -> dict[str, int]:
    """When somebody was first told that an outcome was taken, by what it said exactly."""
    told: dict[str, int] = {}
    for report in group:
        if report.verdict in OK and report.call.answered_m is not None:
            said = str(report.item["fields"])
            told[said] = min(report.call.answered_m, told.get(said, report.call.answered_m))
    return told


def _check_completion(job: StoredJob, stands: bool, group: Sequence[Report], names: set[str], verdict: Verdict) -> None:
    """G8: result and emitted events are there exactly when the completion is."""
    for report in group:
        mine = stands and job.result == report.item["result"]
        if report.verdict in OK and not mine:
            verdict.violation("V8", f"job {job.key} has result {job.result}, not {report.item['result']}")
        for name in report.item["events"]:
            if mine and name not in names:
                verdict.violation("V8", f"job {job.key} completed without its event '{name}'")
            if not mine and name in names:
                verdict.violation("V9", f"event '{name}' exists, its completion does not")


def check_changes(calls: Sequence[Call], final: FinalState, verdict: Verdict) -> None:
    """V8, V9 of cancel and requeue."""
    answers: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for call in calls:
        if call.name in ("cancel", "requeue"):
            for key, answer in answered(call):
                # REST responds to a repeated change as to the first one.
                is_unclear = answer == "accepted" and call.process.startswith("rest-")
                answers[call.name, key]["stored" if is_unclear else answer] += 1
    for (name, key), told in answers.items():
        happened = sum(event.kind == name for event in final.events.get(key, ()))
        accepted = told["accepted"]
        # A job that has expired is cancelled, too.
        is_cancelled = name == "cancel" and key in final.jobs and final.jobs[key].state is State.CANCELLED
        is_told = told["repeated"] or told["stored"]
        if happened < accepted or (is_told and not happened and not is_cancelled):
            verdict.violation("V8", f"job {key}: {accepted} times {name} accepted, {happened} in its history")
        if happened > accepted + told["stored"] + told["unknown"]:
            verdict.violation("V9", f"job {key}: {happened} times {name} in its history, {accepted} accepted")
    verdict.figures["cancels accepted"] = sum(
        told["accepted"] for (name, _), told in answers.items() if name == "cancel"
    )
    verdict.figures["requeues accepted"] = sum(
        told["accepted"] for (name, _), told in answers.items() if name == "requeue"
    )
