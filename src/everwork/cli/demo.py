"""The demo: sample workers, steady traffic, and a view of both. Which calls fail is determined by counting, never at
random.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self
from urllib.parse import quote, urlsplit

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from everwork import Call, Everwork, JobCall, Middleware, RetryPolicy
from everwork.cli.output import Column, command_name, one_line, state_text, table, write
from everwork.codec.urls import engine_url, shown_url
from everwork.core.job import StoredJob
from everwork.core.queries import Count
from everwork.core.states import State
from everwork.engines.sqlite.store_url import StoreUrl
from everwork.exceptions import Fail
from everwork.runtime.middleware import Proceed
from everwork.testing.injection import FailEveryNth

TICK_SECONDS: Final = 0.25
JOURNAL_LINES: Final = 100
QUICK_RETRY: Final = RetryPolicy(max_attempts=3, base=1.0, factor=2.0)
"""Shorter delays than for real jobs, so that users can watch retries. Applies to errors that match no error rule."""


class Entry(NamedTuple):
    """An entry of the journal."""

    at: str
    key: int | None
    type: str
    text: str
    is_good: bool


class Journal:
    """Recent events, newest last."""

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque(maxlen=JOURNAL_LINES)

    def add(self, key: int | None, type: str, text: str, *, is_good: bool = False) -> None:
        """Add an entry."""
        self.entries.append(Entry(datetime.now().astimezone().strftime("%H:%M:%S"), key, type, text, is_good))

    # File interface for log lines, which would break a live view on the terminal.

    def write(self, text: str) -> int:
        """Add a log line."""
        if text.strip():
            self.add(None, "log", text)
        return len(text)

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""


class JournalMiddleware(Middleware):
    """Adds the result of each attempt to the journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def __call__(self, call: Call, proceed: Proceed) -> Any:
        """Make the call and add its result."""
        started_at = time.monotonic()
        try:
            result = await proceed(call)
        except Exception as error:
            self._journal.add(call.key, call.type, f"attempt {call.attempts} of {call.max_attempts} failed: {error}")
            raise
        took = (time.monotonic() - started_at) * 1000
        self._journal.add(call.key, call.type, f"completed in {took:.0f} ms", is_good=True)
        return result


def demo_app(url: str, journal: Journal) -> Everwork:
    """An application whose workers mostly succeed."""
    app = Everwork(url, middleware=[JournalMiddleware(journal)])
    silent_mail_server = FailEveryNth(5, OSError("the mail server did not answer"))
    declined_card = FailEveryNth(6, Fail("the card was declined"))
    late_figures = FailEveryNth(3, LookupError("the figures were not ready"))

    @app.job("email-send", retry=QUICK_RETRY, concurrency=10, timeout=10, middleware=[silent_mail_server])
    async def send_email(number: int, to: str) -> dict[str, Any]:
        await asyncio.sleep(0.02 * (1 + number % 5))
        return {"sent_to": to}

    @app.job("payment-charge", retry=QUICK_RETRY, concurrency=4, timeout=10, middleware=[declined_card])
    async def charge_payment(number: int, cents: int) -> dict[str, Any]:
        await asyncio.sleep(0.05)
        return {"charge": number, "charged_cents": cents}

    @app.job("report-build", retry=QUICK_RETRY, concurrency=2, timeout=10, middleware=[late_figures])
    def build_report(number: int) -> dict[str, Any]:
        time.sleep(0.3)
        return {"pages": 10 + number % 30}

    @app.job("reminder-send", retry=QUICK_RETRY, timeout=10)
    async def send_reminder(number: int) -> dict[str, Any]:
        await asyncio.sleep(0.01)
        return {"reminded_of": number}

    return app


class Traffic:
    """Creates jobs at a steady pace."""

    def __init__(self, app: Everwork) -> None:
        self._app = app
        self.created = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Create jobs until stopped."""
        tick = 0
        while not stop.is_set():
            tick += 1
            jobs = list(_jobs(self._app, tick))
            await self._app.enqueue_many(jobs)
            self.created += len(jobs)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), TICK_SECONDS)


def _jobs(app: Everwork, tick: int) -> Iterator[JobCall[Any]]:
    for number in (2 * tick - 1, 2 * tick):
        yield app.call("email-send", number=number, to=f"user{number}@example.org")
    yield app.call("payment-charge", number=tick, cents=100 * (tick % 50) + 99)
    if tick % 2 == 0:
        yield app.call("report-build", number=tick // 2)
    if tick % 4 == 0:
        # The reminder is due a few seconds later.
        yield app.using(delay=3 + tick // 4 % 5).call("reminder-send", number=tick // 4)


STATES: Final = [state.label for state in State]
WINDOW_SECONDS: Final = 5.0
OTHER_LINES: Final = 23
"""How many lines the view needs in addition to entries and dead letters."""


@dataclass(slots=True)
class Snapshot:
    """The store at one moment."""

    seconds: float
    counts: Sequence[Count]
    dead: Sequence[StoredJob]
    created: int
    is_stopping: bool = False

    def of_state(self, state: State) -> int:
        """How many jobs are in a state."""
        return sum(count.jobs for count in self.counts if count.state is state)


@dataclass(slots=True)
class Throughput:
    """Completed jobs per second, over the last few seconds."""

    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, snapshot: Snapshot) -> float:
        """Add a snapshot, and return the throughput including it."""
        self._seen.append((snapshot.seconds, snapshot.of_state(State.COMPLETED)))
        while len(self._seen) > 2 and snapshot.seconds - self._seen[0][0] > WINDOW_SECONDS:
            self._seen.popleft()
        (since, before), (now, after) = self._seen[0], self._seen[-1]
        return (after - before) / (now - since) if now > since else 0.0


class View(Protocol):
    """Shows the demo while it runs."""

    period: float

    def greet(self, lines: Sequence[str], facts: Mapping[str, Any]) -> None:
        """Show where the server listens: `lines` for people, `facts` for programs."""

    def __enter__(self) -> Self:
        """Start the view."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the terminal."""

    def update(self, snapshot: Snapshot) -> None:
        """Show a new snapshot."""


class Lines:
    """Prints a line each second."""

    period = 1.0

    def __init__(self) -> None:
        self._throughput = Throughput()

    def greet(self, lines: Sequence[str], facts: Mapping[str, Any]) -> None:  # noqa: ARG002 - lines are for people
        """Print the lines."""
        write("".join(f"{line}\n" for line in (*lines, "")))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def update(self, snapshot: Snapshot) -> None:
        """Print one line."""
        states = ", ".join(f"{snapshot.of_state(state)} {state.label}" for state in State)
        write(f"{duration_text(snapshot.seconds)} {states}; {self._throughput.add(snapshot):.1f} completed/s\n")


class JsonLines(Lines):
    """Prints a JSON object each second; the first is about the server."""

    def greet(self, lines: Sequence[str], facts: Mapping[str, Any]) -> None:  # noqa: ARG002 - facts are for programs
        """Print the facts as the first object."""
        write(json.dumps(facts) + "\n")

    def update(self, snapshot: Snapshot) -> None:
        """Print one object on one line."""
        states = {state.label: snapshot.of_state(state) for state in State}
        rate = round(self._throughput.add(snapshot), 1)
        write(json.dumps({"seconds": round(snapshot.seconds, 1), "by_state": states, "completed_per_s": rate}) + "\n")


class Screen:
    """A live full-screen view."""

    period = 0.5

    def __init__(self, url: str, types: Sequence[str], journal: Journal) -> None:
        self._url = url
        self._types = types
        self._journal = journal
        self._throughput = Throughput()
        self._greeting: list[str] = []
        self._console = Console(highlight=False, emoji=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False)

    def greet(self, lines: Sequence[str], facts: Mapping[str, Any]) -> None:  # noqa: ARG002 - lines are for people
        """Keep the lines for the bottom of the view."""
        self._greeting = [line for line in lines if line.startswith("  ")]

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, snapshot: Snapshot) -> None:
        """Draw the view."""
        self._live.update(self._render(snapshot), refresh=True)

    def _render(self, snapshot: Snapshot) -> RenderableType:
        free = max(self._console.height - OTHER_LINES, 4)
        dead_lines = max(free // 3, 2)
        how = "stopping" if snapshot.is_stopping else "press Ctrl-C to stop"
        return Group(
            Text.assemble(
                ("Everwork demo", "bold"),
                f"  {duration_text(snapshot.seconds)}  {snapshot.created:,} created, ",
                (f"{self._throughput.add(snapshot):.1f}", "bold green"),
                " completed/s  ",
                (how, "dim"),
            ),
            "",
            self._counts(snapshot),
            "",
            Text("RECENT", style="bold"),
            *_recent(list(self._journal.entries), free - dead_lines),
            "",
            Text.assemble(("DEAD LETTERS", "bold"), f" {snapshot.of_state(State.FAILED):,}"),
            *_dead(snapshot.dead, dead_lines),
            "",
            *self._advice(snapshot),
        )

    def _counts(self, snapshot: Snapshot) -> RenderableType:
        by_type = Counter[tuple[str, State]]()
        for count in snapshot.counts:
            by_type[count.type, count.state] += count.jobs
        rows: list[list[str | Text]] = [
            [type, *(_figure(state, by_type[type, state]) for state in State)] for type in self._types
        ]
        rows.append(["all", *(_figure(state, snapshot.of_state(state)) for state in State)])
        return table([Column("TYPE"), *(Column(state.upper(), whole=True, right=True) for state in STATES)], rows)

    def _advice(self, snapshot: Snapshot) -> list[Text]:
        name = command_name()
        key = snapshot.dead[0].key if snapshot.dead else "KEY"
        return [
            *(Text(line, overflow="fold") for line in self._greeting),
            Text("In another terminal:", style="dim"),
            Text(f"  export EVERWORK_ENGINE={shlex.quote(absolute_url(self._url))}", overflow="fold"),
            Text(f"  {name} jobs get {key}; {name} jobs requeue {key}; {name} stats", no_wrap=True),
        ]


def view_for(url: str, types: Sequence[str], journal: Journal, *, as_json: bool) -> View:
    """The live view on a capable terminal, plain lines elsewhere."""
    if as_json:
        return JsonLines()
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return Screen(url, types, journal)
    return Lines()


def absolute_url(url: str) -> str:
    """The URL with an absolute path, which is valid in any directory."""
    url = engine_url(url)
    store_url = StoreUrl.from_url(url) if urlsplit(url).scheme == "sqlite" else None
    return shown_url(url) if store_url is None or store_url.in_memory else f"sqlite:///{quote(store_url.path)}"


def duration_text(seconds: float) -> str:
    """A running time as 01:02 or 1:01:02."""
    hours, rest = divmod(int(seconds), 3600)
    return (f"{hours}:" if hours else "") + f"{rest // 60:02}:{rest % 60:02}"


def _figure(state: State, jobs: int) -> Text:
    return state_text(state.label, f"{jobs:,}") if jobs else Text("-", style="dim")


def _recent(entries: Sequence[Entry], lines: int) -> list[Text]:
    """The latest entries. Failures are more interesting, so successes do not displace them."""
    bad = _last([at for at, entry in enumerate(entries) if not entry.is_good], lines - lines // 3)
    good = _last([at for at, entry in enumerate(entries) if entry.is_good], lines - len(bad))
    shown = [_entry_line(entries[at]) for at in sorted(bad + good)]
    return shown + [Text("")] * (lines - len(shown))


def _last(indexes: list[int], number: int) -> list[int]:
    return indexes[max(len(indexes) - number, 0) :]


def _entry_line(entry: Entry) -> Text:
    key = "" if entry.key is None else str(entry.key)
    text = Text.assemble((entry.at, "dim"), f"  {key:>6}  {entry.type:<14}  ", no_wrap=True, overflow="ellipsis")
    return text.append(one_line(entry.text), style="green" if entry.is_good else "yellow")


def _dead(jobs: Sequence[StoredJob], lines: int) -> list[Text]:
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
