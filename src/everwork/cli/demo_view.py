"""How the demo looks: a live view in a terminal, a line each second elsewhere."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Protocol, Self
from urllib.parse import quote, urlsplit

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from everwork.cli.demo import Entry, Journal
from everwork.cli.output import Column, one_line, state_text, table, write
from everwork.codec.urls import shown_url
from everwork.core.job import Job
from everwork.core.queries import Count
from everwork.core.states import State
from everwork.engines.sqlite.store_url import Place

STATES: Final = [state.label for state in State]
WINDOW_SECONDS: Final = 5.0
LINES_AROUND: Final = 21
"""What the view shows besides entries and dead letters."""


@dataclass(slots=True)
class Look:
    """The store at one moment."""

    seconds: float
    counts: Sequence[Count]
    dead: Sequence[Job]
    created: int
    is_stopping: bool = False

    def of_state(self, state: State) -> int:
        """How many jobs are in a state."""
        return sum(count.jobs for count in self.counts if count.state is state)


@dataclass(slots=True)
class Pace:
    """Completed jobs a second, over the last few seconds."""

    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, look: Look) -> float:
        """The pace with this look included."""
        self._seen.append((look.seconds, look.of_state(State.COMPLETED)))
        while len(self._seen) > 2 and look.seconds - self._seen[0][0] > WINDOW_SECONDS:
            self._seen.popleft()
        (since, before), (now, after) = self._seen[0], self._seen[-1]
        return (after - before) / (now - since) if now > since else 0.0


class View(Protocol):
    """Something that shows the demo while it runs."""

    period: float

    def greet(self, lines: Sequence[str], facts: Mapping[str, Any]) -> None:
        """Say where the server is, to people or to programs."""

    def __enter__(self) -> Self:
        """Begin to show."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the terminal as it was."""

    def update(self, look: Look) -> None:
        """Show what is new."""


class Lines:
    """A line each second."""

    period = 1.0

    def __init__(self) -> None:
        self._pace = Pace()

    def greet(self, lines: Sequence[str], facts: Mapping[str, Any]) -> None:  # noqa: ARG002 - lines are for people
        """Print it before everything else."""
        write("".join(f"{line}\n" for line in lines))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def update(self, look: Look) -> None:
        """Print one line."""
        states = ", ".join(f"{look.of_state(state)} {state.label}" for state in State)
        write(f"{clock(look.seconds)} {states}; {self._pace.add(look):.1f} completed/s\n")


class JsonLines(Lines):
    """A JSON object each second; the first is about the server."""

    def greet(self, lines: Sequence[str], facts: Mapping[str, Any]) -> None:  # noqa: ARG002 - facts are for programs
        """Print it as the first object."""
        write(json.dumps(facts) + "\n")

    def update(self, look: Look) -> None:
        """Print one object on one line."""
        states = {state.label: look.of_state(state) for state in State}
        rate = round(self._pace.add(look), 1)
        write(json.dumps({"seconds": round(look.seconds, 1), "by_state": states, "completed_per_s": rate}) + "\n")


class Screen:
    """A live view of the whole terminal."""

    period = 0.5

    def __init__(self, url: str, types: Sequence[str], journal: Journal) -> None:
        self._url = url
        self._types = types
        self._journal = journal
        self._pace = Pace()
        self._greeting: list[str] = []
        self._console = Console(highlight=False, emoji=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False)

    def greet(self, lines: Sequence[str], facts: Mapping[str, Any]) -> None:  # noqa: ARG002 - lines are for people
        """Keep it for the foot of the view."""
        self._greeting = list(lines[1:])

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, look: Look) -> None:
        """Draw the view."""
        self._live.update(self._drawn(look), refresh=True)

    def _drawn(self, look: Look) -> RenderableType:
        free = max(self._console.height - LINES_AROUND, 4)
        dead_lines = max(free // 3, 2)
        how = "stopping: what runs is finished" if look.is_stopping else "Ctrl-C stops"
        return Group(
            Text.assemble(
                ("Everwork demo", "bold"),
                f"  {clock(look.seconds)}  {look.created:,} created, ",
                (f"{self._pace.add(look):.1f}", "bold green"),
                " completed/s  ",
                (how, "dim"),
            ),
            "",
            self._counts(look),
            "",
            Text("RECENT", style="bold"),
            *_recent(list(self._journal.entries), free - dead_lines),
            "",
            Text.assemble(("DEAD LETTERS", "bold"), f" {look.of_state(State.FAILED):,}"),
            *_dead(look.dead, dead_lines),
            "",
            *self._advice(look),
        )

    def _counts(self, look: Look) -> RenderableType:
        by_type = Counter[tuple[str, State]]()
        for count in look.counts:
            by_type[count.type, count.state] += count.jobs
        rows: list[list[str | Text]] = [
            [type, *(_figure(state, by_type[type, state]) for state in State)] for type in self._types
        ]
        rows.append(["all", *(_figure(state, look.of_state(state)) for state in State)])
        return table([Column("TYPE"), *(Column(state.upper(), whole=True, right=True) for state in STATES)], rows)

    def _advice(self, look: Look) -> list[Text]:
        key = look.dead[0].key if look.dead else "KEY"
        return [
            *(Text(line, no_wrap=True, overflow="ellipsis") for line in self._greeting),
            Text("In another terminal:", style="dim"),
            Text(f"  export EVERWORK_ENGINE={shlex.quote(absolute(self._url))}", overflow="fold"),
            Text(f"  everwork jobs get {key}; everwork jobs requeue {key}; everwork stats", no_wrap=True),
        ]


def view_for(url: str, types: Sequence[str], journal: Journal, *, as_json: bool) -> View:
    """The live view in a terminal that can show it, plain lines elsewhere."""
    if as_json:
        return JsonLines()
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return Screen(url, types, journal)
    return Lines()


def absolute(url: str) -> str:
    """The same engine, as another directory has to name it."""
    place = Place.from_url(url) if urlsplit(url).scheme == "sqlite" else None
    return shown_url(url) if place is None or place.in_memory else f"sqlite:///{quote(place.path)}"


def clock(seconds: float) -> str:
    """A running time as 01:02 or 1:01:02."""
    hours, rest = divmod(int(seconds), 3600)
    return (f"{hours}:" if hours else "") + f"{rest // 60:02}:{rest % 60:02}"


def _figure(state: State, jobs: int) -> Text:
    return state_text(state.label, f"{jobs:,}") if jobs else Text("-", style="dim")


def _recent(entries: Sequence[Entry], lines: int) -> list[Text]:
    """Failures are what one wants to read, so what went well does not push them out."""
    bad = _last([at for at, entry in enumerate(entries) if not entry.is_good], lines - lines // 3)
    good = _last([at for at, entry in enumerate(entries) if entry.is_good], lines - len(bad))
    shown = [_entry_line(entries[at]) for at in sorted(bad + good)]
    return shown + [Text("")] * (lines - len(shown))


def _last(places: list[int], number: int) -> list[int]:
    return places[max(len(places) - number, 0) :]


def _entry_line(entry: Entry) -> Text:
    key = "" if entry.key is None else str(entry.key)
    text = Text.assemble((entry.at, "dim"), f"  {key:>6}  {entry.type:<14}  ", no_wrap=True, overflow="ellipsis")
    return text.append(one_line(entry.text), style="green" if entry.is_good else "yellow")


def _dead(jobs: Sequence[Job], lines: int) -> list[Text]:
    shown = [
        Text.assemble(
            f"  {job.key:>6}  {job.type:<14}  ",
            (one_line(job.last_error or ""), "red"),
            no_wrap=True,
            overflow="ellipsis",
        )
        for job in jobs[:lines]
    ]
    return shown + [Text("")] * (lines - len(shown))
