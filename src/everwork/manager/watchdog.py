"""Finds processes that hang, are silent, or have served long enough. It asks no engine, so that nothing delays it."""

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
"""How long after its time a call may take to end: its own process has a second to make it, and to say so."""
SILENT_SECONDS: Final = 30.0
MEMORY_SECONDS: Final = 5.0
YOUNG_SECONDS: Final = 60.0
"""A process that is too large from its start on is not replaced again and again."""
GAP_SECONDS: Final = 2.0
"""Who has not looked for so long was stopped, or had no time; so may have been those that it looks at."""
AWAKE_SECONDS: Final = 3.0
"""After such a gap everybody gets so long to come round."""
GAPS_MAX: Final = 100


class Gaps:
    """When the watch itself stood still: time that is nobody's fault."""

    def __init__(self) -> None:
        self._gaps: deque[tuple[float, float]] = deque(maxlen=GAPS_MAX)
        self._turned_at: float | None = None
        self.awake_at = -math.inf

    def turn(self, now: float) -> None:
        """It looks again."""
        if self._turned_at is not None and now - self._turned_at > GAP_SECONDS:
            self._gaps.append((self._turned_at, now))
            self.awake_at = now
        self._turned_at = now

    def since(self, begun_at: float) -> float:
        """How much was lost since a call began."""
        return sum(end - max(start, begun_at) for start, end in self._gaps if end > begun_at)


class Watchdog:
    """Looks at every process of a manager, four times a second."""

    def __init__(self, supervisors: Sequence[Supervisor], log: Any) -> None:
        self._supervisors = supervisors
        self._log = log
        self._ending: dict[str, asyncio.Task[None]] = {}
        """Who is being killed, and is not looked at meanwhile."""
        self._leaving: dict[str, asyncio.Task[None]] = {}
        """Who is being replaced: still looked at, for a call may hang in it as well."""
        self._recycling: asyncio.Task[None] | None = None
        self._unwanted: set[str] = set()
        """Of whom somebody wishes that they be replaced."""
        self._memory: dict[str, tuple[float, int | None]] = {}
        self._running_since: dict[str, float] = {}
        self._gaps = Gaps()
        self.loop = BackgroundLoop("everwork-watch", self.tick, WATCH_SECONDS)

    async def tick(self) -> bool:
        """One look at everybody."""
        now = time.monotonic()
        self._gaps.turn(now)
        live = [(supervisor, spawned) for supervisor in self._supervisors for spawned in supervisor.live]
        self._note_running([spawned for _, spawned in live], now)
        self._unwanted &= {spawned.name for supervisor, spawned in live if supervisor.is_current(spawned)}
        for supervisor, spawned in live:
            if not spawned.ended.is_set() and spawned.name not in self._ending:
                self._look_at(supervisor, spawned, now)
        return False

    def replace_soon(self, name: str) -> None:
        """Let another take the place of a process, as soon as that can be done."""
        self._unwanted.add(name)

    def is_replaced(self, name: str) -> bool:
        """Whether another is to take the place of a process."""
        return name in self._unwanted or name in self._leaving

    def memory_of(self, spawned: ProcessHandle) -> int | None:
        """How much memory a process held, a few seconds ago at most."""
        now = time.monotonic()
        at, size = self._memory.get(spawned.name, (0.0, None))
        if now - at > MEMORY_SECONDS:
            size = spawned.memory_bytes
            self._memory = {name: one for name, one in self._memory.items() if now - one[0] < 2 * MEMORY_SECONDS}
            self._memory[spawned.name] = (now, size)
        return size

    def _note_running(self, live: Sequence[ProcessHandle], now: float) -> None:
        running = [one.name for one in live if one.ledger.vitals().phase is Phase.RUNNING]
        self._running_since = {name: self._running_since.get(name, now) for name in running}

    def _look_at(self, supervisor: Supervisor, spawned: ProcessHandle, now: float) -> None:
        entries = spawned.entries()
        overdue = self._overdue(spawned, entries, now)
        if overdue:
            self._do(self._ending, spawned, self._end_hung(supervisor, spawned, overdue))
        elif (why := self._silence(spawned, entries, now)) is not None:
            supervisor.kill(spawned, why)
        elif supervisor.is_current(spawned) and spawned.name not in self._leaving and is_sole(spawned, supervisor.live):
            self._consider_replacing(supervisor, spawned, entries, now)

    def _overdue(self, spawned: ProcessHandle, entries: Sequence[Entry], now: float) -> list[Entry]:
        """The calls that hang. What was cancelled within its time with its process has that one's time to end."""
        self._look_in_time(entries, now)
        if now < self._gaps.awake_at + AWAKE_SECONDS:
            return []
        at = min(now - HUNG_SECONDS, spawned.cancelled_at)
        overdue = [entry for entry in entries if entry.is_overdue(at)]
        return [entry for entry in overdue if entry.is_overdue(at - self._gaps.since(entry.begun_at))]

    def _look_in_time(self, entries: Sequence[Entry], now: float) -> None:
        """Look again as soon as a call is to be judged, if that is before the next turn."""
        begun = (entry.begun_at + entry.timeout for entry in entries if entry.state is SlotState.BEGUN)
        due = [at for ends in begun if now < (at := ends + HUNG_SECONDS) <= now + WATCH_SECONDS]
        if due:
            asyncio.get_running_loop().call_later(min(due) - now + 0.001, self.loop.wake)

    async def _end_hung(self, supervisor: Supervisor, spawned: ProcessHandle, overdue: Sequence[Entry]) -> None:
        """Write down where it is stuck, and end it."""
        stack = await spawned.stack()
        still = {(entry.key, entry.attempt) for entry in self._overdue(spawned, spawned.entries(), time.monotonic())}
        stuck = [entry for entry in overdue if (entry.key, entry.attempt) in still]
        if not stuck or spawned.ended.is_set():
            return  # It has come round at the last moment.
        where = f"; it was stuck here:\n{stack}" if stack else ""
        for entry in stuck:
            spawned.culprits[entry.key, entry.attempt] = f" and blocked its process, which was killed{where}"
            self._log_hung(spawned, entry, stack)
        supervisor.kill(spawned, "was killed: another job in it had blocked it past its time")

    def _log_hung(self, spawned: ProcessHandle, entry: Entry, stack: str) -> None:
        worker = next((post.id for post in spawned.posts if post.index == entry.worker), None)
        self._log.error(
            "a call hangs", process=spawned.name, worker=worker, key=entry.key, attempt=entry.attempt, stack=stack
        )

    def _silence(self, spawned: ProcessHandle, entries: Sequence[Entry], now: float) -> str | None:
        """Why a process is taken for dead although it has not ended: no loop of it may be still without a call."""
        since = self._running_since.get(spawned.name)
        if since is None or any(entry.state is SlotState.BEGUN for entry in entries):
            return None
        # One that has just started has given no sign yet, nor has one that was stopped together with its parent.
        vitals, since = spawned.ledger.vitals(), max(since, self._gaps.awake_at)
        if now - max(vitals.engine_at, since) > SILENT_SECONDS:
            return f"was killed: it gave no sign of life for {SILENT_SECONDS:g} s"
        if now - max(vitals.handlers_at, since) > SILENT_SECONDS:
            return f"was killed: its event loop was blocked for {SILENT_SECONDS:g} s outside of a call"
        return None

    def _consider_replacing(
        self, supervisor: Supervisor, spawned: ProcessHandle, entries: Sequence[Entry], now: float
    ) -> None:
        """One at a time over the whole manager, but for those that hang (no use to anybody) and those of a wish."""
        if any(entry.state is SlotState.HUNG for entry in entries):
            self._do(self._leaving, spawned, supervisor.replace(spawned, "a call in it does not end"))
            return
        if spawned.name in self._unwanted:
            self._do(self._leaving, spawned, supervisor.replace(spawned, "somebody wishes it"))
            return
        is_free = self._recycling is None or self._recycling.done()
        if is_free and (why := self._is_spent(supervisor, spawned, now)) is not None:
            self._recycling = self._do(self._leaving, spawned, supervisor.replace(spawned, why))

    def _is_spent(self, supervisor: Supervisor, spawned: ProcessHandle, now: float) -> str | None:
        """Why a process has served long enough; None: it has not."""
        recycle = supervisor.process.recycle
        if spawned.name not in self._running_since:
            return None
        if recycle.jobs is not None and (ended := spawned.ledger.vitals().ended) >= recycle.jobs:
            return f"it has run {ended:,} jobs"
        if recycle.age is not None and now - spawned.started_at >= recycle.age:
            return f"it is {recycle.age:g} s old"
        is_young = now - spawned.started_at < YOUNG_SECONDS  # A new one would be no smaller.
        if recycle.memory is not None and not is_young and (size := self.memory_of(spawned) or 0) >= recycle.memory:
            return f"it holds {size:,} bytes of memory"
        return None

    def _do(self, where: dict[str, asyncio.Task[None]], spawned: ProcessHandle, work: Any) -> asyncio.Task[None]:
        """Let something be done to a process that takes a while."""
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        where[spawned.name] = task
        task.add_done_callback(lambda _: self._done(where, spawned, task))
        return task

    def _done(self, where: dict[str, asyncio.Task[None]], spawned: ProcessHandle, task: asyncio.Task[None]) -> None:
        where.pop(spawned.name, None)
        if not task.cancelled() and task.exception() is not None:
            self._log.error("a process cannot be ended", process=spawned.name, exc_info=task.exception())


def is_sole(spawned: ProcessHandle, live: Sequence[ProcessHandle]) -> bool:
    """Whether no predecessor waits for it to be ready: a series of hangs must not fill the machine with successors."""
    return all(one is spawned or one.is_leaving or one.ended.is_set() for one in live)
