"""How many connections the limit of open files allows, with a reserve for the store, new connections and the log."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

from everwork.core.limits import CONNECTIONS_MIN
from everwork.logs import get_logger

log = get_logger("everwork")

PORTS: Final = 2
RESERVE: Final = 64
"""Open files that connections never use."""
USED: Final = 64
"""The assumed number of open files where the system does not list them."""


def connections_allowed(wanted: int, *, warns: bool = True) -> int:
    """How many connections each port may have open: as many as wanted, or as the limit of open files allows.

    The soft limit is raised if needed, as far as the hard limit allows.
    """
    used = _used()
    limit = _raised(PORTS * wanted + used + RESERVE)
    allowed = max(CONNECTIONS_MIN, min(wanted, (limit - used - RESERVE) // PORTS))
    if allowed < wanted and warns:
        log.warning(
            "max_connections lowered, because the limit of open files is too low",
            max_connections=wanted,
            lowered_to=allowed,
            open_files_max=limit,
            remedy=f"raise the limit of open files (ulimit -n) to {PORTS * wanted + used + RESERVE}",
        )
    return allowed


def _raised(needed: int) -> int:
    """Raise the soft limit if it is too low, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed if soft == resource.RLIM_INFINITY else soft
    raised = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _used() -> int:
    for folder in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            return len(list(Path(folder).iterdir()))
    return USED
