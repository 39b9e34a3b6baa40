"""A worker process, as its parent sees it."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import Any, Final

import orjson

from everwork.workers import child
from everwork.workers.ledger import Entry, Ledger, Phase, SlotState, bytes_for
from everwork.workers.stacks import stuck_stack

DUMP_SECONDS: Final = 0.4
DUMP_BYTES_MAX: Final = 262_144
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

Context = SpawnContext | ForkServerContext


class Spawned:
    """One child. It lives in the parent's event loop."""

    def __init__(
        self, context: Context, orders: child.Orders, slots: int, off: set[int], tell: Callable[[], None]
    ) -> None:
        self.name = orders.name
        self.posts = orders.posts
        self.started_at = time.monotonic()
        self.is_leaving = False
        """It was told to stop: what it has not finished is nobody's fault."""
        self.cancelled_at = math.inf
        """Since when its calls end because they were told to; their own time does not count after this."""
        self.verdict: str | None = None
        """Why it was killed, if it was killed."""
        self.culprits: dict[tuple[int, int], str] = {}
        """The attempts for which it was killed, and what is to be said of each."""
        self.broken: dict[str, str] = {}
        self._off: set[int] = set()
        self.ready = asyncio.Event()
        self.ready_at = 0.0
        self.ended = asyncio.Event()
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        memory = context.RawArray("B", bytes_for(slots))
        self.ledger = Ledger(memoryview(memory).cast("B"))
        self._control, theirs = context.Pipe()
        self._dump, their_dump = context.Pipe(duplex=False)
        self._process = context.Process(
            target=child.main, args=(orders, memory, theirs, their_dump), name=f"everwork-{orders.name}"
        )
        self.switch(off)
        with _interrupts_held():
            self._process.start()
        theirs.close()
        their_dump.close()
        self._loop.add_reader(self._process.sentinel, self._on_end)
        self._loop.add_reader(self._control.fileno(), self._on_word)

    # What it is doing ---------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid or 0

    @property
    def phase(self) -> Phase:
        """How far it is."""
        return Phase.STOPPING if self.is_leaving else self.ledger.vitals().phase

    @property
    def memory_bytes(self) -> int | None:
        """How much memory it holds now."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE_BYTES
        except (OSError, ValueError, IndexError):
            return None

    def entries(self) -> list[Entry]:
        """The attempts that it holds."""
        return list(self.ledger.entries())

    @property
    def is_busy(self) -> bool:
        """Whether a call runs that may still end."""
        return any(entry.state is SlotState.BEGUN for entry in self.ledger.entries())

    @property
    def is_hung(self) -> bool:
        """Whether a call runs that does not end although its time is over and its job has been settled."""
        return any(entry.state is SlotState.HUNG for entry in self.ledger.entries())

    @property
    def end(self) -> str:
        """How it ended, in words."""
        code = self._process.exitcode
        if code is not None and code < 0:
            with suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    @property
    def has_given_up(self) -> bool:
        """Whether its engine stayed away for too long."""
        return self._process.exitcode == child.GAVE_UP

    # What it is told ----------------------------------------------------------------------------

    def look(self) -> None:
        """Something has changed in its table."""
        self._send(child.LOOK)

    def switch(self, off: set[int]) -> bool:
        """Switch workers, by number, off or on; whether anything has changed."""
        has_changed = off != self._off
        for post in self.posts:
            self.ledger.switch(post.index, post.index not in off)
        self._off = off
        return has_changed

    def stop_softly(self) -> None:
        """Finish what runs and take no more."""
        self.is_leaving = True
        self._send(child.STOP)
        self._signal(signal.SIGUSR1)

    def cancel(self) -> None:
        """Cancel what runs, and end."""
        self.is_leaving = True
        self.cancelled_at = min(self.cancelled_at, time.monotonic())
        self._signal(signal.SIGTERM)

    def kill(self, verdict: str) -> None:
        """End it now."""
        self.verdict = verdict
        self._signal(signal.SIGKILL)

    async def stack(self) -> str:
        """Where its handlers' thread stands now; empty if it does not say."""
        _drain(self._dump)
        self._signal(signal.SIGUSR2)
        text = b""
        ends = self._loop.time() + DUMP_SECONDS
        while self._loop.time() < ends and len(text) < DUMP_BYTES_MAX:
            await asyncio.sleep(0.02)
            if self.ended.is_set():
                break  # What it has said may be closed by now.
            some = _drain(self._dump)
            if text and not some:
                break
            text += some
        return stuck_stack(text.decode(errors="replace"))

    def close(self) -> None:
        """Let go of what is left of it."""
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        self._dump.close()
        self._process.close()

    # Inside -------------------------------------------------------------------------------------

    def _signal(self, number: signal.Signals) -> None:
        if not self.ended.is_set() and self._process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def _send(self, word: bytes) -> None:
        with suppress(OSError):  # It has died, which the sentinel tells.
            self._control.send_bytes(word)

    def _on_end(self) -> None:
        self._loop.remove_reader(self._process.sentinel)
        self._process.join()
        self.ended.set()
        self._tell()

    def _on_word(self) -> None:
        try:
            facts: dict[str, Any] = orjson.loads(self._control.recv_bytes())
        except (EOFError, OSError):
            self._loop.remove_reader(self._control.fileno())
            return
        if "phase" in facts:
            self.ready_at = time.monotonic()
            self.ready.set()
        elif facts["problem"] is None:
            self.broken.pop(facts["worker"], None)
        else:
            self.broken[facts["worker"]] = facts["problem"]
        self._tell()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """A process that is started here does not hear SIGINT until it has told that it ignores it."""
    resource_tracker.ensure_running()  # The first start would do it, and let SIGINT through again.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _drain(dump: Connection) -> bytes:
    """What has been written so far."""
    text = b""
    while dump.poll(0):
        some = os.read(dump.fileno(), 65_536)
        if not some:
            break
        text += some
    return text
