"""The timeline of a job, newest first, and the summary of its state."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import islice, takewhile
from typing import Final, NamedTuple

from everwork.core.instants import moment_ms
from everwork.core.job import HistoryEntry, StoredJob, attempt_numbers
from everwork.core.limits import HISTORY_ENTRIES_MAX
from everwork.core.queries import Explanation, Reason
from everwork.core.states import State
from everwork.exceptions import InvalidInput


class TimelineEntry(NamedTuple):
    """One entry of the timeline. `mood` is its color; `error` is the whole error, of which one line is shown."""

    name: str
    mood: str
    title: str
    at_ms: int | None
    began_ms: int | None = None
    took_ms: int | None = None
    worker: str | None = None
    error: str | None = None
    retry_at_ms: int | None = None
    note: str | None = None
    traceback: str | None = None

    @property
    def error_line(self) -> str:
        """The line of the error that is shown."""
        return gist(self.error or "")

    @property
    def has_more(self) -> bool:
        """Whether the error is longer than its line."""
        return (self.error or "").strip() != self.error_line.strip() or len(self.error_line) > ERROR_LINE_MAX


ERROR_LINE_MAX: Final = 240
BEGINNING_LINES: Final = 4
BEGINNING_CHARS: Final = 600
TRACEBACK: Final = "Traceback (most recent call last)"
TRACEBACKS_MAX: Final = 20
"""How many entries are shown with their tracebacks: the newest ones."""
_ENDS: Final = {
    "complete": ("good", "Attempt {n} completed"),
    "fail": ("bad", "Attempt {n} failed"),
    "retry": ("bad", "Attempt {n} requested a retry"),
    "reject": ("bad", "Attempt {n} rejected the job; it will not be retried"),
    "throw": ("bad", "Attempt {n} threw an error"),
    "lapse": ("bad", "Attempt {n} failed: lease expired"),
    "release": ("", "Attempt {n} was released; it does not count"),
    "expire": ("", "Expired before it started"),
    "requeue": ("", "Requeued"),
}
_CANCELLED: Final = ("Cancelled", "Cancelled during attempt {n}")


def timeline(
    job: StoredJob, history: Sequence[HistoryEntry], now_ms: int, clean: Callable[[str], str]
) -> list[TimelineEntry]:
    """The entries of a job, newest first; `clean` redacts errors."""
    numbers = attempt_numbers(job, history)
    first = len(history) - TRACEBACKS_MAX
    past = [
        _ended(f"h{at}-{entry.at_ms}", entry if at >= first else entry._replace(traceback=None), numbers[at], clean)
        for at, entry in enumerate(history)
    ]
    if len(history) >= HISTORY_ENTRIES_MAX:
        note = f"Only the last {HISTORY_ENTRIES_MAX} entries are kept."
        past = [TimelineEntry("older", "", "Earlier attempts", None, note=note), *past]
    created = TimelineEntry("created", "", "Created", job.created_at_ms)
    return [*_now(job, now_ms), *reversed([created, *past])]


def gist(error: str) -> str:
    """The line that describes an error: the last line of a traceback, otherwise the first line."""
    lines = [line for line in error.splitlines() if line.strip()] or [""]
    return lines[-1] if lines[0].startswith(TRACEBACK) else lines[0]


def beginning(error: str) -> str:
    """The first lines of an error, up to its traceback; validation errors have their details there."""
    lines = [line.rstrip() for line in error.splitlines() if line.strip()] or [""]
    if lines[0].startswith(TRACEBACK):
        return lines[-1][:BEGINNING_CHARS]
    before = takewhile(lambda line: not line.startswith(TRACEBACK), lines)
    return "\n".join(islice(before, BEGINNING_LINES))[:BEGINNING_CHARS]


def _now(job: StoredJob, now_ms: int) -> list[TimelineEntry]:
    """The entry for what is happening now or next."""
    if job.state is State.PROCESSING:
        title = f"Attempt {job.attempts} of {job.max_attempts} is running"
        return [TimelineEntry("now", "busy", title, job.activated_at_ms, worker=job.worker)]
    if job.state is State.PENDING:
        is_due = job.run_at_ms <= now_ms
        return [TimelineEntry("now", "busy", "Waiting, due since" if is_due else "Scheduled for", job.run_at_ms)]
    return []


def _ended(name: str, entry: HistoryEntry, number: int, clean: Callable[[str], str]) -> TimelineEntry:
    mood, title = _ENDS.get(entry.kind, ("", entry.kind.capitalize()))
    if entry.kind == "cancel":
        mood, title = "", _CANCELLED[entry.activated_at_ms is not None]
    took_ms = None if entry.activated_at_ms is None else max(0, entry.at_ms - entry.activated_at_ms)
    return TimelineEntry(
        name,
        "warn" if entry.retry_at_ms is not None and mood == "bad" else mood,
        title.format(n=number),
        entry.at_ms,
        entry.activated_at_ms,
        took_ms,
        entry.worker,
        None if entry.error is None else clean(entry.error),
        entry.retry_at_ms,
        traceback=None if entry.traceback is None else clean(entry.traceback),
    )


TITLES: Final = {State.PENDING: "Why this job is not running", State.PROCESSING: "Running now"}
NEEDS_ACTION: Final = frozenset({Reason.NOT_ASKED, Reason.PAUSED, Reason.BREAKER})
FAILING: Final = ("bad", "warn")
_INSTANT: Final = re.compile(r"(?<= )(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)(?=[ :;.,]|$)", re.ASCII)

Piece = str | int
"""A piece of a sentence: text, or an instant."""


class Failure(NamedTuple):
    """The last failed attempt: the first lines of its error, the whole error if that is longer, its traceback."""

    title: str
    at_ms: int | None
    lines: str
    whole: str | None
    traceback: str | None


class Summary(NamedTuple):
    """The state of a job in a sentence. `tone` is its color: bad (failed), warn (needs action), over, or none."""

    tone: str
    title: str
    at_ms: int | None
    pieces: Sequence[Piece]
    failure: Failure | None
    note: str | None = None


def summary(job: StoredJob, why: Explanation, entries: Sequence[TimelineEntry], now_ms: int) -> Summary | None:
    """Summarize a job; None if it is completed."""
    if job.state is State.COMPLETED:
        return None
    tone, sentence = _tone(job, why, now_ms), _sentence(job, why.text)
    if job.state is State.CANCELLED:
        return Summary(tone, *_end(job, entries), sentence, None, entries[0].error)
    title, at_ms = _end(job, entries) if job.state is State.FAILED else (TITLES[job.state], None)
    failed = next((one for one in entries if one.mood in FAILING), None) if job.last_error is not None else None
    failure = _failure(failed) if failed is not None and (failed.error or failed.traceback) else None
    return Summary(tone, title, at_ms, sentence, failure)


def _end(job: StoredJob, entries: Sequence[TimelineEntry]) -> tuple[str, int | None]:
    """Title and time of the job's end, from the history if possible."""
    if entries[0].at_ms is None or entries[0].at_ms < (job.finished_at_ms or 0):
        return job.state.label.capitalize(), job.finished_at_ms
    return entries[0].title, entries[0].at_ms


def _tone(job: StoredJob, why: Explanation, now_ms: int) -> str:
    if job.state is State.FAILED:
        return "bad"
    if job.state is State.CANCELLED:
        return "over"
    is_expired = why.reason is Reason.RUNNING and why.until_ms is not None and why.until_ms <= now_ms
    return "warn" if is_expired or why.reason in NEEDS_ACTION else ""


def _failure(entry: TimelineEntry) -> Failure:
    error = (entry.error or "").strip()
    lines = beginning(error)
    return Failure(entry.title, entry.at_ms, lines, error if error != lines else None, entry.traceback)


def _sentence(job: StoredJob, text: str) -> list[Piece]:
    """The explanation as a sentence, without the state, which the page already shows."""
    known = f"{job.state.label} and "
    sentence = f"it {text.removeprefix(known)}" if text.startswith(known) else text
    return pieces(f"{sentence[:1].upper()}{sentence[1:]}.")


def pieces(text: str) -> list[Piece]:
    """Split a text at its instants, so that viewers see them in their local time zone."""
    return [_instant(piece) if at % 2 else piece for at, piece in enumerate(_INSTANT.split(text))]


def _instant(text: str) -> Piece:
    try:
        return moment_ms("until", text)
    except InvalidInput:  # The name of a type can look like an instant.
        return text
