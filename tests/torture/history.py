"""What a process did, as it saw it: one append-only file of JSON lines per life of a process.

A line is written by one `os.write`, before and after each engine call, so that a kill loses nothing that happened
before it. The engine is never used for it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

from tests.torture.clocks import host_clock_ms
from tests.torture.logs import errors_in

__all__ = ["Call", "Histories", "HistoryWriter", "entries_of", "host_clock_ms", "read_histories"]

Entry = dict[str, Any]
HANDED: Final = "handed"
"""In place of the call that leased a job: a create did, for a worker that waited."""


class HistoryWriter:
    """Appends the lines of one process; each is in the file when the call returns."""

    def __init__(self, path: Path, clock: Callable[[], int] = host_clock_ms) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._clock = clock
        self._calls = count(1)  # Counts for all threads of the process.

    def invoked(self, call: str, items: Sequence[object]) -> int:
        """Write that a call is about to be made; the number answered names it."""
        call_id = next(self._calls)
        self._write("invoked", id=call_id, call=call, items=items)
        return call_id

    def answered(self, call_id: int, items: Sequence[object], leased: Sequence[object] = ()) -> None:
        """Write what the engine answered, item by item, and what it leased."""
        self._write("ok", id=call_id, items=items, leased=leased)

    def refused(self, call_id: int, error: BaseException) -> None:
        """Write that the call as a whole was refused: it has no effect."""
        self._write("refused", id=call_id, error=f"{type(error).__name__}: {error}")

    def unknown(self, call_id: int, error: BaseException) -> None:
        """Write that nobody can say whether the call had its effect."""
        self._write("unknown", id=call_id, error=f"{type(error).__name__}: {error}")

    def handed(self, leased: Sequence[object]) -> None:
        """Write that creates have leased these jobs to the process, before now."""
        self._write(HANDED, leased=leased)

    def begin(self, key: int, attempt: int) -> None:
        """Write that a handler begins an attempt."""
        self._write("begin", key=key, attempt=attempt)

    def end(self, key: int, attempt: int, how: str) -> None:
        """Write that a handler is through with an attempt."""
        self._write("end", key=key, attempt=attempt, how=how)

    def joins(self) -> None:
        """Write that the process knows what a signal means."""
        self._write("joins")

    def leaves(self, worker: str) -> None:
        """Record that a caller has disconnected; `worker` is the name that it sent to servers."""
        self._write("leaves", worker=worker)

    def foreign(self, where: str, tenant: str) -> None:
        """Record that data of another tenant was shown."""
        self._write("foreign", where=where, tenant=tenant)

    def dies(self) -> None:
        """Write that the process is about to kill itself."""
        self._write("dies")

    def broken(self, error: BaseException) -> None:
        """Write that the process ends by an error that nobody expected."""
        self._write("broken", error=f"{type(error).__name__}: {error}")

    def _write(self, kind: str, **fields: object) -> None:
        entry = {"e": kind, "m": time.monotonic_ns(), "t": self._clock(), **fields}
        os.write(self._descriptor, json.dumps(entry, separators=(",", ":")).encode() + b"\n")


@dataclass(slots=True)
class Call:
    """One engine call as its caller saw it: ok, refused or unknown. Instants `m` are monotonic nanoseconds."""

    process: str
    name: str
    items: list[Any]
    invoked_m: int
    invoked_t: int
    status: str = "unknown"
    answered_m: int | None = None
    answers: list[Any] = field(default_factory=list)
    leased: list[Any] = field(default_factory=list)
    error: str = ""
    answered_t: int | None = None

    @property
    def is_inner(self) -> bool:
        """Whether a server made the call for a client that has its own history."""
        return self.process.startswith("server-")

    @property
    def may_lack_attempts(self) -> bool:
        """Whether a Zeebe client made the call, or a server for one: without attempt numbers, none is outdated."""
        return self.is_inner or self.process.startswith("zeebe")


@dataclass(slots=True)
class Histories:
    """The histories of all processes: their calls, the attempts their handlers began, and what broke them."""

    calls: list[Call] = field(default_factory=list)
    begins: list[tuple[str, int, int]] = field(default_factory=list)
    through: list[tuple[str, int, int, str, int]] = field(default_factory=list)
    """The attempts whose handlers have finished: process, attempt, outcome and time."""
    broken: list[str] = field(default_factory=list)
    deaths: dict[str, int] = field(default_factory=dict)
    """When processes killed themselves at fault points."""
    left: dict[str, int] = field(default_factory=dict)
    """When callers disconnected, by the names that they sent to servers."""
    foreign: list[str] = field(default_factory=list)
    """What callers were shown that belongs to another tenant."""


def read_histories(folder: Path) -> Histories:
    """Every history file of a run."""
    histories = Histories()
    for path in sorted(folder.glob("*.jsonl")):
        gather(histories, path.stem, entries_of(path))
    histories.broken += errors_in(folder)
    return histories


def entries_of(path: Path) -> Iterator[Entry]:
    """The entries of one file; a last line that a kill cut short is left out."""
    with path.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield json.loads(line)


def gather(histories: Histories, process: str, entries: Iterable[Entry]) -> None:
    """Pair what was invoked with what was answered; a call without an answer stays unknown."""
    open_calls: dict[int, Call] = {}
    for entry in entries:
        match entry["e"]:
            case "invoked":
                call = Call(process, entry["call"], entry["items"], entry["m"], entry["t"])
                open_calls[entry["id"]] = call
                histories.calls.append(call)
            case "ok" | "refused" | "unknown" as status:
                call = open_calls.pop(entry["id"])
                call.status = status
                call.answered_m, call.answered_t = entry["m"], entry["t"]
                call.answers = entry.get("items", [])
                call.leased = entry.get("leased", [])
                call.error = entry.get("error", "")
            case "begin":
                histories.begins.append((process, entry["key"], entry["attempt"]))
            case "end":
                ended = (entry["key"], entry["attempt"], entry["how"], entry["t"])
                histories.through.append((process, *ended))
            case _:
                _gather_mark(histories, process, entry)


def _gather_mark(histories: Histories, process: str, entry: Entry) -> None:
    """What happened at one instant, other than calls and attempts."""
    match entry["e"]:
        case "joins":
            pass
        case "handed":
            # As if the process had asked long ago, which a worker that waits has done.
            arrived = Call(process, HANDED, [], 0, 0, "ok", entry["m"], [], entry["leased"], "", entry["t"])
            histories.calls.append(arrived)
        case "leaves":
            histories.left[entry["worker"]] = entry["t"]
        case "foreign":
            histories.foreign.append(f"{process} was shown bytes of {entry['tenant']} ({entry['where']})")
        case "dies":
            histories.deaths[process] = entry["t"]
        case "broken":
            histories.broken.append(f"{process}: {entry['error']}")
        case kind:
            raise ValueError(f"{process}: unknown entry {kind!r}")
