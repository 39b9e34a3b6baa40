"""Child processes of tests: none outlives its test's timeout or the run, and none inherits how the run was started."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from types import TracebackType
from typing import Any, Final
from weakref import WeakSet

_started: Final[WeakSet[GuardedPopen]] = WeakSet()


class GuardedPopen(subprocess.Popen[Any]):
    """A process in a group of its own, which is killed as a whole when a `with` block ends with an error.

    Without it a test whose time is up waits for ever: the end of the block waits for a process that never ends.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        if not options.get("start_new_session"):
            options.setdefault("process_group", 0)
        super().__init__(*arguments, **options)
        if not options.get("start_new_session"):  # Such as the servers of the whole run, which others may still need.
            _started.add(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            kill_group(self)
        super().__exit__(kind, error, traceback)


def guard_children() -> None:
    """From now on `subprocess` starts guarded processes.

    Signals that this process ignores, because it runs in the background or under nohup, would be ignored by every
    child, too, and tests that send them would wait for ever. A handler that does nothing is not inherited.
    """
    subprocess.Popen = GuardedPopen  # type: ignore[misc]
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def kill_children() -> None:
    """Kill what is left at the end of the run."""
    for process in list(_started):
        if process.poll() is None:
            kill_group(process)


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kill a process, and whatever it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
