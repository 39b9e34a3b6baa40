"""The demo: sample workers and steady traffic. Which calls fail is counted, never left to chance."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, NamedTuple

from everwork import Call, Everwork, Middleware, RetryPolicy
from everwork.exceptions import Fail
from everwork.runtime.middleware import Proceed
from everwork.testing.injection import FailEveryNth

TICK_SECONDS: Final = 0.25
JOURNAL_LINES: Final = 100
QUICK_RETRY: Final = RetryPolicy(max_attempts=3, base=1.0, factor=2.0)
"""Real jobs wait longer; here one wants to see it happen. It holds for errors that no rule about errors knows."""


class Entry(NamedTuple):
    """Something that happened."""

    at: str
    key: int | None
    type: str
    text: str
    is_good: bool


class Journal:
    """What happened lately, newest last."""

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque(maxlen=JOURNAL_LINES)

    def add(self, key: int | None, type: str, text: str, *, is_good: bool = False) -> None:
        """Note one thing."""
        self.entries.append(Entry(datetime.now().astimezone().strftime("%H:%M:%S"), key, type, text, is_good))

    # A file for log lines: a terminal that shows a live view has no room for them.

    def write(self, text: str) -> int:
        """Note a log line."""
        if text.strip():
            self.add(None, "log", text)
        return len(text)

    def flush(self) -> None:
        """Nothing waits to be written."""


class Noting(Middleware):
    """Notes how each attempt ends."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def __call__(self, call: Call, proceed: Proceed) -> Any:
        """Call, and note."""
        begun = time.monotonic()
        try:
            result = await proceed(call)
        except Exception as error:
            self._journal.add(call.key, call.type, f"try {call.attempts}/{call.max_attempts} failed: {error}")
            raise
        took = (time.monotonic() - begun) * 1000
        self._journal.add(call.key, call.type, f"completed in {took:.0f} ms", is_good=True)
        return result


def demo_app(url: str, journal: Journal) -> Everwork:
    """An application whose workers mostly succeed."""
    app = Everwork(url, middleware=[Noting(journal)])
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
        """Go on until told to stop."""
        tick = 0
        while not stop.is_set():
            tick += 1
            jobs = list(_jobs(tick))
            await self._app.enqueue_many(jobs)
            self.created += len(jobs)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), TICK_SECONDS)


def _jobs(tick: int) -> Iterator[tuple[str, dict[str, Any]]]:
    for number in (2 * tick - 1, 2 * tick):
        yield "email-send", {"number": number, "to": f"user{number}@example.org"}
    yield "payment-charge", {"number": tick, "cents": 100 * (tick % 50) + 99}
    if tick % 2 == 0:
        yield "report-build", {"number": tick // 2}
    if tick % 4 == 0:
        # An option and not an argument: the reminder starts some seconds later.
        yield "reminder-send", {"number": tick // 4, "delay": 3 + tick // 4 % 5}
