"""What becomes of the attempts of a process that dies before its manager's eyes: V5 and V11."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from tests.torture.history import Histories
from tests.torture.verdict import FinalState, Overseen, Verdict

RECOVERY_MS_MAX: Final = 1_000
Attempt = tuple[int, int]


def check_deaths(histories: Histories, final: FinalState, verdict: Verdict) -> None:
    """Its manager sees the death: what had begun has failed within a second, what had not is given back."""
    begun, held = _attempts(histories)
    ends = {(key, event.attempt): event for key, events in final.events.items() for event in events}
    slowest, seen = 0, 0
    for process, died_ms in {**histories.deaths, **final.deaths}.items():
        manager = final.managers.get(process.rpartition(".")[0])
        if manager is None:
            continue
        for attempt in held[process] | begun[process]:
            event = ends.get(attempt)
            if event is None or event.at_ms < died_ms or _was_struck(manager, died_ms, event.at_ms):
                continue
            seen += 1
            if event.kind == "release" and attempt in begun[process]:
                verdict.violation("V5", f"job {attempt[0]}: attempt {attempt[1]} had begun and is not counted")
            if not manager.is_near:
                continue
            late_ms = event.at_ms - died_ms - stopped_ms(final.stops, died_ms, event.at_ms)
            slowest = max(slowest, late_ms)
            if late_ms > RECOVERY_MS_MAX + final.slack_ms:
                text = f"job {attempt[0]}: attempt {attempt[1]} ended ({event.kind}) {late_ms} ms after its process"
                verdict.violation("V11", text)
    verdict.figures["kills of managed processes at fault points"] = len(histories.deaths)
    verdict.figures["attempts of processes that died while their manager was running"] = seen
    verdict.figures["slowest recovery after such a death, ms (excluding time while a process was stopped)"] = slowest


def stopped_ms(stops: Sequence[tuple[int, int]], begin_ms: int, end_ms: int) -> int:
    """How much of a stretch of time some process was stopped, perhaps inside a transaction."""
    marks = sorted((max(begin, begin_ms), min(end, end_ms)) for begin, end in stops)
    stopped_ms, at_ms = 0, begin_ms
    for begin, end in marks:
        if end > max(begin, at_ms):
            stopped_ms += end - max(begin, at_ms)
            at_ms = end
    return stopped_ms


def _attempts(histories: Histories) -> tuple[dict[str, set[Attempt]], dict[str, set[Attempt]]]:
    """Which attempts each process has begun, and which it was given."""
    begun: dict[str, set[Attempt]] = defaultdict(set)
    held: dict[str, set[Attempt]] = defaultdict(set)
    for process, key, attempt in histories.begins:
        begun[process].add((key, attempt))
    for call in histories.calls:
        held[call.process].update((key, attempt) for key, attempt, *_ in call.leased)
    return begun, held


def _was_struck(manager: Overseen, died_ms: int, ended_ms: int) -> bool:
    """Whether the manager had troubles of its own before it could have been done."""
    return any(died_ms - RECOVERY_MS_MAX <= at_ms <= ended_ms for at_ms in manager.struck_ms)
