"""What is done to the processes of managers."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from tests.torture import crew
from tests.torture.history import host_clock_ms
from tests.torture.process import Life

_STOP_SHARE: Final = 0.25
_STOP_SECONDS: Final = (0.3, 3.0)
_STRUCK_MAX: Final = 4
"""After so many deaths of processes a manager lets them wait for long: it is the manager's turn then."""
_LEAVE_SECONDS_MAX: Final = 20.0
_TICK_SECONDS: Final = 0.05


class Stopped(NamedTuple):
    """A process that has been stopped."""

    pid: int
    at_ms: int
    resume_at: float


class Processes:
    """The processes of the managers of a run."""

    def __init__(self, rng: random.Random, done: Counter[str], stops: list[tuple[int, int]]) -> None:
        self.deaths: dict[str, int] = {}
        self._rng = rng
        self._done = done
        self._stops = stops
        self._stopped: list[Stopped] = []
        self._struck: Counter[tuple[str, int]] = Counter()

    def strike(self, life: Life, manager_pid: int) -> bool:
        """Kill or stop one of a manager's processes, or leave it to its nemesis to strike the manager instead."""
        there = self._running(life, manager_pid)
        struck = self._struck[life.name, life.life]
        if not there or struck >= _STRUCK_MAX:
            return False
        self._struck[life.name, life.life] += 1
        pid = self._rng.choice(there)
        if struck and self._rng.random() < _STOP_SHARE:
            resume_at = time.monotonic() + self._rng.uniform(*_STOP_SECONDS)
            self._stopped.append(Stopped(pid, host_clock_ms(), resume_at))
            _send(pid, signal.SIGSTOP)
            self._done["SIGSTOPs of managed processes"] += 1
        else:
            self.deaths[crew.file_of(life, pid).stem] = host_clock_ms()
            _send(pid, signal.SIGKILL)
            self._done["kills of managed processes"] += 1
        return True

    def resume(self, now: float = float("inf")) -> None:
        """Let those go on that have been stopped for long enough."""
        for one in [one for one in self._stopped if now >= one.resume_at]:
            _send(one.pid, signal.SIGCONT)
            self._stopped.remove(one)
            self._stops.append((one.at_ms, host_clock_ms()))

    async def leave(self, folder: Path) -> int:
        """Wait for those whose manager has gone: they are to end by themselves; how many did not."""
        until = time.monotonic() + _LEAVE_SECONDS_MAX
        while (left := _left(folder)) and time.monotonic() < until:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(_TICK_SECONDS)
        for pid in left:
            _send(pid, signal.SIGKILL)
        return len(left)

    def _running(self, life: Life, manager_pid: int) -> list[int]:
        still = {one.pid for one in self._stopped}
        pids = [_pid_of(path) for path in life.folder.glob(f"{life.name}.{life.life:04d}-*.jsonl")]
        return sorted(pid for pid in pids if pid not in still and _parent_of(pid) == manager_pid)


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # It has ended meanwhile.
        os.kill(pid, number)


def _left(folder: Path) -> list[int]:
    return [pid for path in folder.glob("manager-*.*-*.jsonl") if _is_there(pid := _pid_of(path))]


def _pid_of(history: Path) -> int:
    return int(history.stem.rpartition("-")[2])


def _parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return 0


def _is_there(pid: int) -> bool:
    """Whether a process of this number is one of ours and lives; a dead one that nobody has fetched has no words."""
    try:
        return b"multiprocessing" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
