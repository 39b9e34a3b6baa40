"""Finds processes that hang, are silent, or have served long enough. It asks no engine, so that nothing delays it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

from everwork.service.loops import BackgroundLoop
from everwork.workers.ledger import Entry, Phase, SlotState
from everwork.workers.spawned import Spawned
from everwork.workers.supervisor import Supervisor

WATCH_SECONDS: Final = 0.25
HUNG_SECONDS: Final = 1.2
"""How long after its time a call may take to end: its own process has a second to make it, and to say so."""
SILENT_SECONDS: Final = 30.0
MEMORY_SECONDS: Final = 5.0


class Watch:
    """Looks at every process of a manager, four times a second."""

    def __init__(self, supervisors: Sequence[Supervisor], log: Any) -> None:
        self._supervisors = supervisors
        self._log = log
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._replacing: asyncio.Task[None] | None = None
        self._memory: dict[str, tuple[float, int | None]] = {}
        self.loop = BackgroundLoop("everwork-watch", self.tick, WATCH_SECONDS)

    async def tick(self) -> bool:
        """One look at everybody."""
        now = time.monotonic()
        for supervisor in self._supervisors:
            for spawned in list(supervisor.live):
                if not spawned.ended.is_set() and spawned.name not in self._tasks:
                    self._look_at(supervisor, spawned, now)
        return False

    def memory_of(self, spawned: Spawned) -> int | None:
        """How much memory a process held, a few seconds ago at most."""
        now = time.monotonic()
        at, size = self._memory.get(spawned.name, (0.0, None))
        if now - at > MEMORY_SECONDS:
            size = spawned.memory_bytes
            self._memory = {name: one for name, one in self._memory.items() if now - one[0] < 2 * MEMORY_SECONDS}
            self._memory[spawned.name] = (now, size)
        return size

    def _look_at(self, supervisor: Supervisor, spawned: Spawned, now: float) -> None:
        entries = spawned.entries()
        overdue = [entry for entry in entries if entry.is_overdue(now - HUNG_SECONDS)]
        if overdue:
            self._do(spawned, self._end_hung(supervisor, spawned, overdue))
        elif (why := _silence(spawned, entries, now)) is not None:
            supervisor.kill(spawned, why)
        elif supervisor.is_current(spawned) and spawned.ready.is_set():
            self._consider_replacing(supervisor, spawned, entries, now)

    async def _end_hung(self, supervisor: Supervisor, spawned: Spawned, overdue: Sequence[Entry]) -> None:
        """Write down where it is stuck, and end it."""
        stack = await spawned.stack()
        now = time.monotonic()
        stuck = {(entry.key, entry.attempt) for entry in spawned.entries() if entry.is_overdue(now - HUNG_SECONDS)}
        stuck &= {(entry.key, entry.attempt) for entry in overdue}
        if not stuck or spawned.ended.is_set():
            return  # It has come round at the last moment.
        for entry in overdue:
            if (entry.key, entry.attempt) in stuck:
                where = f"; it was stuck here:\n{stack}" if stack else ""
                spawned.culprits[entry.key, entry.attempt] = (
                    f"timed out after {entry.timeout:g} s and blocked its process, which was killed{where}"
                )
                self._log_hung(spawned, entry, stack)
        supervisor.kill(spawned, "was killed: another job in it had blocked it past its time")

    def _log_hung(self, spawned: Spawned, entry: Entry, stack: str) -> None:
        worker = next((post.id for post in spawned.posts if post.index == entry.worker), None)
        self._log.error(
            "a call hangs", process=spawned.name, worker=worker, key=entry.key, attempt=entry.attempt, stack=stack
        )

    def _consider_replacing(
        self, supervisor: Supervisor, spawned: Spawned, entries: Sequence[Entry], now: float
    ) -> None:
        """One at a time over the whole manager, but for those that hang: they are no use to anybody."""
        if any(entry.state is SlotState.HUNG for entry in entries):
            self._do(spawned, supervisor.replace(spawned, "a call in it does not end"))
            return
        if self._replacing is None or self._replacing.done():
            why = self._is_spent(supervisor, spawned, now)
            if why is not None:
                self._replacing = self._do(spawned, supervisor.replace(spawned, why))

    def _is_spent(self, supervisor: Supervisor, spawned: Spawned, now: float) -> str | None:
        """Why a process has served long enough; None: it has not."""
        recycle = supervisor.process.recycle
        if recycle.jobs is not None and (ended := spawned.ledger.vitals().ended) >= recycle.jobs:
            return f"it has run {ended:,} jobs"
        if recycle.age is not None and now - spawned.started_at >= recycle.age:
            return f"it is {recycle.age:g} s old"
        if recycle.memory is not None and (size := self.memory_of(spawned) or 0) >= recycle.memory:
            return f"it holds {size:,} bytes of memory"
        return None

    def _do(self, spawned: Spawned, work: Any) -> asyncio.Task[None]:
        """Let something be done to a process that takes a while; it is not looked at meanwhile."""
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks[spawned.name] = task
        task.add_done_callback(lambda _: self._tasks.pop(spawned.name, None))
        return task


def _silence(spawned: Spawned, entries: Sequence[Entry], now: float) -> str | None:
    """Why a process is taken for dead although it has not ended: neither of its loops may be still without a call."""
    vitals = spawned.ledger.vitals()
    if vitals.phase is not Phase.RUNNING or not spawned.ready.is_set():
        return None
    if any(entry.state is SlotState.BEGUN for entry in entries):
        return None
    # One that has just started has given no sign yet.
    if now - max(vitals.engine_at, spawned.ready_at) > SILENT_SECONDS:
        return f"was killed: it gave no sign of life for {SILENT_SECONDS:g} s"
    if now - max(vitals.handlers_at, spawned.ready_at) > SILENT_SECONDS:
        return f"was killed: its event loop was blocked for {SILENT_SECONDS:g} s outside of a call"
    return None
