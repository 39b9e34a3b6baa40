"""The workers of one process: a fetcher in the engine's thread, an executor in the handlers' loop, and their stop."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from everwork.aio.loops import first_of
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
from everwork.runtime.shutdown import StopSignal
from everwork.runtime.source import JobStore

log = get_logger("everwork")

CANCEL_SECONDS = 5.0
"""How long cancelled handlers may take to end by default, before their leases are left to lapse."""


class Runtime:
    """Runs once. `worker` is the name under which jobs are leased, `process` the one that the log shows."""

    def __init__(
        self,
        portal: Portal[Any],
        worker: str,
        stopped: StopSignal,
        transactions: CompletesInTransaction,
        *,
        process: str,
        handlers: Iterable[Handler] = (),
        owns_name: bool = False,
        ledger: Ledger | None = None,
        lease_ms: int = LEASE_MS_DEFAULT,
        delays: Delays = backoff_delays,
    ) -> None:
        self._portal = portal
        self._worker = worker
        self._owns_name = owns_name
        self._ledger = ledger
        self._lease_ms = lease_ms
        self._delays = delays
        self._process = process
        self._job_log = JobLog(process)
        self._loop = asyncio.get_running_loop()
        self._executor = Executor(self._send, transactions, self._job_log, ledger)
        self._thread = threading.get_ident()
        self._handlers: dict[str, Handler] = {}
        self._fetcher: Fetcher | None = None
        self._stopped = stopped
        self.ended: Future[None] = Future()
        """Resolved at the end of `run`, for waiters in other threads and loops."""
        for handler in handlers:
            self.add(handler)

    def add(self, handler: Handler) -> None:
        """Add a handler, also while others run; called in the handlers' loop."""
        taken = {queue for other in self._handlers.values() for queue in other.queues}
        if handler.name in self._handlers or not taken.isdisjoint(handler.queues):
            raise BadConfiguration(f"worker '{handler.name}': it, or a source of it, is there already")
        self._handlers[handler.name] = handler
        self._executor.add(handler)
        if self._fetcher is not None:
            self._in_engine(partial(self._fetcher.add, handler))

    def check_flags(self) -> None:
        """The parent of this process has set flags in the ledger; called from any thread."""
        if self._fetcher is not None:
            self._in_engine(self._fetcher.check_flags)

    def stop_fetching(self) -> None:
        """Lease no more, and release what has not begun, also while a handler blocks its loop; from any thread."""
        if self._fetcher is not None:
            self._in_engine(self._fetcher.stop_and_release)

    def stop_running(self) -> None:
        """Cancel and release what runs; called in the handlers' thread."""
        self._executor.stop_soft()
        self._executor.stop_running()

    @property
    def is_in_its_thread(self) -> bool:
        """Whether the caller is in a thread of the handlers, which must not wait for itself."""
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

        `shutdown_timeout` None: what runs may finish until a second stop. `cancel_seconds`: how long it may take
        after that, if not CANCEL_SECONDS.
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
                if self._ledger is not None:  # An application logs only that it has stopped.
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
        """Cancel what still runs, give it a little time, and let the leases of the rest lapse."""
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

    async def _make_fetcher(self, fetcher_of: Callable[..., Fetcher], store: JobStore) -> Fetcher:
        return fetcher_of(
            store,
            self._worker,
            self._deliver,
            self._stop_attempt,
            job_log=self._job_log,
            owns_name=self._owns_name,
            ledger=self._ledger,
            lease_ms=self._lease_ms,
            delays=self._delays,
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
        """Unique per process, also where host names and process ids repeat."""
        pid = os.getpid()
        return self._of_process.get(pid) or self._of_process.setdefault(pid, _new_name(pid))


def _new_name(pid: int) -> str:
    host = "".join(c for c in socket.gethostname() if c.isprintable())[:200] or "host"
    return checks.name("worker", f"{host}-{pid}-{secrets.token_hex(3)}")
