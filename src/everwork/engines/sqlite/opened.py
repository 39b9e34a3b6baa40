"""What exists while the engine is open: its threads, its bells, and the look at what other processes wrote."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

from everwork.engines.contract import Clock
from everwork.engines.sqlite import processes
from everwork.engines.sqlite.connections import Ask, Pause, Reader, T
from everwork.engines.sqlite.processes import DONE, WORK, FileLock, Poker, Wakeup
from everwork.engines.sqlite.store_url import StoreUrl, connect
from everwork.engines.sqlite.sweep import SweepState
from everwork.engines.sqlite.writer import Writer
from everwork.exceptions import EngineError

POLL_SECONDS = 0.1
"""How often a waiting process looks whether another one has written: the fallback behind the sockets."""


class OpenStore:
    """What exists while the engine is open: threads, bells, and the look at what other processes wrote."""

    def __init__(self, place: StoreUrl, clock: Clock, writer: Writer, lock: FileLock, schema_version: int) -> None:
        self.schema_version = schema_version
        self.pid = os.getpid()
        self.broom = SweepState()
        self._loop = asyncio.get_running_loop()
        self._lock = lock
        folder = None if place.in_memory else Path(place.path + ".wake")
        self.work, self.done = Wakeup(WORK, folder), Wakeup(DONE, folder)
        self.writer = writer
        self.writer.told = self._ring
        self._reader: Reader | None = None
        self._probe: sqlite3.Connection | None = None
        self._poker: Poker | None = None
        if folder is not None:
            self._reader = Reader(place, connect(place, read_only=True), clock)
            self._probe = connect(place, read_only=True)
            self._poker = Poker(folder)
            self.writer.after_commit = self._poke
        self._place = place
        self._probing = threading.Lock()
        self._data_version = self._read_data_version()
        self._timer: asyncio.TimerHandle | None = None
        if not place.in_memory:
            processes.watch(self)

    async def ask(self, question: Ask[T]) -> T:
        """Ask the reader; a store in memory has its writer's connection only."""
        answer: Any = await (self._reader or self.writer).ask(question)
        return answer  # type: ignore[no-any-return]

    def poll(self) -> None:
        """Look for other processes' writes as long as somebody waits."""
        if self._timer is None and self._probe is not None:
            self._timer = self._loop.call_later(POLL_SECONDS, self._look)

    async def close(self) -> None:
        """Let go of everything, after what was accepted is done."""
        processes.forget(self)
        if self._timer is not None:
            self._timer.cancel()
        for bell in (self.work, self.done):
            bell.close(self._loop)
        await self.writer.close()
        if self._reader is not None:
            await self._reader.close()
        with self._probing:
            if self._probe is not None:
                self._probe.close()
                self._probe = None
        if self._poker is not None:
            self._poker.close()
        self._lock.close()

    def _ring(self, woken: bool, finished: bool) -> None:
        if woken:
            self.work.ring()
        if finished:
            self.done.ring()

    def _poke(self, woken: bool, finished: bool) -> None:
        if self._poker is not None and woken:
            self._poker.poke(WORK, self.work.name)
        if self._poker is not None and finished:
            self._poker.poke(DONE, self.done.name)

    def _look(self) -> None:
        self._timer = None
        version = self._read_data_version()
        if version != self._data_version:
            self._data_version = version
            self._ring(True, True)
        if self.work.is_awaited or self.done.is_awaited:
            self.poll()

    def _read_data_version(self) -> int:
        with self._probing:
            if self._probe is None:
                return 0
            return int(self._probe.execute("PRAGMA data_version").fetchone()[0])

    def pause(self) -> list[Pause]:
        """Close every connection before a fork; whoever asks meanwhile waits."""
        self._probing.acquire()
        if self._probe is not None:
            self._probe.close()
        return [self.writer.pause(), *([self._reader.pause()] if self._reader else [])]

    def go_on(self) -> None:
        """The fork is over, in the parent."""
        try:
            if self._probe is not None:
                self._probe = connect(self._place, read_only=True)
        except (sqlite3.Error, EngineError):
            self._probe = None  # The file was taken away: whoever writes is told; others must not suffer for it.
        finally:
            self._probing.release()
