"""Forked children that act and end; one that hangs is ended by an alarm."""

from __future__ import annotations

import os
import signal
import traceback
import warnings
from collections.abc import Callable

from tests.app.waiting import DEADLINE_S


def fork(act: Callable[[], object]) -> int:
    """Fork, act in the child; the child's process id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(DEADLINE_S))
        try:
            act()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - a child must never go on as the test itself
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def exit_code(pid: int) -> int:
    """How a child has ended; waits for its end."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_child(act: Callable[[], object]) -> int:
    """Fork, act in the child, and answer its exit code."""
    return exit_code(fork(act))
