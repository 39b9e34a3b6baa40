"""Makes arbitrary strings safe to store."""

from __future__ import annotations

from typing import Final

from everwork.core.limits import ERROR_CHARS_MAX, TRACEBACK_CHARS_MAX

_HEAD_CHARS_MAX: Final = 200
_NOTE_CHARS_MAX: Final = 60


def error_text(value: object) -> str:
    """The string of any raised or returned object, in a form that every store accepts; never fails."""
    try:
        text = str(value)
    except BaseException:  # noqa: BLE001 - user code: an object whose __str__ raises, whatever it is
        text = f"a {type(value).__name__} that cannot be shown"
    return _storable(text[:ERROR_CHARS_MAX])


def traceback_text(text: str) -> str:
    """A traceback as stored; a long one is cut to its first line and its end, where the error was raised."""
    if len(text) <= TRACEBACK_CHARS_MAX:
        return _storable(text)
    head = text[:_HEAD_CHARS_MAX].partition("\n")[0]
    end = text[len(head) + _NOTE_CHARS_MAX - TRACEBACK_CHARS_MAX :]
    end = end.partition("\n")[2] or end
    return _storable(f"{head}\n  [{len(text) - len(head) - len(end):,} characters left out]\n{end}")


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
