"""The parent's handle of a worker process."""

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
from everwork.service.fleet.live import memory_bytes

EXIT_POLL_SECONDS: Final = 0.05
NAME_PREFIX: Final = "everwork-"
SLOW_SECONDS: Final = 15.0
DUMP_SECONDS: Final = 0.4
DUMP_BYTES_MAX: Final = 262_144

Context = SpawnContext | ForkServerContext


class ProcessHandle:
    """One child process, used in the parent's event loop. `off`: the indexes of workers that start disabled."""

    def __init__(
        self, context: Context, spec: child.ChildSpec, *, slots: int, off: set[int], on_change: Callable[[], None]
    ) -> None:
        self.name = spec.name
        self.workers = spec.workers
        self.offline = spec.offline
        self.started_at = time.monotonic()
        self.is_leaving = False
        """Whether a stop was requested; if so, unfinished attempts do not count as failures."""
        self.cancelled_at = math.inf
        """When its calls were cancelled; their timeouts do not count after this."""
        self.kill_reason: str | None = None
        """Why it was killed, if it was killed."""
        self.hung_attempts: dict[tuple[int, int], str] = {}
        """The attempts that blocked it past their timeouts, with its stack at that time, if known."""
        self.broken: dict[str, str] = {}
        self._off: set[int] = set()
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self.stuck = asyncio.Event()
        """Set when a call blocks it past its timeout while it is being stopped, so that waiting is pointless."""
        self.stop_requested = asyncio.Event()
        """Set when something other than its parent requested a stop."""
        self.has_begun = False
        """Whether it has reached its first instruction, so the program could be imported."""
        self.has_given_up = False
        """Whether it has given up because its engine was unavailable for too long."""
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        memory = context.RawArray("B", bytes_for(slots))
        self.ledger = Ledger(memoryview(memory).cast("B"))
        self.switch(off)
        self._start(context, (spec, memory))

    def _start(self, context: Context, arguments: tuple[child.ChildSpec, Any]) -> None:
        # Messages arrive complete, and sending one that does not fit does not block.
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._dump, their_dump = context.Pipe(duplex=False)
        self._process = context.Process(
            target=child.main, args=(*arguments, theirs, their_dump), name=f"{NAME_PREFIX}{self.name}"
        )
        try:
            with _sigint_blocked():
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
        self._loop.add_reader(self._control.fileno(), self._on_messages)
        self._on_change()

    # State --------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid or 0

    @property
    def phase(self) -> Phase:
        """Its phase: starting, running or stopping."""
        return Phase.STOPPING if self.is_leaving else self.ledger.vitals().phase

    @property
    def quiet(self) -> float:
        """Seconds since its last sign of life."""
        return max(0.0, time.monotonic() - max(self.ledger.vitals().engine_at, self.started_at))

    @property
    def memory_bytes(self) -> int | None:
        """How much memory it uses now; None if that cannot be read."""
        return memory_bytes(self.pid)

    def entries(self) -> list[Entry]:
        """The attempts that it holds."""
        return list(self.ledger.entries())

    @property
    def is_busy(self) -> bool:
        """Whether a running call may still end."""
        return any(entry.state is SlotState.BEGUN for entry in self.ledger.entries())

    @property
    def is_past_its_calls(self) -> bool:
        """Whether only the shutdown of its workers remains."""
        return self.ledger.vitals().phase is Phase.STOPPING

    @property
    def end_text(self) -> str:
        """How the process ended, in words."""
        code = self._process.exitcode
        if self.has_given_up:
            return "exited: the engine was unavailable for too long"
        if code is not None and code < 0:
            with suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    @property
    def has_ended_well(self) -> bool:
        """Whether it exited normally, after releasing everything."""
        return self.ended.is_set() and self._process.exitcode == 0

    @property
    def is_unguarded(self) -> bool:
        """Whether importing the program would have run the manager again, so that its workers could not run."""
        return self.ended.is_set() and not self.has_begun and self._process.exitcode == child.UNGUARDED

    def problems(self) -> dict[str, str]:
        """The problems of its workers, by id; all of them have one if the process does not finish starting."""
        seconds = time.monotonic() - self.started_at
        if self.phase is not Phase.STARTING or seconds < SLOW_SECONDS:
            return dict(self.broken)
        text = f"its process has been starting for {seconds:.0f} s: does a startup() block the event loop?"
        return {spec.id: text for spec in self.workers} | self.broken

    # Commands -----------------------------------------------------------------------------------

    def notify(self) -> None:
        """Notify it that its ledger has changed."""
        self._send(child.NOTIFY)

    def switch(self, off: set[int]) -> bool:
        """Disable the workers with these indexes and enable all others; returns whether anything has changed."""
        has_changed = off != self._off
        for spec in self.workers:
            self.ledger.switch(spec.index, spec.index not in off)
        self._off = off
        return has_changed

    def stop_softly(self) -> None:
        """Let it finish running jobs and take no more."""
        self.is_leaving = True
        self._send(child.STOP)
        self._signal(signal.SIGUSR1)

    def cancel(self) -> None:
        """Let it cancel running jobs and exit."""
        self.is_leaving = True
        self.cancelled_at = min(self.cancelled_at, time.monotonic())
        self._send(child.CANCEL)
        self._signal(signal.SIGTERM)

    def kill(self, reason: str) -> None:
        """Kill it."""
        self.kill_reason = reason
        self._signal(signal.SIGKILL)

    async def stack(self) -> str:
        """The current stack of its handlers' thread; empty if it does not respond."""
        _drain(self._dump)
        self._signal(signal.SIGUSR2)
        text = b""
        stack, is_quiet = "", False
        ends = self._loop.time() + DUMP_SECONDS
        # A dump may arrive in parts.
        while not (stack and is_quiet) and self._loop.time() < ends and len(text) < DUMP_BYTES_MAX:
            await asyncio.sleep(0.02)
            if self.ended.is_set():
                break  # The pipe may be closed by now.
            chunk = _drain(self._dump)
            text, is_quiet = text + chunk, not chunk
            stack = stuck_stack(text.decode(errors="replace"))
        return stack

    def close(self) -> None:
        """Release its resources."""
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        self._dump.close()
        with suppress(ValueError):  # Other code in this program has reaped it: its exit code is unknown.
            self._process.close()

    # Internals ----------------------------------------------------------------------------------

    def _signal(self, number: signal.Signals) -> None:
        if not self.ended.is_set() and self._process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def _send(self, message: bytes) -> None:
        # It has died or is not reading. In that case messages are already waiting, and its ledger has the details.
        with suppress(OSError):
            self._control.send(message)

    def _on_end(self) -> None:
        self._loop.remove_reader(self._end_reader)
        if self._end_reader != self._process.sentinel:
            os.close(self._end_reader)
        self._note_end()

    def _note_end(self) -> None:
        """Record the end without waiting: a sentinel can also be closed by a process that is still running."""
        if self._process.exitcode is None and Path(f"/proc/{self.pid}").exists():
            self._loop.call_later(EXIT_POLL_SECONDS, self._note_end)
            return
        self._on_messages()
        self.ended.set()
        self._on_change()

    def _on_messages(self) -> None:
        """Process all its messages; the last ones can be read even after it has exited."""
        with suppress(BlockingIOError):
            while (message := self._receive()) != b"":
                self._apply(orjson.loads(message))
            self._loop.remove_reader(self._control.fileno())

    def _receive(self) -> bytes:
        try:
            return self._control.recv(child.MESSAGE_BYTES_MAX)
        except ConnectionError:
            return b""

    def _apply(self, facts: dict[str, Any]) -> None:
        match facts:
            case {"begun": True}:
                self.has_begun = True
            case {"phase": _}:
                self.ready.set()
            case {"gave_up": True}:
                self.has_given_up = True
            case {"stop_requested": True}:
                self.stop_requested.set()
            case {"worker": worker, "problem": None}:
                self.broken.pop(worker, None)
            case _:
                self.broken[facts["worker"]] = facts["problem"]
        self._on_change()


def _end_reader(process: Any) -> int:
    """A descriptor that becomes readable when a process has exited.

    The sentinel of a spawned process is inherited by processes that it forks, and stays silent while they are running.
    With a fork server, the sentinel is not inherited, and the fork server knows how its process ended.
    """
    if isinstance(process, ForkServerProcess):
        return int(process.sentinel)
    try:
        return os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # An old kernel, or a container that forbids the call.
        return int(process.sentinel)


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Start a process with SIGINT blocked; the process unblocks it once it ignores the signal."""
    resource_tracker.ensure_running()  # The first process start would launch it, and unblock SIGINT.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _drain(dump: Connection) -> bytes:
    """Everything written so far."""
    text = b""
    while dump.poll(0):
        chunk = os.read(dump.fileno(), 65_536)
        if not chunk:
            break
        text += chunk
    return text
