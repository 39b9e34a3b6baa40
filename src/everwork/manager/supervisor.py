"""Keeps one process of a manager running: starts it, restarts it when it has died, replaces it, shuts it down."""

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
"""Delays before the restarts of a process that keeps dying; the first restart is immediate."""
SETTLED_SECONDS: Final = 60.0
"""Once a process has run this long, its count of deaths is reset."""
POLL_SECONDS: Final = 0.1
QUIET_SECONDS: Final = 2.0
"""A process whose calls have all ended, or are hung, needs at most this long to settle outcomes."""
GRACE_SECONDS: Final = 2.0
EXIT_SECONDS: Final = 1.0
"""The time that the interpreter needs to exit; not taken from the workers' shutdown timeout."""
REPLACE_SECONDS: Final = 2.0
"""Delay before the replacement of a process is tried again, if no other process could be started."""
CLEAR_SECONDS: Final = 5.0
"""How long a stop waits for a store that does not reply; leases that cannot be released expire."""


class Supervisor:
    """One process and its successors. `spawn` starts one, `clean_up` settles the attempts of a dead one."""

    def __init__(
        self,
        process: Process,
        call_timeout: float,
        *,
        spawn: Callable[[], ProcessHandle],
        clean_up: Callable[[ProcessHandle], Awaitable[None]],
        log: Any,
    ) -> None:
        self.process = process
        self._call_timeout = call_timeout
        self._spawn = spawn
        self._clean_up = clean_up
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()
        self._deaths = 0
        self._stopping = asyncio.Event()
        self._current: ProcessHandle | None = None
        self.live: list[ProcessHandle] = []
        self.restarts = 0
        self.has_given_up = False
        self.is_unguarded = False
        """Whether new processes run the program again instead of their workers; see `UNGUARDED_TEXT`."""
        self.urgent = asyncio.Event()
        """Set to cancel running calls without waiting for them."""
        self.immediate = asyncio.Event()
        """Set to kill processes that have not exited."""
        self.gone = asyncio.Event()
        """Set when no process is left and none will be started: stopped, or given up."""

    def start(self) -> None:
        """Start the process, and keep trying if that fails."""
        if not self._launch():
            self._start_task(self._launch_later(None))

    def is_current(self, handle: ProcessHandle) -> bool:
        """Whether a process is the current one, not one that is being stopped."""
        return handle is self._current and not handle.is_leaving

    def kill(self, handle: ProcessHandle, reason: str) -> None:
        """Kill a process that does not recover; another one replaces it."""
        self._log.error("killing process", process=handle.name, pid=handle.pid, reason=reason)
        handle.kill(reason)

    async def replace(self, handle: ProcessHandle, why: str) -> None:
        """Start another process; when it is ready, let this one finish its jobs and exit."""
        if not self.is_current(handle) or self._stopping.is_set():
            return
        self._log.info("replacing process", process=handle.name, pid=handle.pid, reason=why)
        if not self._launch():
            await first_of(self._stopping, seconds=REPLACE_SECONDS)
            return
        if await self._has_successor(handle):
            await self._shut_down(handle)

    async def stop(self) -> None:
        """Stop in stages: let finish, cancel, kill. `urgent` skips the first, `immediate` all but the last."""
        self._stopping.set()
        await asyncio.gather(*(self._shut_down(handle) for handle in list(self.live)))
        while self._tasks:
            await asyncio.wait(self._tasks)
        # If all tasks of the loop were cancelled, these were, too.
        await asyncio.gather(*(self._clean_up_after(handle) for handle in list(self.live)))
        self.gone.set()

    # Internals ----------------------------------------------------------------------------------

    def _launch(self) -> bool:
        """Start a process and make it the current one; False if the machine cannot start one now."""
        try:
            handle = self._spawn()
        except (OSError, EOFError) as error:  # EOFError: the fork server has died.
            self._log.error("process could not be started, trying again", error=str(error))
            return False
        self._current = handle
        self.live.append(handle)
        self._log.info("process started", process=handle.name, pid=handle.pid)
        self._start_task(self._supervise(handle))
        return True

    def _start_task(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._log_failure)

    def _log_failure(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._log.error("supervision task failed", exc_info=task.exception())

    async def _supervise(self, handle: ProcessHandle) -> None:
        """Wait for a process to end, clean up after it, and start the next one if it is needed."""
        await first_of(handle.ended, handle.stop_requested)
        if handle.is_leaving:
            await handle.ended.wait()
        if not handle.ended.is_set():
            self._log.info(
                "process received a stop signal that its manager did not send", process=handle.name, pid=handle.pid
            )
            await self._shut_down(handle)
        is_needed = handle is self._current and not self._stopping.is_set()
        if is_needed and not handle.is_leaving and not handle.is_unguarded:
            facts = {"process": handle.name, "pid": handle.pid, "how": handle.end_text}
            self._log.error("process exited" if handle.has_given_up else "process died, starting another", **facts)
        cleanup = asyncio.ensure_future(self._clean_up_after(handle))
        if is_needed:
            await self._start_next(handle)
        await cleanup

    async def _start_next(self, handle: ProcessHandle) -> None:
        """Start the next process, unless it would end in the same way."""
        self.has_given_up = handle.has_given_up
        self.is_unguarded = handle.is_unguarded
        if self.has_given_up or self.is_unguarded:
            self.gone.set()
        else:
            await self._start_again(handle)

    async def _clean_up_after(self, handle: ProcessHandle) -> None:
        """Clean up after a dead process, for a limited time: the engine may be unavailable."""
        cleanup = asyncio.ensure_future(self._clean_up(handle))
        try:
            if not handle.has_given_up:
                await first_of(self._stopping, seconds=3 * OUTAGE_SECONDS_MAX, work=cleanup)
                await asyncio.wait([cleanup], timeout=CLEAR_SECONDS)
        finally:
            cleanup.cancel()
            cleanup.add_done_callback(self._log_failure)
            if handle in self.live:
                self.live.remove(handle)
                handle.close()

    async def _start_again(self, handle: ProcessHandle) -> None:
        if time.monotonic() - handle.started_at > SETTLED_SECONDS:
            self._deaths = 0
        self.restarts += 1
        await self._launch_later(handle)

    async def _launch_later(self, last: ProcessHandle | None) -> None:
        """Start a process after a delay; retry until one has started, here or in another task, or until stopped."""
        is_done = False
        while not is_done:
            delay = RESTART_SECONDS[min(self._deaths, len(RESTART_SECONDS) - 1)]
            self._deaths += 1
            if delay:
                await first_of(self._stopping, seconds=delay)
            is_done = self._stopping.is_set() or self._current is not last or self._launch()

    async def _has_successor(self, handle: ProcessHandle) -> bool:
        """Wait until another process can replace this one; a failed start is retried with increasing delays."""
        while not handle.ended.is_set() and not self._stopping.is_set():
            other = self._current
            if other is not None and _can_replace(other, handle):
                return True
            await first_of(handle.ended, self._stopping, seconds=POLL_SECONDS)
        return False

    async def _shut_down(self, handle: ProcessHandle) -> None:
        """Stop a process in four stages; the time limit of the last stage starts when its last call ends."""
        handle.stop_softly()
        await self._let_finish(handle)
        if not handle.is_past_its_calls:
            handle.cancel()
        seconds = self.process.shutdown_timeout
        await first_of(handle.ended, self.immediate, seconds=seconds + EXIT_SECONDS)
        if not handle.ended.is_set():
            late = f"it did not stop within its shutdown_timeout of {seconds:g} s"
            self.kill(handle, f"was killed: {'a third stop was requested' if self.immediate.is_set() else late}")
            await handle.ended.wait()

    async def _let_finish(self, handle: ProcessHandle) -> None:
        """Wait for running calls, at most for the longest timeout, or until one of them blocks the process."""
        now = busy_at = time.monotonic()
        ends = now + self._call_timeout + GRACE_SECONDS
        while now < ends and now < busy_at + QUIET_SECONDS and not handle.is_past_its_calls:
            await first_of(handle.ended, handle.stuck, self.urgent, seconds=POLL_SECONDS)
            if handle.ended.is_set() or handle.stuck.is_set() or self.urgent.is_set():
                return
            now = time.monotonic()
            busy_at = now if handle.is_busy else busy_at


def _can_replace(other: ProcessHandle, handle: ProcessHandle) -> bool:
    """Whether a process can replace another: it is ready, and no worker fails only in the new one."""
    is_ready = other is not handle and other.ready.is_set() and not other.ended.is_set()
    return is_ready and other.broken.keys() <= handle.broken.keys()
