"""What somebody who opens a job reads first: what went wrong with it, what holds it up, what comes next."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from everwork.core.instants import moment_ms
from everwork.core.job import Job
from everwork.core.queries import Explanation, Reason
from everwork.core.states import State
from everwork.exceptions import InvalidInput
from everwork.server.http.ui.timeline import Moment, beginning

TITLES: Final = {State.PENDING: "Why is it not running?", State.PROCESSING: "What is it doing?"}
WAITS_FOR_SOMEBODY: Final = frozenset({Reason.NOT_ASKED, Reason.PAUSED, Reason.BREAKER})
FAILING: Final = ("bad", "warn")
_INSTANT: Final = re.compile(r"(?<= )(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)(?=[ :;.,]|$)", re.ASCII)

Piece = str | int
"""Of a sentence: words, or an instant."""


class Failure(NamedTuple):
    """The last attempt that failed: what it said first, and all of it if that is more."""

    title: str
    at_ms: int | None
    lines: str
    whole: str | None


class Verdict(NamedTuple):
    """`tone` is its colour: bad (it has failed), warn (it waits for somebody to act), over, or none."""

    tone: str
    title: str
    at_ms: int | None
    said: Sequence[Piece]
    failure: Failure | None
    note: str | None = None


def verdict(job: Job, why: Explanation, moments: Sequence[Moment], now_ms: int) -> Verdict | None:
    """A job that is completed needs none."""
    if job.state is State.COMPLETED:
        return None
    tone, said = _tone(job, why, now_ms), _sentence(job, why.text)
    if job.state is State.CANCELLED:
        return Verdict(tone, *_end(job, moments), said, None, moments[0].error)
    title, at_ms = _end(job, moments) if job.state is State.FAILED else (TITLES[job.state], None)
    failed = (one for one in moments if one.error and one.mood in FAILING)
    failure = next(map(_failure, failed), None) if job.last_error is not None else None
    return Verdict(tone, title, at_ms, said, failure)


def _end(job: Job, moments: Sequence[Moment]) -> tuple[str, int | None]:
    """What the history says of it, if it goes back so far."""
    if moments[0].at_ms is None or moments[0].at_ms < (job.finished_at_ms or 0):
        return job.state.label.capitalize(), job.finished_at_ms
    return moments[0].title, moments[0].at_ms


def _tone(job: Job, why: Explanation, now_ms: int) -> str:
    if job.state is State.FAILED:
        return "bad"
    if job.state is State.CANCELLED:
        return "over"
    is_lapsed = why.reason is Reason.RUNNING and why.until_ms is not None and why.until_ms <= now_ms
    return "warn" if is_lapsed or why.reason in WAITS_FOR_SOMEBODY else ""


def _failure(moment: Moment) -> Failure:
    error = (moment.error or "").strip()
    lines = beginning(error)
    return Failure(moment.title, moment.at_ms, lines, error if error != lines else None)


def _sentence(job: Job, text: str) -> list[Piece]:
    """The explanation as a sentence, without what the page says anyway; instants apart, so that they are local."""
    known = f"it is {job.state.label} and "
    told = f"it {text.removeprefix(known)}" if text.startswith(known) else text
    return pieces(f"{told[:1].upper()}{told[1:]}.")


def pieces(text: str) -> list[Piece]:
    """A text with its instants apart, so that each viewer sees them in his own zone."""
    return [_instant(piece) if at % 2 else piece for at, piece in enumerate(_INSTANT.split(text))]


def _instant(text: str) -> Piece:
    try:
        return moment_ms("until", text)
    except InvalidInput:  # Somebody's name for a type looks like an instant.
        return text
