"""V16: never more jobs at once than their type's policy allows, over all processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from tests.torture import plan
from tests.torture.history import Call
from tests.torture.verdict import FinalState, Verdict

Span = tuple[int, int]


def check_limits(calls: Sequence[Call], final: FinalState, verdict: Verdict) -> None:
    """Count what was surely held: from when its holder had the answer until the engine wrote down the end."""
    lanes: dict[tuple[str, str | None], list[Span]] = defaultdict(list)
    for key, span in _held(calls, final):
        lanes[final.jobs[key].tenant, final.jobs[key].limit_key].append(span)
    for lane, spans in lanes.items():
        if (most := most_at_once(spans)) > plan.LIMITS.max_running_per_key:
            verdict.violation("V16", f"{most} jobs of {lane} ran at once")
    most = most_at_once([span for spans in lanes.values() for span in spans])
    if most > plan.LIMITS.max_running:
        verdict.violation("V16", f"{most} jobs of {plan.LIMITED} ran at once")
    verdict.figures["maximum concurrent jobs of the limited type"] = most


def most_at_once(spans: Iterable[Span]) -> int:
    """How many of these overlap, at most; one that begins when another ends does not overlap it."""
    most = now = 0
    for _, change in sorted(moment for began, ended in spans for moment in ((began, 1), (ended, -1))):
        now += change
        most = max(most, now)
    return most


def _held(calls: Sequence[Call], final: FinalState) -> Iterable[tuple[int, Span]]:
    told = {(leased[0], leased[1]): call.answered_t for call in calls for leased in call.leased}
    # An attempt whose lease was restored did not hold it all the time, but the history no longer shows the expiry.
    reclaimed = {(key, attempt) for call in calls if call.name == "reclaim" for key, attempt, _ in call.items}
    for key, job in final.jobs.items():
        for event in final.events.get(key, ()) if job.type == plan.LIMITED else ():
            began = told.get((key, event.attempt))
            is_whole = (key, event.attempt) not in reclaimed
            if began is not None and event.activated_at_ms is not None and is_whole:
                yield key, (began, max(began, event.at_ms))
