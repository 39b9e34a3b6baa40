"""The name under which a worker leases jobs, and the one under which its process takes turns."""

from __future__ import annotations

import os
import secrets
import socket

from everwork.core import checks


class WorkerName:
    """A worker's name: the one that was given, or one of this very process. A fork has a name of its own."""

    def __init__(self, given: str | None) -> None:
        self._given = checks.name("worker", given) if given else None
        self._of_process: dict[int, str] = {}

    @property
    def is_unique(self) -> bool:
        """Whether no other process can have this name."""
        return self._given is None

    @property
    def text(self) -> str:
        """The worker's name in this process."""
        return self._given or self.process

    @property
    def process(self) -> str:
        """Unique per process, also where host names and process ids repeat."""
        pid = os.getpid()
        return self._of_process.get(pid) or self._of_process.setdefault(pid, _new_name(pid))


def _new_name(pid: int) -> str:
    host = "".join(c for c in socket.gethostname() if c.isprintable())[:200] or "host"
    return checks.name("worker", f"{host}-{pid}-{secrets.token_hex(3)}")
