"""What became of a job, told so that a failed assertion explains itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from everwork.codec.json import decode, encode_object
from everwork.core.job import HistoryEntry, Job
from everwork.core.limits import PAYLOAD_BYTES_MAX

JOBS_SHOWN_MAX: Final = 20


class Story:
    """Tells of jobs, with times counted from the beginning of the rehearsal."""

    def __init__(self, start_ms: int) -> None:
        self._start_ms = start_ms

    def of(self, job: Job, history: Iterable[HistoryEntry], explained: str | None = None) -> str:
        """A job's state and how it came to it."""
        head = f"job {job.key} of type '{job.type}' is {job.state.label}"
        if explained:
            head += f" ({explained})"
        return "\n".join([head, *(f"  {self._line(entry)}" for entry in history)])

    def arguments_of(self, jobs: Sequence[Job]) -> str:
        """Which jobs there are."""
        lines = [f"  {job.key} {job.state.label}: {job.variables}" for job in jobs[:JOBS_SHOWN_MAX]]
        if len(jobs) > JOBS_SHOWN_MAX:
            lines.append(f"  and {len(jobs) - JOBS_SHOWN_MAX} more")
        return "\n".join(["there are:", *lines])

    def _line(self, entry: HistoryEntry) -> str:
        line = f"+{seconds(entry.at_ms - self._start_ms)} s: attempt {entry.attempt}: {entry.kind}"
        if entry.error:
            line += f": {entry.error}"
        if entry.retry_at_ms is not None:
            line += f"; again {seconds(entry.retry_at_ms - entry.at_ms)} s later"
        return line


def seconds(ms: int) -> str:
    """A span in seconds, as short as it can be said."""
    return f"{ms / 1000:.3f}".rstrip("0").rstrip(".")


def as_list(numbers: Iterable[float]) -> str:
    """Numbers for people."""
    return ", ".join(f"{number:g}" for number in numbers)


def retry_delays(history: Iterable[HistoryEntry]) -> list[float]:
    """After how many seconds each failed attempt is followed by another."""
    return [(one.retry_at_ms - one.at_ms) / 1000 for one in history if one.retry_at_ms is not None]


def as_stored(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments as a job has them: what JSON makes of dates, tuples and their like."""
    return decode(encode_object("arguments", arguments, PAYLOAD_BYTES_MAX))  # type: ignore[no-any-return]


def has_arguments(job: Job, wanted: Mapping[str, Any]) -> bool:
    """Whether a job has these arguments, among others."""
    there = decode(job.variables)
    return all(name in there and there[name] == value for name, value in wanted.items())
