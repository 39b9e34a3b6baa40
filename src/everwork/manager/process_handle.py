"""A worker process, as its parent sees it."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess, SpawnContext
from pathlib import Path
from typing import Any, Final

import orjson

from everwork.manager import child
from everwork.runtime.ledger import Entry, Ledger, Phase, SlotState, bytes_for
from everwork.runtime.stacks import stuck_stack

ENDED_LOOK_SECONDS: Final = 0.05
NAME_PREFIX: Final = "everwork-"
SLOW_SECONDS: Final = 15.0
DUMP_SECONDS: Final = 0.4
DUMP_BYTES_MAX: Final = 262_144
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

Context = SpawnContext | ForkServerContext


class ProcessHandle:
    """One child. It lives in the parent's event loop. `off`: which of its workers begin switched off, by number."""

    def __init__(
        self, context: Context, orders: child.ChildSpec, *, slots: int, off: set[int], tell: Callable[[], None]
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
        self.ended = asyncio.Event()
        self.asked = asyncio.Event()
        """Somebody else than its parent has asked it to stop."""
        self.has_begun = False
        """It got as far as its first own instruction: the program could be imported."""
        self.has_given_up = False
        """Its engine stayed away for too long."""
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        memory = context.RawArray("B", bytes_for(slots))
        self.ledger = Ledger(memoryview(memory).cast("B"))
        self.switch(off)
        self._start(context, (orders, memory))

    def _start(self, context: Context, given: tuple[child.ChildSpec, Any]) -> None:
        # Words arrive whole, and one that does not fit is not waited for.
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._dump, their_dump = context.Pipe(duplex=False)
        self._process = context.Process(
            target=child.main, args=(*given, theirs, their_dump), name=f"{NAME_PREFIX}{self.name}"
        )
        try:
            with _interrupts_held():
                self._process.start()
        except BaseException:
            self._control.close()
            self._dump.close()
            raise
        finally:
            theirs.close()
            their_dump.close()
        self._control.setblocking(False)
        self._end_reader = _end_reader(self._process)
        self._loop.add_reader(self._end_reader, self._on_end)
        self._loop.add_reader(self._control.fileno(), self._on_words)
        self._tell()

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
    def quiet(self) -> float:
        """For how many seconds it has given no sign of life."""
        return max(0.0, time.monotonic() - max(self.ledger.vitals().engine_at, self.started_at))

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
    def is_past_its_calls(self) -> bool:
        """Whether it has nothing left to do but to shut its workers down."""
        return self.ledger.vitals().phase is Phase.STOPPING

    @property
    def end(self) -> str:
        """How it ended, in words."""
        code = self._process.exitcode
        if self.has_given_up:
            return "gave up: its engine stayed away for too long"
        if code is not None and code < 0:
            with suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    @property
    def has_ended_well(self) -> bool:
        """Whether it ended by itself, with everything given back."""
        return self.ended.is_set() and self._process.exitcode == 0

    @property
    def is_unguarded(self) -> bool:
        """Whether it could only run the program once more, and not its workers."""
        return self.ended.is_set() and not self.has_begun and self._process.exitcode == child.UNGUARDED

    def problems(self) -> dict[str, str]:
        """What is wrong with its workers, by id; one whose process does not get to say anything hangs in its start."""
        seconds = time.monotonic() - self.started_at
        if self.phase is not Phase.STARTING or seconds < SLOW_SECONDS:
            return dict(self.broken)
        text = f"its process has not started for {seconds:.0f} s: does a startup() block the event loop?"
        return {post.id: text for post in self.posts} | self.broken

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
        self._send(child.CANCEL)
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
        stack, is_quiet = "", False
        ends = self._loop.time() + DUMP_SECONDS
        # The thread of interest comes last, and a busy machine may pause before it.
        while not (stack and is_quiet) and self._loop.time() < ends and len(text) < DUMP_BYTES_MAX:
            await asyncio.sleep(0.02)
            if self.ended.is_set():
                break  # What it has said may be closed by now.
            some = _drain(self._dump)
            text, is_quiet = text + some, not some
            stack = stuck_stack(text.decode(errors="replace"))
        return stack

    def close(self) -> None:
        """Let go of what is left of it."""
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        self._dump.close()
        with suppress(ValueError):  # Somebody else in this program has waited for it: nobody knows how it ended.
            self._process.close()

    # Inside -------------------------------------------------------------------------------------

    def _signal(self, number: signal.Signals) -> None:
        if not self.ended.is_set() and self._process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def _send(self, word: bytes) -> None:
        # It has died, or does not read: then it has enough to read, and its table holds what is to be known.
        with suppress(OSError):
            self._control.send(word)

    def _on_end(self) -> None:
        self._loop.remove_reader(self._end_reader)
        if self._end_reader != self._process.sentinel:
            os.close(self._end_reader)
        self._note_end()

    def _note_end(self) -> None:
        """Ask how it ended, without waiting: a sentinel can also be closed by a process that lives on."""
        if self._process.exitcode is None and Path(f"/proc/{self.pid}").exists():
            self._loop.call_later(ENDED_LOOK_SECONDS, self._note_end)
            return
        self._on_words()
        self.ended.set()
        self._tell()

    def _on_words(self) -> None:
        """Everything that it has said; what it said last is still there when it has ended."""
        with suppress(BlockingIOError):
            while (word := self._heard()) != b"":
                self._take(orjson.loads(word))
            self._loop.remove_reader(self._control.fileno())

    def _heard(self) -> bytes:
        try:
            return self._control.recv(child.WORD_BYTES_MAX)
        except ConnectionError:
            return b""

    def _take(self, facts: dict[str, Any]) -> None:
        match facts:
            case {"begun": True}:
                self.has_begun = True
            case {"phase": _}:
                self.ready.set()
            case {"gave_up": True}:
                self.has_given_up = True
            case {"asked": True}:
                self.asked.set()
            case {"worker": worker, "problem": None}:
                self.broken.pop(worker, None)
            case _:
                self.broken[facts["worker"]] = facts["problem"]
        self._tell()


def _end_reader(process: Any) -> int:
    """A descriptor that can be read when a process has ended.

    The sentinel of a spawned one is inherited by whatever it forks, and tells nothing while that lives; that of a
    fork server is not, and the fork server knows how its process ended.
    """
    if isinstance(process, ForkServerProcess):
        return int(process.sentinel)
    try:
        return os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # An old kernel, or a container that does not let through.
        return int(process.sentinel)


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
