"""A file of jobs, one JSON object a line: checked as a whole before its first job is created."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from everwork.cli.options import moment
from everwork.codec.json import decode_object
from everwork.codec.new_job import new_job
from everwork.core.job import NewJob
from everwork.core.limits import PAYLOAD_BYTES_MAX
from everwork.exceptions import InvalidInput

LINE_BYTES_MAX: Final = 4 * PAYLOAD_BYTES_MAX
"""Room for a full payload and headers, written with escapes and spaces."""
FIELDS: Final = (
    "type", "variables", "tenant", "priority", "delay", "run_at", "max_attempts", "dedupe_key", "limit_key",
    "correlation_id", "expires_at", "timeout", "headers",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CheckedJobs:
    """The jobs of a file whose lines have all been checked; read again from the file, not kept in memory."""

    lines: IO[bytes]
    total: int

    def __iter__(self) -> Iterator[NewJob]:
        self.lines.seek(0)
        return _jobs(self.lines)


@contextmanager
def checked(path: str) -> Iterator[CheckedJobs]:
    """Check every line; the first bad one is named."""
    try:
        source = sys.stdin.buffer if path == "-" else Path(path).open("rb")  # noqa: SIM115 - closed below
    except (OSError, ValueError) as error:
        raise InvalidInput("file", f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    with source, tempfile.TemporaryFile() as copy:
        # Read from a copy, so that what was checked is what is created; a pipe can be read only once, too.
        try:
            shutil.copyfileobj(source, copy)
        except OSError as error:
            raise InvalidInput("file", f"cannot read {path}: {error.strerror}") from None
        copy.seek(0)
        total = sum(1 for _ in _jobs(copy))
        if total == 0:
            raise InvalidInput("file", f"{path} holds no jobs; it must have one JSON object a line")
        yield CheckedJobs(copy, total)


def _jobs(lines: IO[bytes]) -> Iterator[NewJob]:
    number = 0
    while line := lines.readline(LINE_BYTES_MAX + 1):
        number += 1
        if line.isspace():
            continue
        try:
            yield _job(line)
        except InvalidInput as error:
            raise InvalidInput(f"line {number}: {error.field}", error.problem) from None


def _job(line: bytes) -> NewJob:
    said = decode_object("job", line, LINE_BYTES_MAX)
    unknown = said.keys() - set(FIELDS)
    if unknown:
        raise InvalidInput(min(unknown), f"is no field of a job; allowed are {', '.join(FIELDS)}")
    given: dict[str, Any] = {"variables": {}} | {name: value for name, value in said.items() if value is not None}
    for field in ("run_at", "expires_at"):
        if field in given:
            given[field] = moment(field, given[field])
    if "type" not in given:
        raise InvalidInput("type", "must be given")
    return new_job(**given)
