"""`python -m tests.soak.observed ...`: the `everwork` command, in a process that reports its state on SIGUSR2.

For tests of the judge, `SOAK_LEAK` (`memory`, `descriptors` or `threads`) plants a leak that grows with every report,
regardless of the speed of the machine.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from everwork.cli.main import main

FOLDER: Final = "SOAK_FOLDER"
LEAK: Final = "SOAK_LEAK"
_TYPES_EVERY: Final = 10
"""Every tenth report counts the most frequent types of objects, to show what grows."""
_LEAK_BYTES: Final = 3_000_000
_LEAK_PIECES: Final = 10
_leaked: Final[list[Any]] = []


class Teller:
    """Writes a report to a file on SIGUSR2."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._answers = 0
        self._write({}, [])
        signal.signal(signal.SIGUSR2, self._tell)

    def _tell(self, *_: object) -> None:
        objects = gc.get_objects()
        values = {"tasks": _tasks(), "objects": len(objects)}
        most = Counter(type(one).__qualname__ for one in objects).most_common(60) if self._is_counting() else []
        del objects
        self._answers += 1
        _leak(os.environ.get(LEAK, ""))
        self._write(values, most)

    def _is_counting(self) -> bool:
        return self._answers % _TYPES_EVERY == 0

    def _write(self, values: dict[str, int], most: list[tuple[str, int]]) -> None:
        if most:
            with self._file.with_suffix(".types.jsonl").open("a") as opened:
                opened.write(json.dumps({"at": time.time(), "types": dict(most)}) + "\n")
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps({"values": values}))
        part.replace(self._file)


def _tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:  # The main thread runs no event loop.
        return 0


def _leak(what: str) -> None:
    match what:
        case "memory":
            _leaked.append(b"x" * _LEAK_BYTES)
        case "descriptors":
            _leaked.extend(socket.socket() for _ in range(_LEAK_PIECES))
        case "threads":
            for _ in range(_LEAK_PIECES):
                threading.Thread(target=threading.Event().wait, daemon=True).start()
        case _:
            pass


def observe() -> None:
    """Start reporting on SIGUSR2."""
    if FOLDER in os.environ:
        Teller(Path(os.environ[FOLDER]) / f"observed-{os.getpid()}.json")


if __name__ == "__main__":
    observe()
    sys.argv[0] = "everwork"
    main()
