"""The workers of one process: a source of jobs, an executor in the handlers' loop, and how they stop."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from everwork.aio.loops import first_of
from everwork.core import checks
from everwork.exceptions import BadConfiguration
from everwork.logs import get_logger
from everwork.runtime.attempt import Attempt, Stop
from everwork.runtime.context import CompletesInTransaction
from everwork.runtime.executor import Executor
from everwork.runtime.handler import Handler
from everwork.runtime.ledger import Ledger
from everwork.runtime.portal import Host
from everwork.runtime.shutdown import StopSignal
from everwork.runtime.source import Deliver, JobSource, Report, StopAttempt

log = get_logger("everwork")

CANCEL_SECONDS = 5.0
"""How long cancelled handlers get to end by default, before their leases are left to expire."""


class Runtime:
    """Runs the jobs of a source, once. The source runs in its host's loop, the handlers in the current one."""

    def __init__(
        self,
        make_source: Callable[[Deliver, StopAttempt], JobSource],
        host: Host,
        stopped: StopSignal,
        transactions: CompletesInTransaction | None,
        *,
        handlers: Iterable[Handler] = (),
        ledger: Ledger | None = None,
    ) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._executor = Executor(self._send, transactions, ledger)
        self._thread = threading.get_ident()
        self._handlers: dict[str, Handler] = {}
        self._stopped = stopped
        self._is_same_loop = host.loop is self._loop
        if self._is_same_loop:
            self._source = make_source(self._executor.accept, self._executor.stop)
        else:
            self._source = make_source(self._deliver, self._stop_attempt)
        self.ended: Future[None] = Future()
        """Resolved at the end of `run`, for callers in other threads and loops."""
        self.fetched: Future[None] = Future()
        """Resolved when the source has ended and all outcomes are settled."""
        for handler in handlers:
            self.add(handler)

    @property
    def running(self) -> int:
        """How many attempts are running."""
        return self._executor.running

    @property
    def ended_jobs(self) -> int:
        """How many attempts have ended."""
        return self._executor.ended

    def add(self, handler: Handler) -> None:
        """Add a handler, even while others are running; called in the handlers' loop."""
        taken = {queue for other in self._handlers.values() for queue in other.queues}
        if handler.name in self._handlers or not taken.isdisjoint(handler.queues):
            raise BadConfiguration(f"worker '{handler.name}': this worker or one of its sources has already been added")
        self._handlers[handler.name] = handler
        self._executor.add(handler)
        self._in_source(self._source.add, handler)

    def stop_fetching(self) -> None:
        """Lease no more jobs and release those not started, even while a handler blocks its loop; from any thread."""
        self._in_source(self._source.stop_fetching)

    def stop_soft(self) -> None:
        """Lease and start no more jobs; called in the handlers' loop."""
        self.stop_fetching()
        self._executor.stop_soft()

    def stop_running(self) -> None:
        """Cancel and release running jobs; called in the handlers' thread."""
        self._executor.stop_soft()
        self._executor.stop_running()

    def release_running(self) -> None:
        """Release running jobs without waiting for their handlers, before the process exits; from any thread."""
        self._in_source(self._source.release_running)

    @property
    def is_in_its_thread(self) -> bool:
        """Whether the caller is in the thread of the handlers' loop or of a handler, which must not wait for itself."""
        return threading.get_ident() == self._thread or self._executor.is_handler_thread

    def is_runner(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task runs handlers."""
        return self._executor.is_runner(task)

    async def run(self, shutdown_timeout: float | None, cancel_seconds: float | None = None) -> None:
        """Run until stopped, then stop in stages: finish, cancel, let leases expire. Cancelling this cancels handlers.

        `shutdown_timeout`: how long handlers get to finish after a stop, unless a second stop is requested;
        `cancel_seconds`: how long they get once cancelled; by default, `CANCEL_SECONDS`. Infinity: no limit.
        """
        self._executor.owner = asyncio.current_task()
        try:
            fetching, cancel = self._host.start(lambda _: self._fetch())
            try:
                await first_of(self._stopped.soft, work=fetching)
                self.stop_soft()
                await first_of(self._stopped.hard, work=fetching, seconds=shutdown_timeout)
            finally:
                try:
                    await self._end(fetching, CANCEL_SECONDS if cancel_seconds is None else cancel_seconds)
                finally:
                    cancel()
        finally:
            self._executor.close()
            self.ended.set_result(None)

    async def _fetch(self) -> None:
        try:
            await self._source.run()
        finally:
            self.fetched.set_result(None)

    async def _end(self, fetching: asyncio.Future[None], cancel_seconds: float) -> None:
        """Cancel jobs that are still running, wait briefly, and let the leases of the rest expire."""
        if not fetching.done():
            self.stop_soft()
            self._executor.stop_running()
            await first_of(work=fetching, seconds=None if math.isinf(cancel_seconds) else cancel_seconds)
            self._in_source(self._source.abandon)
            await first_of(work=fetching, seconds=CANCEL_SECONDS)
        if fetching.done():
            await fetching
        else:
            log.error("the engine does not respond, jobs without a stored outcome are retried when their leases expire")

    # Between two loops. Each of these is called in one thread and acts in the other.

    def _in_source(self, act: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # The loop is closed: there is nothing left to do.
            self._host.loop.call_soon_threadsafe(act, *arguments)

    def _send(self, reports: list[Report]) -> None:
        if self._is_same_loop:
            self._source.take(reports)
        else:
            self._in_source(self._source.take, reports)

    def _deliver(self, attempts: Sequence[Attempt]) -> None:
        self._loop.call_soon_threadsafe(self._executor.accept, attempts)

    def _stop_attempt(self, attempt: Attempt, why: Stop) -> None:
        self._loop.call_soon_threadsafe(self._executor.stop, attempt, why)


class WorkerName:
    """A worker's name: as given, or unique to this process. A fork has its own."""

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
        """Unique per process, even where host names and process ids repeat."""
        pid = os.getpid()
        return self._of_process.get(pid) or self._of_process.setdefault(pid, _new_name(pid))


def _new_name(pid: int) -> str:
    host = "".join(c for c in socket.gethostname() if c.isprintable())[:200] or "host"
    return checks.name("worker", f"{host}-{pid}-{secrets.token_hex(3)}")
