"""Finds processes that hang, do not respond, or are due for recycling. It calls no engine, so nothing delays it."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from everwork.aio.loops import BackgroundLoop
from everwork.manager.process_handle import ProcessHandle
from everwork.manager.supervisor import Supervisor
from everwork.runtime.ledger import Entry, Phase, SlotState

WATCH_SECONDS: Final = 0.25
HUNG_SECONDS: Final = 1.4
"""How long after its timeout a call counts as hung: its own process has a second to end it and report the timeout."""
SILENT_SECONDS: Final = 30.0
MEMORY_SECONDS: Final = 5.0
YOUNG_SECONDS: Final = 60.0
"""A process younger than this is not replaced for its memory use: its successor would use as much."""
GAP_SECONDS: Final = 2.0
"""A watchdog that has not run for this long was suspended or starved, and the processes that it watches may have
been as well.
"""
AWAKE_SECONDS: Final = 3.0
"""After such a gap, every process gets this long to recover."""
GAPS_MAX: Final = 100


class Gaps:
    """Times when the watchdog itself did not run; they do not count against a call."""

    def __init__(self) -> None:
        self._gaps: deque[tuple[float, float]] = deque(maxlen=GAPS_MAX)
        self._turned_at: float | None = None
        self.awake_at = -math.inf

    def turn(self, now: float) -> None:
        """Record that the watchdog is running."""
        if self._turned_at is not None and now - self._turned_at > GAP_SECONDS:
            self._gaps.append((self._turned_at, now))
            self.awake_at = now
        self._turned_at = now

    def since(self, begun_at: float) -> float:
        """Seconds lost in gaps since a call began."""
        return sum(end - max(start, begun_at) for start, end in self._gaps if end > begun_at)


class Watchdog:
    """Checks every process of a manager, four times a second."""

    def __init__(self, supervisors: Sequence[Supervisor], log: Any) -> None:
        self._supervisors = supervisors
        self._log = log
        self._ending: dict[str, asyncio.Task[None]] = {}
        """Processes that are being killed; they are not checked."""
        self._leaving: dict[str, asyncio.Task[None]] = {}
        """Processes that are being replaced; still checked, because a call can hang in them as well."""
        self._recycling: asyncio.Task[None] | None = None
        self._to_replace: set[str] = set()
        """Processes for which a restart was requested."""
        self._memory: dict[str, tuple[float, int | None]] = {}
        self._running_since: dict[str, float] = {}
        self._gaps = Gaps()
        self.loop = BackgroundLoop("everwork-watch", self.tick, WATCH_SECONDS)

    async def tick(self) -> bool:
        """Check every process once."""
        now = time.monotonic()
        self._gaps.turn(now)
        live = [(supervisor, handle) for supervisor in self._supervisors for handle in supervisor.live]
        self._note_running([handle for _, handle in live], now)
        self._to_replace &= {handle.name for supervisor, handle in live if supervisor.is_current(handle)}
        for supervisor, handle in live:
            if not handle.ended.is_set() and handle.name not in self._ending:
                self._check(supervisor, handle, now)
        return False

    def replace_soon(self, name: str) -> None:
        """Replace a process as soon as possible."""
        self._to_replace.add(name)

    def is_replaced(self, name: str) -> bool:
        """Whether a process will be replaced."""
        return name in self._to_replace or name in self._leaving

    def memory_of(self, handle: ProcessHandle) -> int | None:
        """How much memory a process uses, at most a few seconds old."""
        now = time.monotonic()
        at, size = self._memory.get(handle.name, (0.0, None))
        if now - at > MEMORY_SECONDS:
            size = handle.memory_bytes
            self._memory = {name: one for name, one in self._memory.items() if now - one[0] < 2 * MEMORY_SECONDS}
            self._memory[handle.name] = (now, size)
        return size

    def _note_running(self, live: Sequence[ProcessHandle], now: float) -> None:
        running = [one.name for one in live if one.ledger.vitals().phase is Phase.RUNNING]
        self._running_since = {name: self._running_since.get(name, now) for name in running}

    def _check(self, supervisor: Supervisor, handle: ProcessHandle, now: float) -> None:
        entries = handle.entries()
        overdue = self._overdue(handle, entries, now)
        if overdue and not handle.stuck.is_set():
            self._start_task(self._ending, handle, self._end_hung(supervisor, handle, overdue))
        elif (why := self._silence(handle, entries, now)) is not None:
            supervisor.kill(handle, why)
        elif supervisor.is_current(handle) and handle.name not in self._leaving and is_sole(handle, supervisor.live):
            self._consider_replacing(supervisor, handle, entries, now)

    def _overdue(self, handle: ProcessHandle, entries: Sequence[Entry], now: float) -> list[Entry]:
        """The calls that hang. Calls cancelled with their process get its shutdown timeout to end."""
        self._schedule_check(entries, now)
        if now < self._gaps.awake_at + AWAKE_SECONDS or handle.cancelled_at < math.inf:
            return []
        at = now - HUNG_SECONDS
        overdue = [entry for entry in entries if entry.is_overdue(at)]
        return [entry for entry in overdue if entry.is_overdue(at - self._gaps.since(entry.begun_at))]

    def _schedule_check(self, entries: Sequence[Entry], now: float) -> None:
        """Check again when a call would count as hung, if that is before the next tick."""
        begun = (entry.begun_at + entry.timeout for entry in entries if entry.state is SlotState.BEGUN)
        due = [at for ends in begun if now < (at := ends + HUNG_SECONDS) <= now + WATCH_SECONDS]
        if due:
            asyncio.get_running_loop().call_later(min(due) - now + 0.001, self.loop.wake)

    async def _end_hung(self, supervisor: Supervisor, handle: ProcessHandle, overdue: Sequence[Entry]) -> None:
        """Record where a process is stuck, and kill it; a process that is being stopped moves to its next stage."""
        stack = await handle.stack()
        still = {(entry.key, entry.attempt) for entry in self._overdue(handle, handle.entries(), time.monotonic())}
        stuck = [entry for entry in overdue if (entry.key, entry.attempt) in still]
        if not stuck or handle.ended.is_set():
            return  # It has recovered in the meantime.
        for entry in stuck:
            handle.hung_attempts[entry.key, entry.attempt] = stack
            self._log_hang(handle, entry, stack)
        if handle.is_leaving:
            handle.stuck.set()
            return
        supervisor.kill(handle, "was killed: another job had blocked it past its timeout")

    def _log_hang(self, handle: ProcessHandle, entry: Entry, stack: str) -> None:
        worker = next((spec.id for spec in handle.workers if spec.index == entry.worker), None)
        self._log.error(
            "handler is stuck past its timeout and blocks its process",
            process=handle.name,
            worker=worker,
            key=entry.key,
            attempt=entry.attempt,
            stack=stack,
        )

    def _silence(self, handle: ProcessHandle, entries: Sequence[Entry], now: float) -> str | None:
        """Why a process counts as dead although it has not exited: only a call may block an event loop."""
        since = self._running_since.get(handle.name)
        if since is None or any(entry.state is SlotState.BEGUN for entry in entries):
            return None
        # A process that has just started, or was suspended with its parent, need not have shown a sign of life yet.
        vitals, since = handle.ledger.vitals(), max(since, self._gaps.awake_at)
        if now - max(vitals.engine_at, since) > SILENT_SECONDS:
            return f"was killed: it did not respond for {SILENT_SECONDS:g} s"
        if now - max(vitals.handlers_at, since) > SILENT_SECONDS:
            return f"was killed: its event loop was blocked for {SILENT_SECONDS:g} s outside a call"
        return None

    def _consider_replacing(
        self, supervisor: Supervisor, handle: ProcessHandle, entries: Sequence[Entry], now: float
    ) -> None:
        """Recycle one process at a time; processes that hang or have a restart request are replaced immediately."""
        if any(entry.state is SlotState.HUNG for entry in entries):
            self._start_task(self._leaving, handle, supervisor.replace(handle, "a handler in it ignores its timeout"))
            return
        if handle.name in self._to_replace:
            self._start_task(self._leaving, handle, supervisor.replace(handle, "a restart was requested"))
            return
        is_free = self._recycling is None or self._recycling.done()
        if is_free and (why := self._recycle_reason(supervisor, handle, now)) is not None:
            self._recycling = self._start_task(self._leaving, handle, supervisor.replace(handle, why))

    def _recycle_reason(self, supervisor: Supervisor, handle: ProcessHandle, now: float) -> str | None:
        """Why a process is due for recycling; None if it is not."""
        recycle = supervisor.process.recycle
        if handle.name not in self._running_since:
            return None
        if recycle.jobs is not None and (ended := handle.ledger.vitals().ended) >= recycle.jobs:
            return f"it has run {ended:,} jobs"
        if recycle.age is not None and now - handle.started_at >= recycle.age:
            return f"it has run for {recycle.age:g} s"
        is_young = now - handle.started_at < YOUNG_SECONDS  # A new one would use as much.
        if recycle.memory is not None and not is_young and (size := self.memory_of(handle) or 0) >= recycle.memory:
            return f"it uses {size:,} bytes of memory"
        return None

    def _start_task(self, tasks: dict[str, asyncio.Task[None]], handle: ProcessHandle, work: Any) -> asyncio.Task[None]:
        """Start a long-running action on a process."""
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        tasks[handle.name] = task
        task.add_done_callback(lambda _: self._on_task_done(tasks, handle, task))
        return task

    def _on_task_done(
        self, tasks: dict[str, asyncio.Task[None]], handle: ProcessHandle, task: asyncio.Task[None]
    ) -> None:
        tasks.pop(handle.name, None)
        if not task.cancelled() and task.exception() is not None:
            self._log.error("process could not be stopped", process=handle.name, exc_info=task.exception())


def is_sole(handle: ProcessHandle, live: Sequence[ProcessHandle]) -> bool:
    """Whether no predecessor is waiting for this process to be ready: repeated hangs must not pile up successors."""
    return all(one is handle or one.is_leaving or one.ended.is_set() for one in live)
