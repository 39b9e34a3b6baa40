"""Triggers: where they stand, and time points that pass once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everwork.engines.redis.connection import Link
from everwork.engines.redis.records import created, job_words
from everwork.engines.redis.wire import Word
from everwork.engines.triggers import Passage, fired
from everwork.engines.values import Fire, Fired, TriggerMark, TriggerMarks


async def trigger_marks(link: Link, triggers: Sequence[str]) -> TriggerMarks:
    """Where triggers stand; those that have not begun do so now, which is safe to say twice."""
    now, *told = await link.read("registry", "trigger_marks", *triggers)
    return TriggerMarks(int(now), [_mark(body.decode()) for body in told])


async def fire(link: Link, fires: Sequence[Fire]) -> list[Fired]:
    """Let time points pass that have not, and create their jobs."""
    if not fires:
        return []
    reply = await link.run("fire", _words(fires))
    judged = [_passage(told) for told in reply[: len(fires)]]
    jobs = [told for told in reply[len(fires) :] if told]
    return fired(fires, judged, created(jobs, len(jobs)))


def _words(fires: Sequence[Fire]) -> list[Word]:
    words: list[Word] = [len(fires)]
    for fire in fires:
        words += (fire.trigger, fire.point_ms)
    jobs = [(fire.job, number) for number, fire in enumerate(fires, 1) if fire.job is not None]
    if not jobs:
        return [*words, "0"]
    return [*words, "1", *job_words([job for job, _ in jobs], [number for _, number in jobs])]


def _passage(told: Any) -> Passage:
    passes, _, mark = told.decode().partition(" ")
    return Passage(passes == "1", _mark(mark))


def _mark(told: str) -> TriggerMark:
    """A mark as the scripts tell it; what is none they have replaced."""
    began, last = told.split()
    return TriggerMark(int(began), int(last))
