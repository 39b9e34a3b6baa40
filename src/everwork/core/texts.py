"""Texts from anywhere, made storable."""

from __future__ import annotations

from everwork.core.limits import ERROR_CHARS_MAX


def error_text(value: object) -> str:
    """Whatever a handler raised or returned, as a text that every store accepts; never fails."""
    try:
        text = str(value)
    except BaseException:  # noqa: BLE001 - user code: an object whose __str__ raises, whatever it is
        text = f"a {type(value).__name__} that cannot be shown"
    return text[:ERROR_CHARS_MAX].encode("utf-8", "replace").decode().replace("\0", "\ufffd")
