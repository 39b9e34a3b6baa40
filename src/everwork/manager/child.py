"""A worker process from the inside: its workers, its loops, and how it stops.

The main thread runs the handlers' event loop, a second thread the engine's. A third only reads from the parent, so that
commands arrive even while a handler blocks the first or an outage blocks the second. End of file means that the parent
died.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final, Literal

import orjson

from everwork.aio.loops import new_loop
from everwork.aio.retrying import engine_outage, retrying
from everwork.app.engine_host import TransactionStore
from everwork.engines.open import open_engine
from everwork.exceptions import EngineUnavailable
from everwork.logs import HasFacts, add_process_facts, attempt_here, configure, get_logger
from everwork.manager.process import Reconnect
from everwork.manager.worker_pool import RUNNING_SECONDS, WorkerPool, WorkerSpec
from everwork.runtime.fetcher import Fetcher
from everwork.runtime.job_log import JobLog
from everwork.runtime.ledger import Ledger, Phase
from everwork.runtime.middleware import MakeMiddleware
from everwork.runtime.portal import Portal
from everwork.runtime.runtime import Runtime
from everwork.runtime.shutdown import StopSignal, calls_share
from everwork.runtime.source import Deliver, StopAttempt
from everwork.service.service import JobService
from everwork.spool.settings import Offline

log = get_logger("everwork")

TURN_SECONDS: Final = 0.5
BLOCKED_SECONDS: Final = 1.0
"""An event loop that has not run for this long is blocked by a handler."""
READY_SECONDS: Final = RUNNING_SECONDS + 2.0
"""After this time a process has reported which workers fail to start, and can replace one in which the same workers
fail.
"""
SWALLOW_SECONDS: Final = 1.0
UNGUARDED: Final = 78
"""Exit code of a process that would have run the manager again when it imported the program."""
MESSAGE_BYTES_MAX: Final = 65_536
NOTIFY: Final = b"notify"
STOP: Final = b"stop"
CANCEL: Final = b"cancel"


class Interrupted(KeyboardInterrupt):
    """Raised inside a handler that blocks the event loop when the process has to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """What a new process runs. Without `log_format`, the program configures logging."""

    url: str
    manager: str
    """The uuid of its manager."""
    name: str
    workers: tuple[WorkerSpec, ...]
    shutdown_timeout: float
    reconnect: Reconnect
    lease_ms: int
    log_format: Literal["console", "json"] | None
    log_level: str
    middleware: tuple[MakeMiddleware, ...] = ()
    lifespan: Callable[..., Any] | None = None
    offline: Offline | None = None


def main(spec: ChildSpec, memory: Any, control: socket.socket, dump: Connection) -> None:
    """Run until stopped, or until the parent has died."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    control.setblocking(True)  # The program may have set another default timeout for sockets.
    dump_stack_on_signal(dump.fileno())
    add_process_facts(manager=spec.manager, process=spec.name)
    if spec.log_format is not None:
        configure(spec.log_format, spec.log_level)
    sys.exit(Child(spec, Ledger(memoryview(memory).cast("B")), control).run())


def dump_stack_on_signal(file: int) -> None:
    """Let SIGUSR2 write the stack of the main thread, which runs the handlers, even while no Python code can run.

    Only of this thread: others may be running, and to read their frames meanwhile can crash the process.
    """
    faulthandler.register(signal.SIGUSR2, file=file, all_threads=False, chain=False)


class Child:
    """A worker process: its event loop, its pool of workers and its connection to the parent."""

    def __init__(self, spec: ChildSpec, ledger: Ledger, control: socket.socket) -> None:
        self._spec = spec
        self._ledger = ledger
        self._control = control
        self._loop = new_loop()
        self._log = log.bind(process=spec.name)
        self._pool = WorkerPool(spec.workers, self._log, spec.middleware, spec.lifespan)
        self._turned_at = time.monotonic()
        self._stopped: StopSignal
        self._has_sigterm = False
        self._is_cancelled = False
        self._interrupted: set[HasFacts | None] = set()
        """The attempts that were interrupted; None stands for code outside of a call."""
        self._runtime: Runtime | None = None
        self._check_flags: Callable[[], None] = lambda: None
        """Lets the fetcher read the parent's flags, in its own loop."""
        self._code = 0

    def run(self) -> int:
        """Run to the end; returns the exit code."""
        asyncio.set_event_loop(self._loop)
        main_task = self._loop.create_task(self._run())
        while True:
            try:
                self._loop.run_until_complete(main_task)
            except Interrupted:
                continue  # Raised in code outside of a call; stopping continues.
            except (KeyboardInterrupt, asyncio.CancelledError, RuntimeError) as error:
                self._log.error("user code stopped the event loop, exiting this process", exc_info=error)
                return 1
            return self._code

    async def _run(self) -> None:
        self._report(begun=True)
        self._stopped = StopSignal()
        signal.signal(signal.SIGUSR1, lambda *_: self._stop_soft())
        signal.signal(signal.SIGTERM, lambda *_: self._on_sigterm())
        threading.Thread(target=self._listen, name="everwork-control", daemon=True).start()
        turn_task = asyncio.ensure_future(self._turn())
        try:
            await self._work()
        except EngineUnavailable as error:
            self._log.error("the engine was unavailable for too long, exiting this process", error=str(error))
            self._report(gave_up=True)
            self._code = 1
        finally:
            turn_task.cancel()

    async def _work(self) -> None:
        """Connect to the engine, start the workers, run until stopped, shut down."""
        portal = await self._unless_stopped(
            retrying(self._open_portal, delays=self._spec.reconnect.pauses, outage=engine_outage(self._spec.name))
        )
        if portal is None:
            return
        try:
            runtime = self._runtime = self._new_runtime(portal)
            start_task = asyncio.ensure_future(self._pool.start(runtime.add, self._report_problem))
            start_task.add_done_callback(self._log_start_failure)
            announce_task = asyncio.ensure_future(self._announce())
            try:
                await runtime.run(None, calls_share(self._spec.shutdown_timeout))
            finally:
                self._runtime = None
                self._ledger.enter_phase(Phase.STOPPING)
                for task in (start_task, announce_task):
                    task.cancel()
                # A `startup()` that swallows this must not prevent the `shutdown()` of the other workers.
                await asyncio.wait([start_task, announce_task], timeout=SWALLOW_SECONDS)
                await self._pool.shutdown()
        finally:
            await asyncio.to_thread(portal.close)

    def _log_start_failure(self, start_task: asyncio.Future[None]) -> None:
        if not start_task.cancelled() and start_task.exception() is not None:
            self._log.error("starting the workers failed", exc_info=start_task.exception())

    def _new_runtime(self, portal: Portal[JobService]) -> Runtime:
        transactions = TransactionStore(open_engine(self._spec.url))
        make_fetcher = partial(self._make_fetcher, portal)
        return Runtime(make_fetcher, portal, self._stopped, transactions, ledger=self._ledger)

    def _make_fetcher(self, portal: Portal[JobService], deliver: Deliver, stop: StopAttempt) -> Fetcher:
        fetcher = Fetcher(
            portal.service,
            self._spec.name,
            deliver,
            stop,
            job_log=JobLog(self._spec.name),
            owns_name=True,
            ledger=self._ledger,
            lease_ms=self._spec.lease_ms,
            delays=self._spec.reconnect.pauses,
        )
        self._check_flags = partial(_call_in, portal.loop, fetcher.check_flags)
        return fetcher

    async def _announce(self) -> None:
        """Enter the running phase even if a `startup()` hangs; a process waiting to be replaced waits longer."""
        await self._pool.wait_first_round(RUNNING_SECONDS)
        self._ledger.enter_phase(Phase.RUNNING)
        await self._pool.wait_first_round(READY_SECONDS - RUNNING_SECONDS)
        self._report(phase="running")

    # The engine ---------------------------------------------------------------------------------

    async def _open_portal(self) -> Portal[JobService]:
        """Start the engine's thread and open the engine."""
        portal = Portal(self._make_service, upkeep=False)
        await asyncio.shield(asyncio.wrap_future(portal.open(_check_store)))
        return portal

    def _make_service(self) -> JobService:
        return JobService(open_engine(self._spec.url, own_loop=True), self._spec.name, offline=self._spec.offline)

    async def _unless_stopped(self, opening: Coroutine[Any, Any, Portal[JobService]]) -> Portal[JobService] | None:
        task = asyncio.ensure_future(opening)

        async def opened() -> None:
            await asyncio.wait([task])

        if await self._stopped.comes_before(opened()):
            task.cancel()
            return None
        return task.result()

    # Heartbeat and stops ------------------------------------------------------------------------

    async def _turn(self) -> None:
        while True:
            self._turned_at = time.monotonic()
            self._ledger.turn_handlers(self._turned_at)
            await asyncio.sleep(TURN_SECONDS)

    def _stop_soft(self) -> None:
        """Take no new jobs; running ones can finish. Can be called from any thread and from signal handlers."""
        _call_in(self._loop, self._begin_stop)

    def _begin_stop(self) -> None:
        if not self._stopped.soft.is_set():
            self._stopped.soft.set()
            if self._runtime is not None:
                self._runtime.stop_soft()
                self._log.info("draining, no new jobs will be started")

    def _on_sigterm(self) -> None:
        """Cancel if the parent requested it or this is the second SIGTERM.

        The first may have been sent to the whole process group, as systemd does: report it to the parent, which then
        goes through all stages of a stop.
        """
        is_first, self._has_sigterm = not self._has_sigterm, True
        if is_first and not self._is_cancelled:
            self._report(stop_requested=True)
            self._stop_soft()
        else:
            self._stop_hard()

    def _stop_hard(self) -> None:
        """Cancel running calls. A call that blocks the loop gets an exception, once, unless it is stuck in C code."""
        self._stop_soft()
        _call_in(self._loop, self._stopped.hard.set)
        attempt = attempt_here.get()
        is_blocked = time.monotonic() - self._turned_at > BLOCKED_SECONDS
        if is_blocked and self._runtime is not None and attempt not in self._interrupted:
            self._interrupted.add(attempt)
            self._runtime.stop_running()
            raise Interrupted("the process is being stopped")

    # The parent ---------------------------------------------------------------------------------

    def _listen(self) -> None:
        """In its own thread: handle the parent's messages until the parent has died."""
        while (message := self._receive()) != b"":
            if message == CANCEL:
                self._cancel()
            elif message == STOP:
                self._stop_soft()
                self._stop_fetching()
            else:
                self._check_flags()
        self._stop_orphaned()

    def _stop_fetching(self) -> None:
        if self._runtime is not None:
            self._runtime.stop_fetching()

    def _receive(self) -> bytes:
        try:
            return self._control.recv(MESSAGE_BYTES_MAX)
        except OSError:
            return b""

    def _cancel(self) -> None:
        """Signal the main thread, even if a handler blocks it."""
        if not self._is_cancelled:
            self._is_cancelled = True
            threading.Thread(target=self._keep_cancelling, name="everwork-cancel", daemon=True).start()

    def _keep_cancelling(self) -> None:
        """Cancel repeatedly: a call may start to block the loop later."""
        os.kill(os.getpid(), signal.SIGTERM)
        while self._runtime is not None:
            time.sleep(BLOCKED_SECONDS)
            os.kill(os.getpid(), signal.SIGTERM)

    def _stop_orphaned(self) -> None:
        """Without the parent, leases are not extended: stop, release everything, and exit in any case."""
        try:
            self._log.error("the parent process has exited, stopping this process")
            self._cancel()
            self._stop_fetching()
            time.sleep(self._spec.shutdown_timeout)
        finally:
            os._exit(1)

    def _report_problem(self, worker: str, problem: str | None) -> None:
        self._report(worker=worker, problem=problem)

    def _report(self, **facts: Any) -> None:
        with suppress(OSError):  # The parent has died, which the listener notices.
            self._control.send(orjson.dumps(facts))


def _call_in(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # The loop is closed: everything has stopped.
        loop.call_soon_threadsafe(callback)


async def _check_store(service: JobService) -> None:
    """The parent declares policies and groups; a process without a store has nothing to do, even with a spool."""
    service.require_connected()
