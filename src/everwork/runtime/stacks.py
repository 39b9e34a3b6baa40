"""Tracebacks of handlers that raised, and stacks of handlers that timed out, as text stored with their attempts.

They show what a traceback shows: files, lines of code, exceptions and their messages, never values of variables.
Everything is bounded: whatever was raised, at most a few dozen lines of source are read.
"""

from __future__ import annotations

import asyncio
import re
import sys
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

from everwork.core.limits import TRACEBACK_CHARS_MAX
from everwork.core.texts import error_text, traceback_text

FRAMES_MAX: Final = 30
"""The innermost frames show where a handler is stuck; an endless recursion must not fill the text."""
FRAMES_MIN: Final = 3
CHAIN_MAX: Final = 8
"""How many of the exceptions that led to the raised one are shown."""
MEMBERS_MAX: Final = 5
"""How many exceptions of a group are shown."""
DEPTH_MAX: Final = 3
"""How many levels of nested groups are shown."""
MESSAGE_CHARS_MAX: Final = 1_000
NOTES_MAX: Final = 5
_CAUSE: Final = "The above exception was the direct cause of the following exception:"
_CONTEXT: Final = "During handling of the above exception, another exception occurred:"


def traceback_of(error: BaseException) -> str | None:
    """The traceback of an exception that a handler raised, with its causes; None if it cannot be formatted."""
    frames = FRAMES_MAX
    try:
        while len(text := "\n".join(_lines(error, frames))) > TRACEBACK_CHARS_MAX and frames > FRAMES_MIN:
            frames //= 2
    except Exception:  # noqa: BLE001 - user code: attributes of exceptions, loaders of modules
        return None
    return traceback_text(text)


class _Link(NamedTuple):
    """An exception, and how it followed from the one before it."""

    error: BaseException
    how: str | None


def _chain(error: BaseException) -> tuple[list[_Link], bool]:
    """The exceptions that led to this one, oldest first; and whether there are more."""
    links: deque[_Link] = deque()
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        if len(links) == CHAIN_MAX:
            return list(links), True
        seen.add(id(one))
        cause = one.__cause__
        before = cause if cause is not None or one.__suppress_context__ else one.__context__
        links.appendleft(_Link(one, None if before is None else _CONTEXT if cause is None else _CAUSE))
        one = before
    return list(links), False


def _lines(error: BaseException, frames_max: int, depth: int = 1) -> Iterator[str]:
    links, has_more = _chain(error)
    if has_more:
        yield f"[only the last {CHAIN_MAX} exceptions are shown]"
    each = max(FRAMES_MIN, frames_max // len(links))
    for at, (one, how) in enumerate(links):
        if at and how:
            yield from ("", how, "")
        yield from _lines_of_one(one, each)
        if isinstance(one, BaseExceptionGroup):
            yield from _members(one, each, depth)


def _lines_of_one(error: BaseException, frames_max: int) -> Iterator[str]:
    frames, left_out = _frames_of(error, frames_max)
    if frames:
        yield "Traceback (most recent call last):"
        if left_out:
            yield f"  [{left_out:,} {'frame' if left_out == 1 else 'frames'} left out]"
        yield _frames_text(frames)
    kind = type(error)
    is_plain = kind.__module__ in ("builtins", "__main__")
    name = kind.__qualname__ if is_plain else f"{kind.__module__}.{kind.__qualname__}"
    message = _cut(error_text(error))
    yield f"{name}: {message}" if message else name
    notes = getattr(error, "__notes__", None)
    for note in notes[:NOTES_MAX] if isinstance(notes, list) else ():
        yield _cut(error_text(note))


def _members(group: BaseExceptionGroup[BaseException], frames_max: int, depth: int) -> Iterator[str]:
    total = len(group.exceptions)
    for number, member in enumerate(group.exceptions[: MEMBERS_MAX if depth < DEPTH_MAX else 0], 1):
        yield f"  +---------------- {number} of {total:,}"
        for line in _lines(member, max(FRAMES_MIN, frames_max // min(total, MEMBERS_MAX)), depth + 1):
            yield from (f"  | {part}" for part in line.split("\n"))
    if total > MEMBERS_MAX or depth >= DEPTH_MAX:
        yield f"  +---------------- [{total - MEMBERS_MAX if depth < DEPTH_MAX else total:,} exceptions left out]"


def _cut(message: str) -> str:
    left_out = len(message) - MESSAGE_CHARS_MAX
    return message if left_out <= 0 else f"{message[:MESSAGE_CHARS_MAX]} [{left_out:,} characters left out]"


def _frames_of(error: BaseException, frames_max: int) -> tuple[deque[tuple[FrameType, int]], int]:
    """The innermost frames, without those of this package above the user's code, and the number left out."""
    frames: deque[tuple[FrameType, int]] = deque(maxlen=frames_max)
    seen, is_users = 0, False
    for frame, line in traceback.walk_tb(error.__traceback__):
        if not is_users and not _is_own(frame):
            is_users, seen = True, 0
            frames.clear()
        frames.append((frame, line))
        seen += 1
    return frames, seen - len(frames)


def _is_own(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_PACKAGE)


_CALLERS: Final = tuple(
    f"{__package__}.{name}" for name in ("executor", "calls", "dependencies.call", "dependencies.opened")
)
_THREADS: Final = f"{__package__}.threads"


def stack_of_task(task: asyncio.Task[Any]) -> str:
    """The stack of a task, below the frames of the modules that call handlers."""
    return _text(_below_callers(list(_awaited_frames(task.get_coro()))))


def stack_of_thread(identity: int | None) -> str:
    """The stack of a thread, below the frames of the module that runs it; empty if it has ended."""
    frame = None if identity is None else sys._current_frames().get(identity)  # noqa: SLF001 - documented
    frames: list[FrameType] = []
    while frame is not None and frame.f_globals.get("__name__") != _THREADS:
        frames.append(frame)
        frame = frame.f_back
    return _text(_below_callers(frames[::-1]))


def stack_of_error(error: BaseException) -> str:
    """The stack of an interrupted handler: its own frames, without those of this package around them."""
    frames, _ = _frames_of(error, FRAMES_MAX)
    while frames and _is_own(frames[-1][0]):  # The frames of the signal handler.
        frames.pop()
    return _frames_text(frames)


def _awaited_frames(awaited: Any) -> Iterator[FrameType]:
    """The frames of a chain of coroutines, generators and async generators, outermost first."""
    while awaited is not None:
        for frame_name, next_name in (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await")):
            frame = getattr(awaited, frame_name, None)
            if frame is not None:
                yield frame
                awaited = getattr(awaited, next_name)
                break
        else:
            return


def _below_callers(frames: list[FrameType]) -> list[FrameType]:
    own = [at for at, frame in enumerate(frames, 1) if frame.f_globals.get("__name__") in _CALLERS]
    return frames[max(own, default=0) :]


def _text(frames: Iterable[FrameType]) -> str:
    return _frames_text(deque(((frame, frame.f_lineno) for frame in frames), maxlen=FRAMES_MAX))


def _frames_text(frames: Iterable[tuple[FrameType, int]]) -> str:
    return "".join(traceback.StackSummary.extract(iter(frames)).format()).rstrip()


_FRAME: Final = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_PACKAGE: Final = str(Path(__file__).parents[1])
_EXECUTOR: Final = str(Path(__file__).with_name("executor.py"))

Frame = tuple[str, str, str]


def stuck_stack(dump: str) -> str:
    """The frames of a handler, outermost first as in a traceback; empty if the thread runs none.

    `dump`: the stack of the thread that runs handlers, as written by faulthandler.
    """
    frames = _FRAME.findall(dump)
    stuck = _of_handler(frames) if any(file == _EXECUTOR for file, _, _ in frames) else []
    return "\n".join(f'  File "{file}", line {line}, in {name}' for file, line, name in reversed(stuck[:FRAMES_MAX]))


def _of_handler(frames: list[Frame]) -> list[Frame]:
    """The innermost frames, up to the code of this package that called the handler."""
    handler: list[Frame] = []
    for frame in frames:
        if frame[0].startswith(_PACKAGE):
            break
        handler.append(frame)
    return handler
