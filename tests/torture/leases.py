"""When leases are taken away: not before their end (V6), nor much later (V11)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tests.torture.deaths import RECOVERY_MS_MAX, Attempt, stopped_ms
from tests.torture.history import Call
from tests.torture.proxy import STALL_MS_MAX
from tests.torture.verdict import FinalState, Verdict, answered

DRAIN_MS_MAX: Final = 60_000


class Extension(NamedTuple):
    """A call that has extended a lease, or may have: its holder was not told."""

    call: Call
    lease_ms: int
    is_known: bool


def check_leases(calls: Sequence[Call], final: FinalState, verdict: Verdict) -> None:
    """Judge every lapse by what the holder of the lease was told, and by the calls that it has no answer to."""
    granted, extensions = _granted(calls), _extensions(calls)
    lapses = [(key, event) for key, events in final.events.items() for event in events if event.kind == "lapse"]
    slowest = doubtful = 0
    for key, event in lapses:
        attempt = (key, event.attempt)
        if attempt not in granted:
            continue  # The answer to the call that leased it was lost.
        told_ms = _told_end(granted[attempt], extensions[attempt])
        if event.at_ms < told_ms:
            text = f"job {key}: the lease of attempt {event.attempt} was taken {told_ms - event.at_ms} ms early"
            verdict.violation("V6", text)
        end_ms = _latest_end(granted[attempt], extensions[attempt], final)
        late_ms = event.at_ms - end_ms - stopped_ms(final.stops, end_ms, event.at_ms)
        slowest, doubtful = max(slowest, late_ms), doubtful + (end_ms > told_ms)
        if late_ms > RECOVERY_MS_MAX + final.slack_ms:
            verdict.violation("V11", f"job {key}: attempt {event.attempt} was recovered {late_ms} ms late")
    if final.drain_ms > DRAIN_MS_MAX:
        verdict.violation("V11", f"the drain took {final.drain_ms} ms")
    verdict.figures["expired leases"] = len(lapses)
    verdict.figures["expired leases that an unanswered call may have extended"] = doubtful
    verdict.figures["slowest recovery after a lease expired, ms (excluding time while a process was stopped)"] = slowest
    verdict.figures["longest delay in the controller, ms"] = final.slack_ms
    verdict.figures["time until all jobs had finished, ms"] = final.drain_ms


def _granted(calls: Iterable[Call]) -> dict[Attempt, int]:
    """Until when each lease was granted at first."""
    return {(key, attempt): until_ms for call in calls for key, attempt, _, _, until_ms in call.leased}


def _extensions(calls: Iterable[Call]) -> defaultdict[Attempt, list[Extension]]:
    """The calls that have extended each lease, or may have, in the order in which they were made."""
    extensions: defaultdict[Attempt, list[Extension]] = defaultdict(list)
    for call in sorted(calls, key=lambda call: call.invoked_t):
        for (key, attempt, lease_ms), answer in answered(call) if call.name in ("extend", "reclaim") else ():
            if answer in ("held", "unknown"):
                extensions[key, attempt].append(Extension(call, lease_ms, answer == "held"))
    return extensions


def _told_end(granted_ms: int, extensions: Iterable[Extension]) -> int:
    """The end of a lease as far as its holder was told: it is not taken away before."""
    return max([granted_ms, *(one.call.invoked_t + one.lease_ms for one in extensions if one.is_known)])


def _latest_end(granted_ms: int, extensions: Iterable[Extension], final: FinalState) -> int:
    """The latest end of a lease that the histories allow: each call took effect as late as it can have arrived.

    What the holder was not told of only counts if the lease was still there to be extended; a reclaim needs none.
    """
    end_ms = granted_ms
    for call, lease_ms, is_known in extensions:
        arrived_ms = (call.answered_t or call.invoked_t) if is_known else _latest_arrival(call, final.stops)
        if not is_known and call.name == "extend":
            gone_ms = _instant_after(final.stops, end_ms, RECOVERY_MS_MAX + final.slack_ms)
            if gone_ms < call.invoked_t:
                continue
            arrived_ms = min(arrived_ms, gone_ms)
        end_ms = max(end_ms, arrived_ms + lease_ms)
    return end_ms


def _latest_arrival(call: Call, stops: Iterable[tuple[int, int]]) -> int:
    """When a call without an answer can have arrived: until its caller gave it up, or as an outage ended.

    What a caller has sent before it died is under way no longer than the network stalls.
    """
    at_ms = call.answered_t or call.invoked_t + STALL_MS_MAX
    for begin_ms, end_ms in sorted(stops):
        if begin_ms <= at_ms and call.invoked_t <= end_ms:
            at_ms = max(at_ms, end_ms)
    return at_ms


def _instant_after(stops: Iterable[tuple[int, int]], begin_ms: int, running_ms: int) -> int:
    """When so much time has passed since an instant, time with a stopped process aside."""
    at_ms = begin_ms
    for stop_ms, end_ms in sorted(stops):
        if end_ms > at_ms and stop_ms < at_ms + running_ms:
            running_ms -= max(0, stop_ms - at_ms)
            at_ms = end_ms
    return at_ms + running_ms
