"""What became of a job, one thing after the other, in words: from its creation to now, newest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice, takewhile
from typing import Final, NamedTuple

from everwork.core.job import HistoryEntry, Job
from everwork.core.limits import HISTORY_ENTRIES_MAX
from everwork.core.states import State


class Moment(NamedTuple):
    """One entry. `mood` is its colour; `error` is all that was said, its first line stands in the entry itself."""

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

    @property
    def error_line(self) -> str:
        """What the error is about."""
        return gist(self.error or "")

    @property
    def has_more(self) -> bool:
        """Whether the error says more than its line."""
        return (self.error or "").strip() != self.error_line.strip() or len(self.error_line) > ERROR_LINE_MAX


ERROR_LINE_MAX: Final = 240
BEGINNING_LINES: Final = 4
BEGINNING_CHARS: Final = 600
TRACEBACK: Final = "Traceback (most recent call last)"
_ENDS: Final = {
    "complete": ("good", "Attempt {n} completed"),
    "fail": ("bad", "Attempt {n} failed"),
    "retry": ("bad", "Attempt {n} asked to be repeated"),
    "reject": ("bad", "Attempt {n} rejected the job: it makes no sense to repeat it"),
    "throw": ("bad", "Attempt {n} threw an error"),
    "lapse": ("bad", "Attempt {n} was lost: its worker was not heard of in time"),
    "release": ("", "Attempt {n} was handed back; it does not count"),
    "expire": ("", "Expired: it had not started in time"),
    "requeue": ("", "Requeued"),
}
_CANCELLED: Final = ("Cancelled", "Cancelled while attempt {n} ran")


def timeline(job: Job, history: Sequence[HistoryEntry], now_ms: int, clean: Callable[[str], str]) -> list[Moment]:
    """Newest first: what is looked for is mostly what happened last."""
    past = [_ended(f"h{at}-{entry.at_ms}", entry, clean) for at, entry in enumerate(history)]
    if len(history) >= HISTORY_ENTRIES_MAX:
        note = f"Only the last {HISTORY_ENTRIES_MAX} entries are kept."
        past = [Moment("older", "", "Earlier attempts", None, note=note), *past]
    created = Moment("created", "", "Created", job.created_at_ms)
    return [*_now(job, now_ms), *reversed([created, *past])]


def gist(error: str) -> str:
    """The line of an error that says what it is about: of a traceback the last one, else the first."""
    lines = [line for line in error.splitlines() if line.strip()] or [""]
    return lines[-1] if lines[0].startswith(TRACEBACK) else lines[0]


def beginning(error: str) -> str:
    """The first lines of an error, up to its traceback: a validation's error says only there what is wrong."""
    lines = [line.rstrip() for line in error.splitlines() if line.strip()] or [""]
    if lines[0].startswith(TRACEBACK):
        return lines[-1][:BEGINNING_CHARS]
    said = takewhile(lambda line: not line.startswith(TRACEBACK), lines)
    return "\n".join(islice(said, BEGINNING_LINES))[:BEGINNING_CHARS]


def _now(job: Job, now_ms: int) -> list[Moment]:
    """What goes on, or comes next."""
    if job.state is State.PROCESSING:
        title = f"Attempt {job.attempt} runs"
        return [Moment("now", "busy", title, job.activated_at_ms, worker=job.worker)]
    if job.state is State.PENDING:
        is_due = job.run_at_ms <= now_ms
        return [Moment("now", "busy", "Waits, due since" if is_due else "Will run", job.run_at_ms)]
    return []


def _ended(name: str, entry: HistoryEntry, clean: Callable[[str], str]) -> Moment:
    mood, title = _ENDS.get(entry.kind, ("", entry.kind.capitalize()))
    if entry.kind == "cancel":
        mood, title = "", _CANCELLED[entry.activated_at_ms is not None]
    took_ms = None if entry.activated_at_ms is None else max(0, entry.at_ms - entry.activated_at_ms)
    return Moment(
        name,
        "warn" if entry.retry_at_ms is not None and mood == "bad" else mood,
        title.format(n=entry.attempt),
        entry.at_ms,
        entry.activated_at_ms,
        took_ms,
        entry.worker,
        None if entry.error is None else clean(entry.error),
        entry.retry_at_ms,
    )
