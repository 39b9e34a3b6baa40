"""Offline mode, judged: V13 (what is left in spools), V15 (completed jobs that ran again), V17 (order of producers)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tests.torture.history import Call
from tests.torture.verdict import OK, FinalState, Verdict, answered, fired_point, variables_of

Attempt = tuple[int, int]


def check_spools(calls: Sequence[Call], final: FinalState, verdict: Verdict) -> None:
    """Judge what spools had to do with."""
    _check_left(final, verdict)
    _check_repeats(calls, final, verdict)
    _check_order(calls, final, verdict)
    kept = [call for call in calls if call.name == "keep" and call.status == "ok"]
    if kept:
        verdict.figures["outcomes stored in spools"] = sum(len(call.items) for call in kept)


def _check_left(final: FinalState, verdict: Verdict) -> None:
    """V13: nothing waits, and only outcomes of attempts that another one has followed are set aside."""
    late = 0
    for one in final.spooled:
        job = final.jobs.get(one.key) if one.attempt else None
        if one.reason is not None and job is not None and job.attempt > one.attempt:
            late += 1
            continue
        what = f"the outcome of attempt {one.attempt} of job {one.key}" if one.attempt else f"job {one.key}"
        verdict.violation("V13", f"{one.spool}: {what} {one.reason or 'was never delivered'}")
    if final.spooled:
        verdict.figures["outcomes that arrived after another attempt had started"] = late


def _check_repeats(calls: Sequence[Call], final: FinalState, verdict: Verdict) -> None:
    """V15: a job whose completion was kept runs again only if it was leased before the store could be told."""
    kept = _completions_kept(calls)
    arrived = _arrivals(calls, kept)
    explained = 0
    for (key, attempt), kept_ms in kept.items():
        leased_ms = next((one.activated_at_ms for one in final.events.get(key, ()) if one.attempt == attempt + 1), None)
        if leased_ms is None or leased_ms < kept_ms:
            continue
        if leased_ms <= arrived.get((key, attempt), 0):
            explained += 1
        else:
            verdict.violation("V15", f"job {key} was completed by attempt {attempt}, and leased again later")
    if kept:
        verdict.figures["jobs leased again before a late completion arrived"] = explained


def _completions_kept(calls: Iterable[Call]) -> dict[Attempt, int]:
    """When the completions of attempts were in a spool."""
    kept: dict[Attempt, int] = {}
    for call in calls:
        if call.name == "keep" and call.status == "ok":
            for item in call.items:
                if item["o"] == "complete":
                    kept.setdefault((item["k"], item["a"]), call.answered_t or 0)
    return kept


def _arrivals(calls: Iterable[Call], kept: Mapping[Attempt, int]) -> dict[Attempt, int]:
    """When the store had judged each completion: its first verdict, and the attempt to reclaim that follows it."""
    arrived: dict[Attempt, int] = {}
    is_settled: set[Attempt] = set()
    told = [call for call in calls if call.name in ("settle", "reclaim") and call.status == "ok"]
    for call in sorted(told, key=lambda call: call.answered_m or 0):
        for item, answer in answered(call):
            named = (item["k"], item["a"]) if call.name == "settle" else (item[0], item[1])
            if named not in kept or named in is_settled:
                continue
            if call.name == "reclaim" and named in arrived:
                arrived[named] = call.answered_t or 0
                is_settled.add(named)
            elif call.name == "settle" and item["o"] == "complete":
                arrived.setdefault(named, call.answered_t or 0)
                if answer in OK:
                    is_settled.add(named)
    return arrived


def _check_order(calls: Iterable[Call], final: FinalState, verdict: Verdict) -> None:
    """V17: the keys of one process's jobs grow in the order in which they were acknowledged."""
    spooled, keys = 0, _keys_by_name(final)
    last: dict[str, tuple[int, str]] = {}
    for call in calls:
        if call.name != "create":
            continue
        for item, answer in answered(call):
            if not isinstance(answer, list) or answer[1]:
                continue
            spooled += answer[0] < 0
            if answer[0] < 0 and item["dedupe"] is not None:
                continue  # An earlier create may have created this job, which a spool cannot know yet.
            key = answer[0] if answer[0] >= 0 else keys.get(item["r"], 0)
            before, name = last.get(call.process, (0, ""))
            if 0 < key < before:
                verdict.violation("V17", f"'{item['r']}' is job {key}, '{name}' before it is {before}")
            if key:
                last[call.process] = (key, item["r"])
    if spooled:
        verdict.figures["jobs acknowledged by a spool"] = spooled


def _keys_by_name(final: FinalState) -> dict[str, int]:
    firsts = (job for job in final.jobs.values() if job.copy_of is None and fired_point(job) is None)
    return {variables_of(job)["r"]: job.key for job in firsts}
