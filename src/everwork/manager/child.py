"""A worker process, from the inside: its workers, its loops, and how it stops.

The main thread runs the handlers' event loop, a second one the engine's. A third only listens to the parent, so that
it is heard while a handler blocks the first and an outage the second; when the pipe ends, the parent has died.
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
from multiprocessing.connection import Connection
from typing import Any, Final, Literal

import orjson

from everwork.aio.loops import new_loop
from everwork.aio.retrying import engine_outage
from everwork.app.engine_host import TransactionStore
from everwork.engines.open import open_engine
from everwork.exceptions import EngineUnavailable
from everwork.logs import configure, get_logger
from everwork.manager.process import Reconnect
from everwork.manager.worker_pool import RUNNING_SECONDS, WorkerPool, WorkerSpec
from everwork.runtime.ledger import Ledger, Phase
from everwork.runtime.middleware import MakeMiddleware
from everwork.runtime.portal import Portal
from everwork.runtime.runtime import Runtime
from everwork.runtime.shutdown import StopSignal, calls_share
from everwork.service.service import JobService

log = get_logger("everwork")

TURN_SECONDS: Final = 0.5
BLOCKED_SECONDS: Final = 1.0
"""A loop that has not turned for this long is blocked by a handler."""
READY_SECONDS: Final = RUNNING_SECONDS + 2.0
"""After so long a process has said which of its workers do not come up, and may replace one that has no more."""
SWALLOW_SECONDS: Final = 1.0
UNGUARDED: Final = 78
"""The exit code of a process that would have run its program, manager and all, instead of its workers."""
WORD_BYTES_MAX: Final = 65_536
LOOK: Final = b"look"
STOP: Final = b"stop"
CANCEL: Final = b"cancel"


class Interrupted(KeyboardInterrupt):
    """Raised inside a handler that blocks its event loop when its process has to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """What a parent tells a new process. Without `log_format` logging is the program's own."""

    url: str
    name: str
    posts: tuple[WorkerSpec, ...]
    shutdown_timeout: float
    reconnect: Reconnect
    lease_ms: int
    log_format: Literal["console", "json"] | None
    log_level: str
    middleware: tuple[MakeMiddleware, ...] = ()


def main(orders: ChildSpec, memory: Any, control: socket.socket, dump: Connection) -> None:
    """Run until told to stop, or until the parent has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    control.setblocking(True)  # Whatever the program says about sockets in general.
    # Written without the help of Python, so that it works while Python code cannot run.
    faulthandler.register(signal.SIGUSR2, file=dump.fileno(), all_threads=True, chain=False)
    if orders.log_format is not None:
        configure(orders.log_format, orders.log_level)
    sys.exit(Child(orders, Ledger(memoryview(memory).cast("B")), control).run())


class Child:
    """One life of a worker process."""

    def __init__(self, orders: ChildSpec, ledger: Ledger, control: socket.socket) -> None:
        self._orders = orders
        self._ledger = ledger
        self._control = control
        self._loop = new_loop()
        self._log = log.bind(process=orders.name)
        self._crew = WorkerPool(orders.posts, self._log, orders.middleware)
        self._turned_at = time.monotonic()
        self._stopped: StopSignal
        self._is_asked = False
        self._is_cancelled = False
        self._runtime: Runtime | None = None
        self._code = 0

    def run(self) -> int:
        """Live; the exit code."""
        asyncio.set_event_loop(self._loop)
        life = self._loop.create_task(self._live())
        while True:
            try:
                self._loop.run_until_complete(life)
            except Interrupted:
                continue  # It hit code outside of a call; the stop goes on.
            except (KeyboardInterrupt, asyncio.CancelledError, RuntimeError) as error:
                self._log.error("the event loop was ended by somebody's code: this process ends", exc_info=error)
                return 1
            return self._code

    async def _live(self) -> None:
        self._say(begun=True)
        self._stopped = StopSignal()
        signal.signal(signal.SIGUSR1, lambda *_: self._stop_soft())
        signal.signal(signal.SIGTERM, lambda *_: self._on_sigterm())
        threading.Thread(target=self._listen, name="everwork-control", daemon=True).start()
        turning = asyncio.ensure_future(self._turn())
        try:
            await self._work()
        except EngineUnavailable as error:
            self._log.error("the engine stays away: this process gives up", error=str(error))
            self._say(gave_up=True)
            self._code = 1
        finally:
            turning.cancel()

    async def _work(self) -> None:
        """Reach the engine, start the workers, run until stopped, shut down."""
        portal = await self._until_soft(self._opened())
        if portal is None:
            return
        try:
            runtime = self._runtime = self._new_runtime(portal)
            starting = asyncio.ensure_future(self._crew.start(runtime.add, self._tell_broken))
            starting.add_done_callback(self._tell_breakdown)
            announcing = asyncio.ensure_future(self._announce())
            try:
                await runtime.run(None, calls_share(self._orders.shutdown_timeout))
            finally:
                self._ledger.enter_phase(Phase.STOPPING)
                for task in (starting, announcing):
                    task.cancel()
                # A `startup()` that swallows this must not keep the other workers from their `shutdown()`.
                await asyncio.wait([starting, announcing], timeout=SWALLOW_SECONDS)
                await self._crew.shutdown()
        finally:
            await asyncio.to_thread(portal.close)

    def _tell_breakdown(self, starting: asyncio.Future[None]) -> None:
        if not starting.cancelled() and starting.exception() is not None:
            self._log.error("the workers' start broke down", exc_info=starting.exception())

    def _new_runtime(self, portal: Portal) -> Runtime:
        orders = self._orders
        return Runtime(
            portal,
            orders.name,
            self._stopped,
            TransactionStore(open_engine(orders.url)),
            process=orders.name,
            owns_name=True,
            ledger=self._ledger,
            lease_ms=orders.lease_ms,
            pauses=orders.reconnect.pauses,
        )

    async def _announce(self) -> None:
        """A `startup()` that does not end keeps nobody from watching over the others; who replaces waits longer."""
        await self._crew.tried(RUNNING_SECONDS)
        self._ledger.enter_phase(Phase.RUNNING)
        await self._crew.tried(READY_SECONDS - RUNNING_SECONDS)
        self._say(phase="running")

    # The engine ---------------------------------------------------------------------------------

    async def _opened(self) -> Portal:
        """The engine's thread, with an open engine; while that is away, as often as the strategy says."""
        outage = engine_outage(self._orders.name)
        problem: EngineUnavailable | None = None
        for seconds in self._orders.reconnect.pauses():
            portal = Portal(self._make_service, upkeep=False)
            try:
                await asyncio.shield(asyncio.wrap_future(portal.open(_nothing)))
            except EngineUnavailable as error:
                problem = error
                outage.tell(error)
                await asyncio.sleep(seconds)
            else:
                outage.over()
                return portal
        raise problem or EngineUnavailable("the reconnect strategy allows no attempt")

    def _make_service(self) -> JobService:
        return JobService(open_engine(self._orders.url, own_loop=True), self._orders.name)

    async def _until_soft(self, opening: Coroutine[Any, Any, Portal]) -> Portal | None:
        task = asyncio.ensure_future(opening)

        async def opened() -> None:
            await asyncio.wait([task])

        if await self._stopped.comes_before(opened()):
            task.cancel()
            return None
        return task.result()

    # Life signs and stops -----------------------------------------------------------------------

    async def _turn(self) -> None:
        while True:
            self._turned_at = time.monotonic()
            self._ledger.turn_handlers(self._turned_at)
            await asyncio.sleep(TURN_SECONDS)

    def _stop_soft(self) -> None:
        """Take no new job; what runs may finish."""
        self._in_loop(self._stopped.soft.set)

    def _on_sigterm(self) -> None:
        """Cancel, if the parent says so or it is the second one. Else it came to a whole group, as systemd sends it.

        The parent, who has heard it as well or at least hears of it now, goes through all the stages.
        """
        is_first, self._is_asked = not self._is_asked, True
        if is_first and not self._is_cancelled:
            self._say(asked=True)
            self._stop_soft()
        else:
            self._stop_hard()

    def _stop_hard(self) -> None:
        """Cancel what runs. A handler that blocks the loop hears it as an exception, if it runs Python at all."""
        self._in_loop(self._stopped.soft.set)
        self._in_loop(self._stopped.hard.set)
        if time.monotonic() - self._turned_at > BLOCKED_SECONDS and self._runtime is not None:
            self._turned_at = time.monotonic()
            self._runtime.stop_running()
            raise Interrupted("the process is being stopped")

    def _in_loop(self, act: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # The loop is closed: all has stopped.
            self._loop.call_soon_threadsafe(act)

    # The parent ---------------------------------------------------------------------------------

    def _listen(self) -> None:
        """In a thread of its own: act on what the parent says, until it has gone."""
        while (word := self._heard()) != b"":
            if word == CANCEL:
                self._cancel()
            if word == STOP:
                self._stop_soft()
            if self._runtime is not None and word != CANCEL:
                (self._runtime.stop_fetching if word == STOP else self._runtime.check_flags)()
        self._be_orphaned()

    def _heard(self) -> bytes:
        try:
            return self._control.recv(WORD_BYTES_MAX)
        except OSError:
            return b""

    def _cancel(self) -> None:
        """The main thread must hear it also while a handler blocks it."""
        self._is_cancelled = True
        os.kill(os.getpid(), signal.SIGTERM)

    def _be_orphaned(self) -> None:
        """Nobody keeps the leases any more: stop, give everything back, and in no case stay."""
        try:
            self._log.error("the parent process has gone: this process stops")
            self._cancel()
            if self._runtime is not None:
                self._runtime.stop_fetching()
            time.sleep(self._orders.shutdown_timeout)
        finally:
            os._exit(1)

    def _tell_broken(self, worker: str, problem: str | None) -> None:
        self._say(worker=worker, problem=problem)

    def _say(self, **facts: Any) -> None:
        with suppress(OSError):  # The parent has gone, which the listener finds out.
            self._control.send(orjson.dumps(facts))


async def _nothing(_service: JobService) -> None:
    """Policies and groups are the parent's business."""
