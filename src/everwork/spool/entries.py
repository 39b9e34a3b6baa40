"""The entries of a spool as JSON: new jobs and outcomes, and their age."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from everwork.aio.clocks import boot_clock_ms, boot_id, host_clock_ms
from everwork.core.job import NewJob
from everwork.core.leasing import Stamp
from everwork.core.outcome import Complete, Outcome, kind_of, outcome_of

_NEW_JOB: Final[Mapping[str, Any]] = NewJob("")._asdict()
_FOREIGN: Final = "was written by another version of Everwork"


def job_text(job: NewJob) -> str:
    """A job as JSON; fields with default values are left out."""
    return orjson.dumps(_job_fields(job)).decode()


def job_from(text: str) -> NewJob:
    """Parse a job from JSON; raises `ValueError` if this version cannot read it."""
    return _read_job(_object(text))


def outcome_text(outcome: Outcome) -> str:
    """An outcome as JSON."""
    fields = outcome._asdict()
    if isinstance(outcome, Complete):
        fields["events"] = [_job_fields(event) for event in outcome.events]
    elif fields.get("traceback", "") is None:
        del fields["traceback"]  # Omitted if unset, so that versions without this field can read the outcome.
    return orjson.dumps({"kind": kind_of(outcome), **fields}).decode()


def outcome_from(text: str) -> Outcome:
    """Parse an outcome from JSON; raises `ValueError` if this version cannot read it."""
    fields = _object(text)
    kind = outcome_of(fields.pop("kind", None))
    if kind is None:
        raise ValueError(f"{_FOREIGN}: an outcome of an unknown kind")
    try:
        if "events" in fields:
            fields["events"] = tuple(_read_job(event) for event in fields["events"])
        if fields.get("classes") is not None:
            fields["classes"] = tuple(fields["classes"])
        return kind(**fields)
    except TypeError:
        raise ValueError(f"{_FOREIGN}: {_difference(fields, kind._fields)}") from None


def _object(text: str) -> dict[str, Any]:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise ValueError("is damaged: not JSON") from None
    if not isinstance(found, dict):
        raise ValueError("is damaged: not a JSON object")
    return found


def _read_job(fields: dict[str, Any]) -> NewJob:
    try:
        return NewJob(**fields)
    except TypeError:
        raise ValueError(f"{_FOREIGN}: {_difference(fields, NewJob._fields)}") from None


def _difference(fields: object, known: Sequence[str]) -> str:
    unknown = [name for name in fields if name not in known] if isinstance(fields, dict) else []
    return f"unknown field {', '.join(map(repr, unknown))}" if unknown else "a field is missing or has a wrong value"


def _job_fields(job: NewJob) -> dict[str, Any]:
    return {name: value for name, value in job._asdict().items() if name == "type" or value != _NEW_JOB[name]}


class Moment(NamedTuple):
    """A point in time on this host, measured by two clocks."""

    boot: str
    boot_ms: int
    wall_ms: int

    @classmethod
    def now(cls) -> Moment:
        """The current moment."""
        return cls(boot_id(), boot_clock_ms(), host_clock_ms())

    def elapsed_ms(self, now: Moment) -> int:
        """Milliseconds since this moment: by the monotonic clock or, after a reboot, by the wall clock."""
        if self.boot and self.boot == now.boot:
            return max(0, now.boot_ms - self.boot_ms)
        return max(0, now.wall_ms - self.wall_ms)


class SpooledJob(NamedTuple):
    """A job in a spool."""

    id: int
    job: NewJob
    since: Moment

    def due(self, now: Moment) -> NewJob:
        """The job as it must be created now: the time spent in the spool counts toward its delay."""
        if not self.job.delay_ms:
            return self.job
        return self.job._replace(delay_ms=max(0, self.job.delay_ms - self.since.elapsed_ms(now)))


class SpooledBatch(NamedTuple):
    """Jobs that are delivered together, under one stamp."""

    stamp: Stamp
    jobs: list[SpooledJob]


def due_outcome(outcome: Outcome, since: Moment, now: Moment) -> Outcome:
    """An outcome as it must be reported now: the time spent in the spool counts toward its events' delays."""
    if not isinstance(outcome, Complete) or not outcome.events:
        return outcome
    return outcome._replace(events=tuple(SpooledJob(0, event, since).due(now) for event in outcome.events))
