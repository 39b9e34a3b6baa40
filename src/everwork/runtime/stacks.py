"""The stack of a handler that ignores its timeout, as text for the error of its job."""

from __future__ import annotations

import asyncio
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

FRAMES_MAX: Final = 30
"""The innermost frames tell where it is stuck; an endless recursion must not fill the error."""


_CALLERS: Final = (f"{__package__}.executor", f"{__package__}.calls")
_THREADS: Final = f"{__package__}.threads"


def stack_of_task(task: asyncio.Task[Any]) -> str:
    """The stack of what a task awaits, below the frames of the modules that call handlers."""
    frames = list(_awaited_frames(task.get_coro()))
    own = [at for at, frame in enumerate(frames, 1) if frame.f_globals.get("__name__") in _CALLERS]
    first = max(own, default=0)
    return _text(frames[first:])


def stack_of_thread(identity: int | None) -> str:
    """The stack of a thread, below the frames of the module that runs it; empty if it has ended."""
    frame = None if identity is None else sys._current_frames().get(identity)  # noqa: SLF001 - documented
    frames: list[FrameType] = []
    while frame is not None and frame.f_globals.get("__name__") != _THREADS:
        frames.append(frame)
        frame = frame.f_back
    return _text(frames[::-1])


def stack_of_error(error: BaseException) -> str:
    """The stack at which a handler was interrupted: its own frames, without those of this package around them."""
    frames = list(traceback.walk_tb(error.__traceback__))
    is_own = [frame.f_code.co_filename.startswith(_PACKAGE) for frame, _ in frames]
    while is_own and is_own[-1]:  # The frames of the signal handler.
        is_own.pop()
    first = max((at for at, own in enumerate(is_own, 1) if own), default=0)
    lines = traceback.StackSummary.extract(iter(frames[first : len(is_own)]), limit=-FRAMES_MAX).format()
    return "".join(lines).rstrip()


def _awaited_frames(awaited: Any) -> Iterator[FrameType]:
    """The frames of a chain of coroutines, generators and asynchronous generators, outermost first."""
    while awaited is not None:
        for frame_name, next_name in (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await")):
            frame = getattr(awaited, frame_name, None)
            if frame is not None:
                yield frame
                awaited = getattr(awaited, next_name)
                break
        else:
            return


def _text(frames: Iterable[FrameType]) -> str:
    lines = traceback.StackSummary.extract(((frame, frame.f_lineno) for frame in frames), limit=-FRAMES_MAX).format()
    return "".join(lines).rstrip()


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
