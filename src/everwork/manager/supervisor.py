"""Keeps one process of a manager alive: starts it, starts it again when it has died, replaces it, sees it off."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from everwork.aio.loops import first_of
from everwork.aio.retrying import OUTAGE_SECONDS_MAX
from everwork.manager.process import Process
from everwork.manager.process_handle import ProcessHandle

RESTART_SECONDS: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""How long a process that has died again and again waits for its next start; the first time it does not."""
SETTLED_SECONDS: Final = 60.0
"""A process that has lived for so long starts counting anew."""
POLL_SECONDS: Final = 0.1
QUIET_SECONDS: Final = 2.0
"""A process in which no call runs that may end needs no longer to settle what has ended."""
GRACE_SECONDS: Final = 2.0
EXIT_SECONDS: Final = 1.0
"""What the interpreter itself needs to end is not taken from the workers' time."""
REPLACE_SECONDS: Final = 2.0
"""How long it is not tried again to replace a process when there was no room for another."""
CLEAR_SECONDS: Final = 5.0
"""How long a stop waits for a store that does not answer; what cannot be given back lapses."""


class Supervisor:
    """One process, whoever is it at the time. `spawn` starts one, `clear_up` ends what a dead one has left."""

    def __init__(
        self,
        process: Process,
        patience: float,
        *,
        spawn: Callable[[], ProcessHandle],
        clear_up: Callable[[ProcessHandle], Awaitable[None]],
        log: Any,
    ) -> None:
        self.process = process
        self._patience = patience
        self._spawn = spawn
        self._clear_up = clear_up
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()
        self._deaths = 0
        self._stopping = asyncio.Event()
        self._current: ProcessHandle | None = None
        self.live: list[ProcessHandle] = []
        self.restarts = 0
        self.has_given_up = False
        self.is_unguarded = False
        """A new process runs the program instead of its workers, and so would every other."""
        self.urgent = asyncio.Event()
        self.gone = asyncio.Event()
        """Set when nothing is left and nothing will come: stopped, or given up."""

    def start(self) -> None:
        """Start the process; if that cannot be done now, then later."""
        if not self._launch():
            self._keep(self._launch_later(None))

    def is_current(self, spawned: ProcessHandle) -> bool:
        """Whether a process is the one that works here, not one that is on its way out."""
        return spawned is self._current and not spawned.is_leaving

    def kill(self, spawned: ProcessHandle, verdict: str) -> None:
        """End a process that is beyond help; another takes its place."""
        self._log.error("a process is killed", process=spawned.name, pid=spawned.pid, reason=verdict)
        spawned.kill(verdict)

    async def replace(self, spawned: ProcessHandle, why: str) -> None:
        """Let another process take over, then let this one finish its work and go."""
        if not self.is_current(spawned) or self._stopping.is_set():
            return
        self._log.info("a process is replaced", process=spawned.name, pid=spawned.pid, reason=why)
        if not self._launch():
            await first_of(self._stopping, seconds=REPLACE_SECONDS)
            return
        if await self._has_successor(spawned):
            await self._see_off(spawned)

    async def stop(self) -> None:
        """Stop in stages: let finish, cancel, kill. `urgent` skips the first."""
        self._stopping.set()
        await asyncio.gather(*(self._see_off(spawned) for spawned in list(self.live)))
        while self._tasks:
            await asyncio.wait(self._tasks)
        # Whoever cancels all tasks of a loop has cancelled those, too.
        await asyncio.gather(*(self._bury(spawned) for spawned in list(self.live)))
        self.gone.set()

    # Inside -------------------------------------------------------------------------------------

    def _launch(self) -> bool:
        """Start a process, which is the current one then; False if the machine has no room for it now."""
        try:
            spawned = self._spawn()
        except (OSError, EOFError) as error:  # The latter: of a fork server that has died.
            self._log.error("a process cannot be started, it is tried again", error=str(error))
            return False
        self._current = spawned
        self.live.append(spawned)
        self._log.info("a process starts", process=spawned.name, pid=spawned.pid)
        self._keep(self._attend(spawned))
        return True

    def _keep(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._tell_failure)

    def _tell_failure(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._log.error("a process is not looked after properly", exc_info=task.exception())

    async def _attend(self, spawned: ProcessHandle) -> None:
        """Wait for a process to end, clear up behind it, and start the next one if it was needed."""
        await first_of(spawned.ended, spawned.asked)
        if spawned.is_leaving:
            await spawned.ended.wait()
        if not spawned.ended.is_set():
            self._log.info("a process was told to stop, not by its manager", process=spawned.name, pid=spawned.pid)
            await self._see_off(spawned)
        is_needed = spawned is self._current and not self._stopping.is_set()
        if is_needed and not spawned.is_leaving and not spawned.is_unguarded:
            self._log.error("a process has died", process=spawned.name, pid=spawned.pid, how=spawned.end)
        burying = asyncio.ensure_future(self._bury(spawned))
        if is_needed:
            await self._follow(spawned)
        await burying

    async def _follow(self, spawned: ProcessHandle) -> None:
        """Start the next one, if there is any use in it."""
        self.has_given_up = spawned.has_given_up
        self.is_unguarded = spawned.is_unguarded
        if self.has_given_up or self.is_unguarded:
            self.gone.set()
        else:
            await self._start_again(spawned)

    async def _bury(self, spawned: ProcessHandle) -> None:
        """Clear up behind a dead process. The engine may be away, and nobody waits for it here for ever."""
        clearing = asyncio.ensure_future(self._clear_up(spawned))
        try:
            if not spawned.has_given_up:
                await first_of(self._stopping, seconds=3 * OUTAGE_SECONDS_MAX, work=clearing)
                await asyncio.wait([clearing], timeout=CLEAR_SECONDS)
        finally:
            clearing.cancel()
            clearing.add_done_callback(self._tell_failure)
            if spawned in self.live:
                self.live.remove(spawned)
                spawned.close()

    async def _start_again(self, spawned: ProcessHandle) -> None:
        if time.monotonic() - spawned.started_at > SETTLED_SECONDS:
            self._deaths = 0
        self.restarts += 1
        await self._launch_later(spawned)

    async def _launch_later(self, last: ProcessHandle | None) -> None:
        """Start one after its delay, again and again until it works, unless all stops or somebody else has."""
        is_done = False
        while not is_done:
            delay = RESTART_SECONDS[min(self._deaths, len(RESTART_SECONDS) - 1)]
            self._deaths += 1
            if delay:
                await first_of(self._stopping, seconds=delay)
            is_done = self._stopping.is_set() or self._current is not last or self._launch()

    async def _has_successor(self, spawned: ProcessHandle) -> bool:
        """Wait until another serves as well as this one does; whoever cannot start is started again, ever later."""
        while not spawned.ended.is_set() and not self._stopping.is_set():
            other = self._current
            if other is not None and _serves_like(other, spawned):
                return True
            await first_of(spawned.ended, self._stopping, seconds=POLL_SECONDS)
        return False

    async def _see_off(self, spawned: ProcessHandle) -> None:
        """The four stages of a process's end; its last one has one clock, which runs from its last call on."""
        spawned.stop_softly()
        await self._let_finish(spawned)
        if not spawned.is_past_its_calls:
            spawned.cancel()
        await first_of(spawned.ended, seconds=self.process.shutdown_timeout + EXIT_SECONDS)
        if not spawned.ended.is_set():
            self.kill(
                spawned,
                f"was killed: it did not stop within its shutdown_timeout of {self.process.shutdown_timeout:g} s",
            )
            await spawned.ended.wait()

    async def _let_finish(self, spawned: ProcessHandle) -> None:
        """Wait while calls run that may still end, at most as long as one may take."""
        now = busy_at = time.monotonic()
        ends = now + self._patience + GRACE_SECONDS
        while now < ends and now < busy_at + QUIET_SECONDS and not spawned.is_past_its_calls:
            await first_of(spawned.ended, self.urgent, seconds=POLL_SECONDS)
            if spawned.ended.is_set() or self.urgent.is_set():
                return
            now = time.monotonic()
            busy_at = now if spawned.is_busy else busy_at


def _serves_like(other: ProcessHandle, spawned: ProcessHandle) -> bool:
    """Whether a process can take the place of another."""
    is_ready = other is not spawned and other.ready.is_set() and not other.ended.is_set()
    return is_ready and other.broken.keys() <= spawned.broken.keys()
