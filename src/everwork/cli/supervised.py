"""The child's side of `everwork worker --processes` and `--reload`: two pipes to the supervising parent."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

VARIABLE: Final = "EVERWORK_SUPERVISED"
"""Set by the parent: the descriptors of the two pipes, the number of the process, and how many were requested."""
READY: Final = b"r"
RELEASE: Final = b"x"
"""Written by the parent: release running jobs without waiting for them, and exit."""
RELEASE_SECONDS: Final = 2.0


@dataclass(slots=True)
class Supervised:
    """The connection between a child process and its parent.

    `number` counts processes from 0, and `processes` is how many were requested, if any. `release` releases running
    jobs before the process exits; None while no job can run.
    """

    ready: int
    control: int
    number: int
    processes: int | None
    release: Callable[[float], None] | None = None

    @classmethod
    def from_environment(cls) -> Supervised | None:
        """The pipes to the parent; None if there is no parent. Programs started by this process do not inherit them."""
        text = os.environ.pop(VARIABLE, None)
        if text is None:
            return None
        ready, control, number, processes = (int(part) for part in text.split(","))
        for descriptor in (ready, control):
            os.set_inheritable(descriptor, False)
        return cls(ready, control, number, processes or None)

    def environment(self) -> dict[str, str]:
        """The environment variable that passes these values to the child process."""
        return {VARIABLE: f"{self.ready},{self.control},{self.number},{self.processes or 0}"}

    def follow(self) -> None:
        """Stop this process once the parent has exited, even while it loads its program."""
        threading.Thread(target=self._follow, name="everwork-supervised", daemon=True).start()

    def report_ready(self, release: Callable[[float], None] | None) -> None:
        """Report to the parent that the program is loaded."""
        self.release = release
        with suppress(BrokenPipeError):  # The parent has exited, so this process is about to stop.
            os.write(self.ready, READY)
        os.close(self.ready)

    def _follow(self) -> None:
        while command := os.read(self.control, 1):
            if command == RELEASE and self.release is not None:
                self.release(RELEASE_SECONDS)
                os._exit(0)  # Exit even if a handler blocks the main thread.
        os.kill(os.getpid(), signal.SIGTERM)
