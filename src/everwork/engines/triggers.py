"""What every engine says alike of triggers: how a mark is written, which time points pass, and what is answered."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from everwork.core.job import NewJob
from everwork.core.leasing import Created
from everwork.engines.values import Fire, Fired, TriggerMark

_MARK: Final = re.compile("([0-9]{1,16}) ([0-9]{1,16})")


class Passage(NamedTuple):
    """Whether a time point passes now, and where its trigger stands afterwards."""

    passes: bool
    mark: TriggerMark


def mark_of(body: str) -> TriggerMark | None:
    """A mark as the registry holds it; None if it holds what is none: that trigger begins anew."""
    found = _MARK.fullmatch(body)
    return TriggerMark(int(found[1]), int(found[2])) if found else None


def marks_of(rows: Iterable[tuple[str, str]]) -> dict[str, TriggerMark]:
    """The marks of those triggers that have begun, of names and what the registry holds."""
    return {name: mark for name, body in rows if (mark := mark_of(body)) is not None}


def mark_text(mark: TriggerMark) -> str:
    """A mark as it is written."""
    return f"{mark.began_ms} {mark.last_ms}"


def before(point_ms: int) -> TriggerMark:
    """Where a trigger without mark stands before its first point: it begins with that one."""
    return TriggerMark(point_ms, point_ms - 1)


def passages(fires: Sequence[Fire], marks: Mapping[str, TriggerMark]) -> list[Passage]:
    """Judge time points one after the other; each that passes is the mark for those behind it."""
    stands = dict(marks)
    judged: list[Passage] = []
    for fire in fires:
        mark = stands.get(fire.trigger) or before(fire.point_ms)
        passes = fire.point_ms > mark.last_ms
        stands[fire.trigger] = mark = TriggerMark(mark.began_ms, fire.point_ms) if passes else mark
        judged.append(Passage(passes, mark))
    return judged


def marks_passed(fires: Sequence[Fire], judged: Sequence[Passage]) -> dict[str, str]:
    """The marks to write, by trigger."""
    pairs = zip(fires, judged, strict=True)
    return {fire.trigger: mark_text(passage.mark) for fire, passage in pairs if passage.passes}


def jobs_of(fires: Sequence[Fire], judged: Sequence[Passage]) -> list[NewJob]:
    """The jobs to create, in the order of their points."""
    pairs = zip(fires, judged, strict=True)
    return [fire.job for fire, passage in pairs if passage.passes and fire.job is not None]


def fired(fires: Sequence[Fire], judged: Sequence[Passage], created: Sequence[Created]) -> list[Fired]:
    """The answer for each point; `created` are those of `jobs_of`."""
    keys = iter(created)
    return [
        Fired(next(keys) if passage.passes and fire.job is not None else None, passage.mark)
        for fire, passage in zip(fires, judged, strict=True)
    ]
