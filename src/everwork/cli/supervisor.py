"""Runs a program's workers in separate processes; restarts those that die, and all of them when files change.

Each is a fresh interpreter that runs `everwork worker`; the parent never loads the user's code.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from everwork.aio.loops import first_of
from everwork.cli.file_watch import FileWatch
from everwork.cli.supervised import RELEASE, Supervised
from everwork.logs import get_logger

log = get_logger("everwork")

BAD_REQUEST: Final = 2
"""The exit code of a program that cannot be loaded or run as requested: a retry would not help."""
INTERRUPTED: Final = 130
"""The exit code of a process that a SIGINT interrupted outside of its event loop."""
RESTART_SECONDS: Final = 0.5
RESTART_SECONDS_MAX: Final = 30.0
STEADY_SECONDS: Final = 30.0
"""The restart delay of a process that has run for this long is reset to the shortest one."""
RELOAD_STAGES: Final = ((0.0, "stop"), (2.0, "stop"), (1.0, "release"), (4.0, "stop"), (6.0, "kill"))
"""How processes are stopped for a reload (finish, cancel, release), with the seconds to wait before each stage."""
STOP_STAGES: Final = ("stop", "stop", "give_up", "kill")
"""What each signal does, in order: running jobs finish, are cancelled, are released, or are left to their leases."""
STOPPED: Final = (0, INTERRUPTED, -signal.SIGINT, -signal.SIGTERM)
"""The exit codes of processes that stopped as requested: a further signal can reach one that has just finished."""
FILES_SHOWN: Final = 3


class Child:
    """One supervised process."""

    def __init__(self, process: asyncio.subprocess.Process, control: int) -> None:
        self._process = process
        self._control = control
        self.started_at = time.monotonic()
        self.is_ready = False
        self._signals = itertools.cycle((signal.SIGTERM, signal.SIGINT))
        """Alternating signals, because two identical signals in quick succession arrive as one."""

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def stop(self) -> None:
        """Stop the process: the first call lets running jobs finish, the second cancels them."""
        with suppress(ProcessLookupError):
            self._process.send_signal(next(self._signals))

    def release(self) -> None:
        """Make the process release its running jobs, and exit without waiting for them."""
        with suppress(OSError):
            os.write(self._control, RELEASE)

    def give_up(self) -> None:
        """Release running jobs; a manager cannot do that, so it gets its third signal instead."""
        self.release()
        self.stop()

    def kill(self) -> None:
        """Kill the process."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def wait(self) -> int:
        """Wait for the process to end, and return its exit code; negative if a signal ended it."""
        try:
            return await self._process.wait()
        finally:
            os.close(self._control)


class Supervisor:
    """Runs a command in several processes, until it is stopped by signals."""

    def __init__(self, command: Sequence[str], processes: int | None, watch: FileWatch | None) -> None:
        self._command = [sys.executable, "-P", "-m", "everwork", *command]
        self._processes = processes
        self._watch = watch
        self._children: dict[int, Child] = {}
        self._stops = 0
        self._stopped = asyncio.Event()
        self._ending = asyncio.Event()
        """Set when the current processes are being stopped, permanently or for a reload."""
        self._failed = False
        self._loaded = asyncio.Event()
        """Set when a process has loaded the program."""
        self._mistake = asyncio.Event()
        """Set when the first process could not load the program."""

    async def run(self) -> int:
        """Run until a signal; returns the exit code."""
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._stop)
        log.info("supervisor started", processes=self._processes or 1, reload=self._watch is not None)
        while True:
            is_mistake = await self._run_generation()
            if self._stopped.is_set():
                log.info("supervisor stopped")
                return 1 if self._failed else 0
            if is_mistake and self._watch is None:
                return BAD_REQUEST

    async def _run_generation(self) -> bool:
        """Run the processes until a stop, a file change, or an error that prevents the program from loading."""
        self._ending.clear()
        self._loaded.clear()
        self._mistake.clear()
        if self._watch is not None:
            await asyncio.to_thread(self._watch.look)
        changing = asyncio.ensure_future(self._changed())
        keeping = [asyncio.ensure_future(self._keep(index)) for index in range(self._processes or 1)]
        try:
            await first_of(self._stopped, self._mistake, work=changing)
            is_mistake = self._mistake.is_set()
            if is_mistake and self._watch is not None:
                log.info("waiting for file changes")
                await first_of(self._stopped, work=changing)
        finally:
            self._ending.set()
            if changing.done():
                await self._stop_for_reload(keeping)
            changing.cancel()
            await self._ended(keeping)
        return is_mistake

    async def _changed(self) -> None:
        if self._watch is None:
            await asyncio.Event().wait()
            return
        files = await self._watch.changed()
        more = {"more": len(files) - FILES_SHOWN} if len(files) > FILES_SHOWN else {}
        log.info("files changed, restarting workers", files=files[:FILES_SHOWN], **more)

    # Processes ----------------------------------------------------------------------------------

    async def _keep(self, index: int) -> None:
        """Keep one process running, once the first has loaded the program."""
        delay = RESTART_SECONDS
        if index:
            await first_of(self._loaded, self._mistake, self._ending)
        while not (self._ending.is_set() or self._mistake.is_set()):
            try:
                code, seconds, is_ready = await self._run_child(index)
            except OSError as error:  # No processes, files or memory are left, or Python is being upgraded.
                problem = error.strerror or str(error)
                log.error(
                    "worker process could not be started, trying again",
                    process=index + 1,
                    error=problem,
                    seconds=delay,
                )
            else:
                if self._ending.is_set():
                    self._failed = self._failed or (self._stopped.is_set() and code not in STOPPED)
                    return
                if code == BAD_REQUEST and not is_ready and not self._loaded.is_set():
                    self._mistake.set()
                    return
                delay = RESTART_SECONDS if seconds >= STEADY_SECONDS else delay
                log.warning("worker process exited, restarting", process=index + 1, code=code, seconds=delay)
            await first_of(self._ending, seconds=delay)
            delay = min(delay * 2, RESTART_SECONDS_MAX)

    async def _run_child(self, index: int) -> tuple[int, float, bool]:
        """Run one process to its end. Returns its exit code, how long it ran, and whether it had loaded the program."""
        child = await self._start(index)
        self._children[index] = child
        if self._ending.is_set():
            child.stop()  # A stop was requested while the process was starting.
        try:
            code = await child.wait()
        finally:
            del self._children[index]
        return code, time.monotonic() - child.started_at, child.is_ready

    async def _start(self, index: int) -> Child:
        with ExitStack() as theirs, ExitStack() as ours:
            ready, their_ready = os.pipe()
            ours.callback(os.close, ready)
            theirs.callback(os.close, their_ready)
            their_control, control = os.pipe()
            ours.callback(os.close, control)
            theirs.callback(os.close, their_control)
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                env=os.environ | Supervised(their_ready, their_control, index, self._processes).environment(),
                pass_fds=(their_ready, their_control),
                process_group=0,  # A terminal's Ctrl-C reaches the parent only, which passes it on.
            )
            ours.pop_all()
        child = Child(process, control)
        asyncio.get_running_loop().add_reader(ready, self._note_ready, child, ready, index)
        return child

    def _note_ready(self, child: Child, ready: int, index: int) -> None:
        """Note that a process has loaded the program. If the process ends before that, there is nothing to read."""
        asyncio.get_running_loop().remove_reader(ready)
        with os.fdopen(ready, "rb") as pipe:
            child.is_ready = bool(pipe.read(1))
        if child.is_ready:
            self._loaded.set()
            log.debug("worker process has loaded the program", process=index + 1, pid=child.pid)

    # Stop ---------------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Enter the next stage of the stop; called for each signal."""
        stage = STOP_STAGES[min(self._stops, len(STOP_STAGES) - 1)]
        self._stops += 1
        self._stopped.set()
        self._ending.set()
        for child in list(self._children.values()):
            getattr(child, stage)()

    async def _stop_for_reload(self, keeping: Sequence[asyncio.Future[None]]) -> None:
        """Stop the processes quickly: jobs that do not finish soon are released, and run with the new code."""
        for seconds, stage in RELOAD_STAGES:
            if keeping:
                await asyncio.wait(keeping, timeout=seconds)
            for child in list(self._children.values()):
                getattr(child, stage)()

    async def _ended(self, keeping: Sequence[asyncio.Future[None]]) -> None:
        await asyncio.wait(keeping)
        for one in keeping:
            one.result()


def supervise(command: Sequence[str], processes: int | None, folders: Sequence[Path] | None) -> int:
    """Run `everwork` with this command in several processes; with `folders`, restart them when files there change."""

    async def run() -> int:
        return await Supervisor(command, processes, None if folders is None else FileWatch(folders)).run()

    return asyncio.run(run())
