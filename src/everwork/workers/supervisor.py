"""Keeps one process of a manager alive: starts it, starts it again when it has died, replaces it, sees it off."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from everwork.service.loops import AWAY_SECONDS_MAX
from everwork.workers.process import Process
from everwork.workers.spawned import Spawned

RESTART_SECONDS: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""How long a process that has died again and again waits for its next start; the first time it does not."""
SETTLED_SECONDS: Final = 60.0
"""A process that has lived for so long starts counting anew."""
POLL_SECONDS: Final = 0.1
QUIET_SECONDS: Final = 2.0
"""A process in which no call runs that may end needs no longer to settle what has ended."""
GRACE_SECONDS: Final = 2.0
READY_SECONDS: Final = 30.0
REPLACE_SECONDS: Final = 2.0
"""How long it is not tried again to replace a process when there was no room for another."""


class Supervisor:
    """One process, whoever is it at the time. `spawn` starts one, `clear_up` ends what a dead one has left."""

    def __init__(
        self,
        process: Process,
        patience: float,
        spawn: Callable[[], Spawned],
        clear_up: Callable[[Spawned], Awaitable[None]],
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
        self._current: Spawned | None = None
        self.live: list[Spawned] = []
        self.restarts = 0
        self.has_given_up = False
        self.urgent = asyncio.Event()
        self.gone = asyncio.Event()
        """Set when nothing is left and nothing will come: stopped, or given up."""

    def start(self) -> None:
        """Start the process; if that cannot be done now, then later."""
        if not self._launch():
            self._keep(self._launch_later(None))

    def is_current(self, spawned: Spawned) -> bool:
        """Whether a process is the one that works here, not one that is on its way out."""
        return spawned is self._current and not spawned.is_leaving

    def kill(self, spawned: Spawned, verdict: str) -> None:
        """End a process that is beyond help; another takes its place."""
        self._log.error("a process is killed", process=spawned.name, pid=spawned.pid, reason=verdict)
        spawned.kill(verdict)

    async def replace(self, spawned: Spawned, why: str) -> None:
        """Let another process take over, then let this one finish its work and go."""
        if not self.is_current(spawned) or self._stopping.is_set():
            return
        self._log.info("a process is replaced", process=spawned.name, pid=spawned.pid, reason=why)
        if not self._launch():
            await _first(self._stopping, seconds=REPLACE_SECONDS)
            return
        successor = self._current
        if successor is not None:
            await _first(successor.ready, successor.ended, spawned.ended, seconds=READY_SECONDS)
        await self._see_off(spawned)

    async def stop(self) -> None:
        """Stop in stages: let finish, cancel, kill. `urgent` skips the first."""
        self._stopping.set()
        await asyncio.gather(*(self._see_off(spawned) for spawned in list(self.live)))
        while self._tasks:
            await asyncio.wait(self._tasks)
        self.gone.set()

    # Inside -------------------------------------------------------------------------------------

    def _launch(self) -> bool:
        """Start a process, which is the current one then; False if the machine has no room for it now."""
        try:
            spawned = self._spawn()
        except OSError as error:
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

    async def _attend(self, spawned: Spawned) -> None:
        """Wait for a process to end, clear up behind it, and start the next one if it was needed."""
        await spawned.ended.wait()
        is_needed = spawned is self._current and not self._stopping.is_set()
        if is_needed and not spawned.is_leaving:
            self._log.error("a process has died", process=spawned.name, pid=spawned.pid, how=spawned.end)
        clearing = asyncio.ensure_future(self._clear_up(spawned))
        if is_needed and spawned.has_given_up:
            self.has_given_up = True
            self.gone.set()
        elif is_needed:
            await self._start_again(spawned)
        # The engine may be away, and nobody waits for it here for ever.
        await asyncio.wait([clearing], timeout=3 * AWAY_SECONDS_MAX)
        self.live.remove(spawned)
        spawned.close()

    async def _start_again(self, spawned: Spawned) -> None:
        if time.monotonic() - spawned.started_at > SETTLED_SECONDS:
            self._deaths = 0
        self.restarts += 1
        await self._launch_later(spawned)

    async def _launch_later(self, last: Spawned | None) -> None:
        """Start one after its delay, again and again until it works, unless all stops or somebody else has."""
        is_done = False
        while not is_done:
            delay = RESTART_SECONDS[min(self._deaths, len(RESTART_SECONDS) - 1)]
            self._deaths += 1
            if delay:
                await _first(self._stopping, seconds=delay)
            is_done = self._stopping.is_set() or self._current is not last or self._launch()

    async def _see_off(self, spawned: Spawned) -> None:
        """The four stages of a process's end."""
        spawned.stop_softly()
        left = self.process.shutdown_timeout
        if await self._let_finish(spawned):
            left = min(left, GRACE_SECONDS)  # Its `shutdown()` has had its time already.
        if not spawned.ended.is_set():
            spawned.cancel()
            await _first(spawned.ended, seconds=left)
        if not spawned.ended.is_set():
            self.kill(
                spawned,
                f"was killed: it did not stop within its shutdown_timeout of {self.process.shutdown_timeout:g} s",
            )
            await spawned.ended.wait()

    async def _let_finish(self, spawned: Spawned) -> bool:
        """Wait while calls run that may still end, at most as long as one may take; whether it shut down too long."""
        now = busy_at = time.monotonic()
        ends = now + self._patience + GRACE_SECONDS
        while not spawned.ended.is_set() and not self.urgent.is_set() and now < ends:
            await _first(spawned.ended, self.urgent, seconds=POLL_SECONDS)
            now = time.monotonic()
            busy_at = now if spawned.is_busy else busy_at
            # With nothing but calls that never end, nothing is gained by waiting for its `shutdown()`.
            is_hung = spawned.is_hung
            if now - busy_at > QUIET_SECONDS + (0 if is_hung else self.process.shutdown_timeout):
                return not is_hung
        return False


async def _first(*events: asyncio.Event, seconds: float) -> None:
    """Wait for one of the events, at most so long."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waiting:
            one.cancel()
            with suppress(asyncio.CancelledError):
                await one
