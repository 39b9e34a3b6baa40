"""Attempts that ran without an effect (V15, unless a fault explains it), or were leased to a dead caller (V11)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from everwork.aio.clocks import JUMP_MS
from everwork.core.job import HistoryEntry
from tests.torture.deaths import RECOVERY_MS_MAX, stopped_ms
from tests.torture.history import Histories
from tests.torture.verdict import FinalState, Verdict

_ENDED_BY_OTHERS: Final = frozenset({"lapse", "fail", "release"})
_IN_VAIN: Final = frozenset({"complete", "events"})
"""The outcomes of handlers whose jobs must run again if the attempt does not count."""
_MARGIN_MS: Final = 2_000
"""How long before the attempt that it affects a fault may begin; its effects also last longer than the fault."""


def check_duplicates(histories: Histories, final: FinalState, verdict: Verdict) -> None:
    """A job whose handler has finished runs again only after a kill, a stop, a lost connection or an expired lease."""
    _check_dead_callers({**histories.left, **final.ended}, final, verdict)
    if not final.struck:
        return
    ends = {(key, event.attempt): event for key, events in final.events.items() for event in events}
    asked, reported = _asked(histories), _first_reports(histories)
    explained = 0
    for process, key, attempt, how, ended_ms in histories.through:
        event = ends.get((key, attempt))
        if how not in _IN_VAIN or event is None or event.kind not in _ENDED_BY_OTHERS:
            continue
        if (key, attempt, event.kind) in asked:
            continue  # Its own worker reported this: it was planned.
        if _is_explained(process, event, reported.get((key, attempt), ended_ms), final) or (
            (key, attempt) not in reported and _died_soon(process, event, final)
        ):
            explained += 1
        else:
            text = f"job {key}: attempt {attempt} had finished, but ended as {event.kind}, without a fault of {process}"
            verdict.violation("V15", text)
    verdict.figures["finished attempts that did not count, each explained by a fault or an expired lease"] = explained


def _asked(histories: Histories) -> set[tuple[int, int, str]]:
    return {
        (item["k"], item["a"], item["o"])
        for call in histories.calls
        if call.name == "settle" and not call.is_inner
        for item in call.items
    }


def _first_reports(histories: Histories) -> dict[tuple[int, int], float]:
    """When each attempt's outcome was first confirmed; until then, the report may have been in transit."""
    first: dict[tuple[int, int], float] = {}
    for call in histories.calls:
        answered_t = call.answered_t if call.status == "ok" else None
        for item in call.items if call.name == "settle" else ():
            attempt = (item["k"], item["a"])
            first[attempt] = min(answered_t or math.inf, first.get(attempt, math.inf))
    return first


def _is_explained(process: str, event: HistoryEntry, reported_ms: float, final: FinalState) -> bool:
    """Whether there was a fault around that time, or the lease had expired when the outcome was reported."""
    begin_ms = (event.activated_at_ms or event.at_ms) - _MARGIN_MS
    if event.kind == "lapse" and reported_ms >= event.at_ms:
        return True
    return any(begin <= event.at_ms and end + _MARGIN_MS >= begin_ms for _, begin, end in _faults(process, final))


def _died_soon(process: str, event: HistoryEntry, final: FinalState) -> bool:
    """Whether a fault hit the process soon after, before it had reported the outcome: it may just have been slow."""
    own = _life_of(process)
    return any(name == own and 0 <= begin - event.at_ms <= _MARGIN_MS for name, begin, _ in final.struck)


def _faults(process: str, final: FinalState) -> Iterable[tuple[str, int, int]]:
    """The faults of the process itself, and of everything that all processes need: servers, store, network."""
    name, own = process.partition(".")[0], _life_of(process)
    return (one for one in final.struck if one[0] == own or one[0].startswith(("server-", "store", "network", name)))


def _life_of(process: str) -> str:
    """The name under which faults of this process are recorded: `rest-a.10` for `rest-a.0010`."""
    name, _, life = process.partition(".")
    return f"{name}.{int(life.partition('-')[0])}" if life[:4].isdigit() else name


def _check_dead_callers(left: Mapping[str, int], final: FinalState, verdict: Verdict) -> None:
    """V11: a job leased for a caller that died long before was never delivered, and must be released immediately."""
    for key, events in final.events.items():
        for event in events:
            died_ms = left.get(event.worker or "")
            if event.kind != "lapse" or died_ms is None or event.activated_at_ms is None:
                continue
            leased_ms = _before_jumps(event.activated_at_ms, event.at_ms, final)
            late_ms = leased_ms - died_ms - stopped_ms(final.stops, died_ms, leased_ms)
            if late_ms > RECOVERY_MS_MAX + final.slack_ms:
                text = f"job {key}: attempt {event.attempt} was leased {late_ms} ms after its caller had died"
                verdict.violation("V11", text)


def _before_jumps(leased_ms: int, lapsed_ms: int, final: FinalState) -> int:
    """When an attempt was leased: after a jump of the clock, a store in a file also moves the starts of leases."""
    for at_ms, by_ms in reversed(final.jumps):
        if by_ms >= JUMP_MS and leased_ms - by_ms <= at_ms <= lapsed_ms:
            leased_ms -= by_ms
    return leased_ms
