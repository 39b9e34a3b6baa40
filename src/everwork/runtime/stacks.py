"""Where a handler of this process is stuck that ignores its time-out: a text for the error of its job."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, Final

FRAMES_MAX: Final = 30
"""The innermost frames tell where it is stuck; an endless recursion must not fill the error."""


def stack_of_task(task: asyncio.Task[Any], own: str) -> str:
    """The stack of what a task awaits, below the frames of the module that runs it."""
    frames = list(_awaited_frames(task.get_coro()))
    first = max((at + 1 for at, frame in enumerate(frames) if frame.f_globals.get("__name__") == own), default=0)
    return _text(frames[first:])


def stack_of_thread(identity: int | None, own: str) -> str:
    """The stack of a thread, below the frames of the module that runs it; empty if it has ended."""
    frame = None if identity is None else sys._current_frames().get(identity)  # noqa: SLF001 - documented
    frames: list[FrameType] = []
    while frame is not None and frame.f_globals.get("__name__") != own:
        frames.append(frame)
        frame = frame.f_back
    return _text(frames[::-1])


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
