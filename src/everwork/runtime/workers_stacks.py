"""The stack of a handler that is stuck, from what `faulthandler` has written about its process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

FRAMES_MAX: Final = 30
_THREAD: Final = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*$", re.MULTILINE)
_FRAME: Final = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_PACKAGE: Final = str(Path(__file__).parents[1])
_EXECUTOR: Final = str(Path(__file__).with_name("executor.py"))

Frame = tuple[str, str, str]


def stuck_stack(dump: str) -> str:
    """The frames of the thread that runs handlers, outermost first as in a traceback; empty if it runs none."""
    threads = [_FRAME.findall(text) for text in _THREAD.split(dump)[1:]]
    stuck = next((_of_handler(frames) for frames in threads if _runs_handlers(frames)), [])
    return "\n".join(f'  File "{file}", line {line}, in {name}' for file, line, name in reversed(stuck[:FRAMES_MAX]))


def _runs_handlers(frames: list[Frame]) -> bool:
    return any(file == _EXECUTOR for file, _, _ in frames)


def _of_handler(frames: list[Frame]) -> list[Frame]:
    """The innermost frames, down to the code of this package that has called the handler."""
    handler: list[Frame] = []
    for frame in frames:
        if frame[0].startswith(_PACKAGE):
            break
        handler.append(frame)
    return handler
