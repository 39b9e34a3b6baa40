"""What producers asked for against what exists: V1, V2, V3 and V12."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from everwork.core.job import NewJob, StoredJob
from everwork.core.states import FINISHED_STATES
from tests.torture.history import Call
from tests.torture.reported import Report, ReportKey, flat
from tests.torture.verdict import FinalState, Ticking, Verdict, answered, fired_point, variables_of


def check_creates(
    calls: Sequence[Call], reports: Mapping[ReportKey, list[Report]], final: FinalState, verdict: Verdict
) -> None:
    """V1, V2: what was acknowledged is there and finished, and nothing else is."""
    by_name: dict[str, list[StoredJob]] = defaultdict(list)
    for job in final.jobs.values():
        if fired_point(job) is None:
            by_name[variables_of(job)["r"]].append(job)
        if job.state not in FINISHED_STATES:
            verdict.violation("V1", f"job {job.key} is {job.state.label} after the drain")
    asked = _asked(calls)
    carried = {name for report in flat(reports) for name in report.item.get("events", ())}
    deduplicated = _deduplicated(calls, final)
    for name, answers in asked.items():
        if not (name in deduplicated and name not in by_name):
            check_request(name, answers, by_name.get(name, []), final, verdict)
    for name, jobs in by_name.items():
        if name not in asked and name not in carried:
            verdict.violation("V2", f"nobody asked for '{name}' (job {jobs[0].key})")
        for group, copies in Counter(job.group for job in jobs).items():
            if copies > 1:
                verdict.violation("V2", f"'{name}' exists {copies} times in group '{group}'")
    check_copies(final, verdict)
    check_whole_batches(calls, by_name, verdict)
    verdict.figures["jobs"] = len(final.jobs)
    verdict.figures["acknowledged"] = sum(1 for answers in asked.values() if any(_is_new(one) for one in answers))


def _asked(calls: Iterable[Call]) -> dict[str, list[Any]]:
    asked: dict[str, list[Any]] = defaultdict(list)
    for call in calls:
        if call.name == "create":
            repeated = ["unknown"] if _may_be_repeated(call) else []
            for item, answer in answered(call):
                asked[item["r"]] += [answer, *repeated]
    return asked


def _may_be_repeated(call: Call) -> bool:
    """The client repeats a create whose jobs all have dedupe keys; the repetition finds the jobs of the first try."""
    return call.process.startswith("grpc-producer") and all(item["dedupe"] is not None for item in call.items)


def _deduplicated(calls: Iterable[Call], final: FinalState) -> set[str]:
    """Spooled jobs whose dedupe key belongs to another job, which is known only after their delivery."""
    held = {(job.tenant, job.type, job.dedupe_key) for job in final.jobs.values() if job.dedupe_key}
    found = set()
    for call in calls:
        for item, answer in answered(call) if call.name == "create" else ():
            if item["dedupe"] is not None and isinstance(answer, list) and answer[0] < 0:
                job = NewJob(*item["job"])
                if (job.tenant, job.type, job.dedupe_key) in held:
                    found.add(item["r"])
    return found


def _is_new(answer: object) -> bool:
    return isinstance(answer, list) and not answer[1]


def check_request(name: str, answers: list[Any], jobs: list[StoredJob], final: FinalState, verdict: Verdict) -> None:
    for key, _ in (one for one in answers if isinstance(one, list)):
        if key < 0 and not jobs:
            verdict.violation("V1", f"'{name}' was kept in a spool and is missing")
        if key >= 0 and key not in final.jobs:
            verdict.violation("V1", f"job {key} ('{name}') was acknowledged and is missing")
    new = [one[0] for one in answers if _is_new(one)]
    if new and new[0] >= 0 and not any(job.key == new[0] for job in jobs):
        verdict.violation("V1", f"'{name}' was acknowledged as job {new[0]}, which is another")
    if jobs and not new and "unknown" not in answers:
        verdict.violation("V2", f"'{name}' was refused or deduplicated, and exists as job {jobs[0].key}")


def check_copies(final: FinalState, verdict: Verdict) -> None:
    """V1, V2: each job has exactly one copy per further group of its type."""
    copies = Counter((job.copy_of, job.group) for job in final.jobs.values() if job.copy_of is not None)
    for job in final.jobs.values():
        for group in final.groups.get(job.type, ()) if job.copy_of is None else ():
            if copies.pop((job.key, group), 0) != 1:
                verdict.violation("V1", f"job {job.key} has no copy for group '{group}', or several")
    for first, group in copies:
        verdict.violation("V2", f"job {first} has a copy for group '{group}', which nobody registered")


def check_whole_batches(calls: Iterable[Call], by_name: Mapping[str, list[StoredJob]], verdict: Verdict) -> None:
    for call in calls:
        if call.name == "create" and call.status == "unknown":
            there = Counter(item["r"] in by_name for item in call.items if item["dedupe"] is None)
            if there[True] and there[False]:
                verdict.violation("V2", f"a create of {call.process} is half there: {there[True]} of {there.total()}")


def check_dedupe(calls: Iterable[Call], final: FinalState, verdict: Verdict) -> None:
    """V3: one job per dedupe key and group, and one answer for all who ask."""
    held = Counter((job.tenant, job.type, job.dedupe_key, job.group) for job in final.jobs.values() if job.dedupe_key)
    told: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for call in calls:
        if call.name == "create":
            for item, answer in answered(call):
                if item["dedupe"] is not None and isinstance(answer, list):
                    tenant = NewJob(*item["job"]).tenant
                    told[tenant, item["type"], item["dedupe"]].add(answer[0])
    for name, jobs in held.items():
        if jobs > 1:
            verdict.violation("V3", f"{jobs} jobs under {name}")
    for named, keys in told.items():
        if len({key for key in keys if key >= 0}) > 1:  # The others were spooled, and have no key.
            verdict.violation("V3", f"{named} was answered with keys {sorted(keys)}")
    verdict.figures["dedupe keys"] = len(told)


def check_triggers(calls: Iterable[Call], final: FinalState, verdict: Verdict) -> None:
    """V12: each time point that was fired has one job per group."""
    points = Counter(
        (parts["trigger"], parts["point"], job.group)
        for job in final.jobs.values()
        if "trigger" in (parts := variables_of(job))
    )
    for (trigger, point, group), fired in points.items():
        if fired > 1:
            verdict.violation("V12", f"'{trigger}' fired {fired} times for {point} in group '{group}'")
    for call in calls:
        for item in call.items if call.name == "create" and call.status == "ok" else ():
            parts = json.loads(item["job"][1])
            if "trigger" in parts and (parts["trigger"], parts["point"], "") not in points:
                verdict.violation("V12", f"'{parts['trigger']}' never fired for {parts['point']}")
    verdict.figures["scheduled times fired by producers"] = len(points)


def check_schedules(calls: Iterable[Call], final: FinalState, verdict: Verdict) -> None:
    """V12: the time points of the managers' triggers, each fired once, by one manager; none is left out."""
    passed = Counter(
        (trigger, point_ms)
        for call in calls
        if call.name == "fire"
        for (trigger, point_ms), key in answered(call)
        if isinstance(key, int)
    )
    for (trigger, point_ms), times in passed.items():
        if times > 1:
            verdict.violation("V12", f"{times} managers were told that {trigger} fires for {point_ms} now")
    fired = Counter((*point, job.group) for job in final.jobs.values() if (point := fired_point(job)) is not None)
    for (trigger, point_ms, group), times in fired.items():
        if times > 1:
            verdict.violation("V12", f"{trigger} fired {times} times for {point_ms} in group '{group}'")
    for ticking in final.triggers:
        _check_points(ticking, {point_ms for name, point_ms, _ in fired if name == ticking.name}, verdict)
    verdict.figures["scheduled times fired by managers"] = len(fired)


def _check_points(ticking: Ticking, fired: set[int], verdict: Verdict) -> None:
    """With catch-up, every point since the trigger began has its job, and nothing but them."""
    began_ms, last_ms = ticking.mark
    until_ms = max(last_ms, ticking.due_ms)
    expected = set(range(began_ms + ticking.every_ms, until_ms + 1, ticking.every_ms))
    for point_ms in sorted(expected - fired):
        verdict.violation("V12", f"{ticking.name} never fired for {point_ms} (began {began_ms}, stands at {last_ms})")
    for point_ms in sorted(fired - expected):
        verdict.violation("V12", f"{ticking.name} fired for {point_ms}, which is none of its points or not passed")
