"""What managers and their processes have logged: an error that nobody has asked for is one (V0)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

_EXPECTED: Final = frozenset(
    {
        "handler is stuck past its timeout and blocks its process",
        "killing process",
        "the parent process has exited, stopping this process",
        "jobs of a dead process are retried when their leases expire",
        "outcomes could not be stored, their jobs are retried when their leases expire",
        "the engine is unavailable, retrying",
        "cannot receive notifications, polling instead",
        "could not notify other processes",
        "the inbox cannot be read, trying again",
        "the engine's clock jumped; check its time synchronization",
    }
)
_DIED: Final = ("process died, starting another", "was killed by SIGKILL")
_TRACEBACK: Final = re.compile(r"^Traceback.*\n(?:[^{\n].*\n)*", re.MULTILINE)
_CUT_OFF: Final = "EOFError: Ran out of input"
"""A process whose manager was killed while it told it what to do."""
_CHARS_MAX: Final = 500


def errors_in(folder: Path) -> Iterator[str]:
    """Errors in the logs of managers that nothing which was done to them explains."""
    for path in sorted(folder.glob("manager-*.log")):
        text = path.read_text("utf-8", "replace")
        for line in text.splitlines():
            if not is_expected(line):
                yield f"{path.stem}: {line[:_CHARS_MAX]}"
        for told in _TRACEBACK.findall(text):
            if not told.rstrip().endswith(_CUT_OFF):
                yield f"{path.stem}: {told[-_CHARS_MAX:]}"


def is_expected(line: str) -> bool:
    """Whether a line is no error, or one that comes of kills, stops and jobs that block."""
    if not line.startswith("{"):
        return True
    try:
        entry: dict[str, Any] = json.loads(line)
    except ValueError:
        return True  # Cut short by a kill.
    event = str(entry.get("event"))
    is_known = event in _EXPECTED or (event, entry.get("how")) == _DIED or entry.get("outcome") == "failed"
    return is_known or (entry.get("level") not in ("error", "critical") and "never retrieved" not in event)
