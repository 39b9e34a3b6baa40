"""The search for objects that are still in memory."""

from __future__ import annotations

from typing import Any

from tests.memory import kept


class _Lazy:
    """Like Django's settings: until they are configured, any question about them fails."""

    @property  # type: ignore[misc]  # It can be overridden at run time.
    def __class__(self) -> Any:
        raise RuntimeError("not configured")


def test_lazy_objects_are_not_loaded() -> None:
    lazy = _Lazy()
    assert kept(_Lazy)[0] is lazy
