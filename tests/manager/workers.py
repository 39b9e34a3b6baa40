"""Workers for tests that run, hang, die and are stopped. Each says what it does in a file that the test reads."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from everwork import (
    AbstractWorker,
    CircuitBreaker,
    Event,
    EventCollector,
    EventSettings,
    Interval,
    JobContext,
    RetryPolicy,
    Trigger,
    WorkerSettings,
)
from everwork.exceptions import Fail, Reject, Retry

BLOCKED_SECONDS = 1.5
"""A process takes its loop for blocked by then."""
LOG = "EVERWORK_TEST_LOG"
INBOX = "EVERWORK_TEST_INBOX"
"""Names a source of the test's own: streams of a shared Redis are everybody's."""
EVENTS_MAX = 3


def say(word: str, *facts: object) -> None:
    """One line, written at once: lines of several processes do not mix."""
    line = " ".join(map(str, (word, os.getpid(), *facts))) + "\n"
    out = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(out, line.encode())
    os.close(out)


class Told(AbstractWorker):
    """Says when it starts and when it shuts down."""

    async def startup(self) -> None:
        say("startup", self._get_settings().title)

    async def shutdown(self) -> None:
        say("shutdown", self._get_settings().title)


class Echo(Told):
    """Does what it should."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        sources = {"echo", os.environ.get(INBOX, "inbox")}
        return WorkerSettings(title="echo", sources=sources, execution_timeout=60, concurrency=10)

    async def __call__(self, ctx: JobContext, text: str = "", **kwargs: Any) -> dict[str, str]:
        say("echo", ctx.key, text)
        return {"text": text}


class Guarded(Told):
    """Does what it should; a breaker stops its type when it does not."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        breaker = CircuitBreaker(failures=2, seconds=3_600)
        return WorkerSettings(title="guarded", sources={"guarded"}, retry=RetryPolicy(), breaker=breaker)

    async def __call__(self, ctx: JobContext) -> None:
        say("guarded", ctx.key)


class Another(Told):
    """A second class on the same source."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="another", sources={"echo"}, concurrency=10)

    async def __call__(self, ctx: JobContext, text: str = "") -> None:
        say("another", ctx.key, text)


class Holder(Told):
    """Runs until it is cancelled, or until its file is there."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(
            title="holder", sources={"hold"}, execution_timeout=120, concurrency=200, status_cache_ttl=None
        )

    async def __call__(self, ctx: JobContext, gate: str = "") -> None:
        say("begin", ctx.key, ctx.attempt)
        try:
            while not (gate and os.path.exists(gate)):  # noqa: ASYNC110, ASYNC240, PTH110
                await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            say("cancelled", ctx.key, ctx.attempt)
            raise
        say("end", ctx.key, ctx.attempt)


class Stuck(Told):
    """Gets stuck in the way that it is told to."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="stuck", sources={"stuck"}, execution_timeout=1)

    async def __call__(self, ctx: JobContext, how: str, seconds: float = 3600) -> None:
        say("begin", ctx.key, ctx.attempt, how)
        await WAYS[how](seconds)
        say("end", ctx.key, ctx.attempt, how)


async def block_the_loop(seconds: float) -> None:
    began, is_said = time.monotonic(), False
    while (blocked := time.monotonic() - began) < seconds:
        time.sleep(0.05)  # noqa: ASYNC251
        if blocked > BLOCKED_SECONDS and not is_said:
            is_said = True
            say("blocked")


async def ignore_cancellation(seconds: float) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            say("ignored")


async def hold_the_gil(seconds: float) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # Other threads get them: it is not woken up.
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())


async def leave(_seconds: float) -> None:
    os._exit(3)


async def kill_itself(_seconds: float) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(60)


async def stop_itself(_seconds: float) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    await asyncio.sleep(60)


WAYS: dict[str, Callable[[float], Any]] = {
    "block": block_the_loop,
    "ignore": ignore_cancellation,
    "gil": hold_the_gil,
    "exit": leave,
    "kill": kill_itself,
    "stop": stop_itself,
}


class Long(Told):
    """The same ways, with enough time for them."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="long", sources={"long"}, execution_timeout=60)

    async def __call__(self, ctx: JobContext, how: str, seconds: float) -> str:
        say("begin", ctx.key, ctx.attempt, how)
        await (asyncio.sleep(seconds) if how == "wait" else WAYS[how](seconds))
        say("end", ctx.key, ctx.attempt, how)
        return how


ERRORS = {
    "fail": Fail("broken for good"),
    "reject": Reject(),
    "retry": Retry(delay=0),
    "raise": ValueError("something else"),
}


class Blocking(Told):
    """Blocks its process past its time; what it does when it is interrupted, it is told."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        retry = RetryPolicy(max_attempts=3, base=3600.0)
        return WorkerSettings(title="blocking", sources={"blocking"}, execution_timeout=1, retry=retry)

    async def __call__(self, ctx: JobContext, when_interrupted: str) -> None:
        say("begin", ctx.key, ctx.attempt)
        while True:
            try:
                time.sleep(3600)  # noqa: ASYNC251
            except KeyboardInterrupt:
                say("interrupted", ctx.key)
                if when_interrupted == "return":
                    return
                if when_interrupted == "raise":
                    raise


class Outcomes(Told):
    """Ends as it is told to."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        events = EventSettings(max_events_in_memory=EVENTS_MAX)
        return WorkerSettings(title="outcomes", sources={"outcomes"}, concurrency=10, event_settings=events)

    async def __call__(
        self, ctx: JobContext, events: EventCollector, how: str, count: int = 1
    ) -> dict[str, int] | None:
        say(how, ctx.key, ctx.attempt)
        for at in range(count):
            (self.emit if at % 2 else events.emit)(Event(source="echo", kwargs={"text": f"{how}-{at}"}))
        if how in ERRORS and ctx.attempt < 3:
            raise ERRORS[how]
        return {"count": count}


class Patient(Told):
    """Has a retry policy."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(
            title="patient", sources={"patient"}, retry=RetryPolicy(max_attempts=3, base=0.0), execution_timeout=1
        )

    async def __call__(self, ctx: JobContext, how: str = "raise") -> None:
        say("begin", ctx.key, ctx.attempt, how)
        if how == "raise":
            raise ValueError("again")
        await WAYS[how](3600)


class Writing(Told):
    """Logs, in its call and in a thread that knows of no call."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="writing", sources={"writing"})

    async def __call__(self, ctx: JobContext) -> None:
        logging.getLogger("mine").warning("from the handler")
        thread = threading.Thread(target=logging.getLogger("mine").warning, args=["from a thread of mine"])
        thread.start()
        thread.join()


class Handling(Told):
    """Ends a call because of an error that it handles, without a reason of its own."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="handling", sources={"handling"}, retry=RetryPolicy(max_attempts=2, base=0.0))

    async def __call__(self, ctx: JobContext, how: str) -> None:
        try:
            raise KeyError("no such order") if how == "reject" else ConnectionError("the shop is closed")
        except KeyError:
            raise Reject  # noqa: B904 - as users write it
        except ConnectionError:
            raise Retry  # noqa: B904 - as users write it


class BrokenInit(AbstractWorker):
    """Cannot be made."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="broken-init", sources={"broken"})

    def __init__(self) -> None:
        raise RuntimeError("no such thing as me")

    async def __call__(self) -> None:
        say("never")


class BrokenStartup(AbstractWorker):
    """Starts at the second attempt only."""

    tries = 0

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="broken-startup", sources={"later"})

    async def startup(self) -> None:
        BrokenStartup.tries += 1
        if BrokenStartup.tries == 1:
            sys.exit("not yet")

    async def __call__(self, ctx: JobContext) -> None:
        say("later", ctx.key)


class Endless(AbstractWorker):
    """Never comes up."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="endless", sources={"endless"})

    async def startup(self) -> None:
        await asyncio.Event().wait()

    async def __call__(self) -> None:
        say("never")


class Ticker(Told):
    """Has a trigger that fires often."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        tick = Trigger(
            title="tick",
            schedule=Interval(seconds=0.2),
            kwargs={"text": "tick"},
            status_cache_ttl=None,
            status_check_interval=0.3,
        )
        return WorkerSettings(title="ticker", triggers=[tick], concurrency=5)

    async def __call__(self, ctx: JobContext, text: str) -> None:
        say(text, ctx.key)


class Thread(Told):
    """A plain function: it runs in a thread that nobody can stop."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="thread", sources={"thread"}, execution_timeout=1)

    def __call__(self, ctx: JobContext, seconds: float) -> str:  # type: ignore[override]
        say("begin", ctx.key, ctx.attempt)
        wait_in_a_thread(seconds)
        return "done"


def wait_in_a_thread(seconds: float) -> None:
    time.sleep(seconds)


class Clinging(Told):
    """Does not want to go."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="clinging", sources={"clinging"})

    async def shutdown(self) -> None:
        say("shutdown", "clinging")
        await asyncio.sleep(3600)

    async def __call__(self, ctx: JobContext) -> None:
        say("clinging", ctx.key)
