"""The workers of one process: fetcher in the engine's thread, executor in the handlers' loop, and their stop."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from everwork.aio.loops import first_of, new_loop
from everwork.aio.retrying import Delays, backoff_delays
from everwork.core import checks
from everwork.core.limits import LEASE_MS_DEFAULT
from everwork.exceptions import BadConfiguration
from everwork.logs import get_logger
from everwork.runtime.attempt import Attempt, Stop
from everwork.runtime.context import CompletesInTransaction
from everwork.runtime.executor import Executor, Report
from everwork.runtime.fetcher import Fetcher
from everwork.runtime.handler import Handler
from everwork.runtime.job_log import JobLog
from everwork.runtime.ledger import Ledger
from everwork.runtime.portal import Portal
from everwork.service.service import JobService

log = get_logger("everwork")

T = TypeVar("T")

SHUTDOWN_SECONDS = 30.0
"""How long an application that is stopped waits for what runs, if nobody says."""
CANCEL_SECONDS = 5.0
"""How long cancelled handlers may take to end before their leases are left to lapse, if nobody says."""
SETTLE_SECONDS = 1.0
"""What is left of a process's last seconds to store how its calls have ended."""


class StopSignal:
    """Asked once: stop softly. Asked again: cancel. From any thread, for the loop that has made it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.soft = asyncio.Event()
        self.hard = asyncio.Event()

    def ask(self) -> None:
        """Ask to stop."""
        with suppress(RuntimeError):  # The loop is closed: everything has stopped.
            self._loop.call_soon_threadsafe(self._ask)

    def _ask(self) -> None:
        if self.soft.is_set():
            self.hard.set()
        self.soft.set()

    async def comes_before(self, preparation: Coroutine[Any, Any, None]) -> bool:
        """Whether the stop is asked for before a preparation has ended, which is then left."""
        preparing = asyncio.ensure_future(preparation)
        try:
            await first_of(self.soft, work=preparing)
        finally:
            if not preparing.done():
                preparing.cancel()
        if preparing.done():
            preparing.result()
            return False
        return True


class Runtime:
    """Runs once. `worker` is the name under which jobs are leased, `process` the one that the log shows."""

    def __init__(
        self,
        portal: Portal,
        worker: str,
        stopped: StopSignal,
        own: CompletesInTransaction,
        *,
        process: str,
        handlers: Iterable[Handler] = (),
        owns_name: bool = False,
        ledger: Ledger | None = None,
        lease_ms: int = LEASE_MS_DEFAULT,
        pauses: Delays = backoff_delays,
    ) -> None:
        self._portal = portal
        self._worker = worker
        self._owns_name = owns_name
        self._ledger = ledger
        self._lease_ms = lease_ms
        self._pauses = pauses
        self._process = process
        self._job_log = JobLog(process)
        self._loop = asyncio.get_running_loop()
        self._executor = Executor(self._send, own, self._job_log, ledger)
        self._thread = threading.get_ident()
        self._handlers: dict[str, Handler] = {}
        self._fetcher: Fetcher | None = None
        self._stopped = stopped
        self.ended: Future[None] = Future()
        """Resolved at the end of `run`, for whoever waits in another thread or loop."""
        for handler in handlers:
            self.add(handler)

    def add(self, handler: Handler) -> None:
        """Let a handler join, also while others run; in the handlers' loop."""
        taken = {place for other in self._handlers.values() for place in other.places}
        if handler.name in self._handlers or not taken.isdisjoint(handler.places):
            raise BadConfiguration(f"worker '{handler.name}': it, or a source of it, is there already")
        self._handlers[handler.name] = handler
        self._executor.add(handler)
        if self._fetcher is not None:
            self._in_engine(partial(self._fetcher.add, handler))

    def look_at_flags(self) -> None:
        """The parent of this process has written into the table; from any thread."""
        if self._fetcher is not None:
            self._in_engine(self._fetcher.look_at_flags)

    def stop_fetching(self) -> None:
        """Take no more, and give back what has not begun, also while a handler blocks its loop; from any thread."""
        if self._fetcher is not None:
            self._in_engine(self._fetcher.stop_taking)

    def stop_running(self) -> None:
        """Cancel what runs; it goes back. In the handlers' thread."""
        self._executor.stop_soft()
        self._executor.stop_running()

    @property
    def is_in_its_thread(self) -> bool:
        """Whether the caller is in a thread of the handlers, which must not wait for themselves."""
        return threading.get_ident() == self._thread or self._executor.is_handler_thread

    def is_runner(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task runs handlers."""
        return self._executor.is_runner(task)

    async def run(
        self,
        shutdown_timeout: float | None,
        cancel_seconds: float | None = None,
        fetcher_of: Callable[..., Fetcher] = Fetcher,
    ) -> None:
        """Work until stopped, then stop in stages: finish, cancel, leave to lapse. Cancelled itself, it cancels.

        `shutdown_timeout` None: what runs may finish for as long as nobody asks again. `cancel_seconds`: how long
        it may take after that, if not CANCEL_SECONDS.
        """
        try:
            self._fetcher = fetcher = await self._portal.call(partial(self._make_fetcher, fetcher_of))
            for handler in self._handlers.values():
                self._in_engine(partial(fetcher.add, handler))
            fetching, cancel = self._portal.start(lambda _: fetcher.run())
            try:
                await first_of(self._stopped.soft, work=fetching)
                self._in_engine(fetcher.stop_fetching)
                self._executor.stop_soft()
                if self._ledger is not None:  # An application tells only that it has stopped.
                    log.info("no more jobs are begun here", process=self._process)
                await first_of(self._stopped.hard, work=fetching, seconds=shutdown_timeout)
            finally:
                try:
                    await self._end(fetching, fetcher, cancel_seconds)
                finally:
                    cancel()
        finally:
            self._executor.close()
            self.ended.set_result(None)

    async def _end(self, fetching: asyncio.Future[None], fetcher: Fetcher, cancel_seconds: float | None) -> None:
        """Cancel what still runs, give it a little time, and leave the rest to its leases."""
        if not fetching.done():
            self._in_engine(fetcher.stop_fetching)
            self._executor.stop_soft()
            self._executor.stop_running()
            await first_of(work=fetching, seconds=CANCEL_SECONDS if cancel_seconds is None else cancel_seconds)
            self._in_engine(fetcher.abandon)
            await first_of(work=fetching, seconds=CANCEL_SECONDS)
        if fetching.done():
            await fetching
        else:
            log.error("the engine does not answer: what is not stored now is left to its leases")

    async def _make_fetcher(self, fetcher_of: Callable[..., Fetcher], service: JobService) -> Fetcher:
        return fetcher_of(
            service,
            self._worker,
            self._deliver,
            self._stop_attempt,
            job_log=self._job_log,
            owns_name=self._owns_name,
            ledger=self._ledger,
            lease_ms=self._lease_ms,
            pauses=self._pauses,
        )

    # Between the two loops. Each of these is called in one thread and acts in the other.

    def _send(self, reports: list[Report]) -> None:
        if self._fetcher is not None:
            self._portal.loop.call_soon_threadsafe(self._fetcher.take, reports)

    def _deliver(self, attempts: Sequence[Attempt]) -> None:
        self._loop.call_soon_threadsafe(self._executor.accept, attempts)

    def _stop_attempt(self, attempt: Attempt, why: Stop) -> None:
        self._loop.call_soon_threadsafe(self._executor.stop, attempt, why)

    def _in_engine(self, act: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # The engine's loop is closed: there is nothing left to do.
            self._portal.loop.call_soon_threadsafe(act)


def calls_share(seconds: float) -> float:
    """How much of a process's last seconds its cancelled calls may take."""
    return max(seconds - SETTLE_SECONDS, seconds / 2)


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in an event loop of its own; handlers that will not end do not keep the process alive."""
    loop = new_loop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            _, stuck = loop.run_until_complete(asyncio.wait(left, timeout=1.0))
            for task in stuck:
                log.error("a task does not end, it is left behind", task=repr(task.get_coro()))
            loop.set_exception_handler(lambda *_: None)
        asyncio.set_event_loop(None)
        loop.close()


class WorkerName:
    """A worker's name: the one that was given, or one of this very process. A fork has a name of its own."""

    def __init__(self, given: str | None) -> None:
        self._given = checks.name("worker", given) if given else None
        self._of_process: dict[int, str] = {}

    @property
    def is_unique(self) -> bool:
        """Whether no other process can have this name."""
        return self._given is None

    @property
    def text(self) -> str:
        """The worker's name in this process."""
        return self._given or self.process

    @property
    def process(self) -> str:
        """Unique per process, also where host names and process ids repeat."""
        pid = os.getpid()
        return self._of_process.get(pid) or self._of_process.setdefault(pid, _new_name(pid))


def _new_name(pid: int) -> str:
    host = "".join(c for c in socket.gethostname() if c.isprintable())[:200] or "host"
    return checks.name("worker", f"{host}-{pid}-{secrets.token_hex(3)}")
