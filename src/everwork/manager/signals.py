"""SIGINT and SIGTERM: a program has them once, and may run several managers, in several threads."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

NUMBERS: Final = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """Asks everybody who listens to stop; when nobody does any more, what the program had set before holds again."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[], None]] = []
        self._in_main_thread = 0
        self._before: dict[signal.Signals, Any] = {}

    @contextmanager
    def heard(self, ask: Callable[[], None]) -> Iterator[None]:
        """Call `ask`, which must not block, at each signal. Only who runs in the main thread can take them over."""
        is_main = threading.current_thread() is threading.main_thread()
        self._listeners.append(ask)
        try:
            if is_main:
                self._take()
            yield
        finally:
            self._listeners.remove(ask)
            if is_main:
                self._give_back()

    def _take(self) -> None:
        self._in_main_thread += 1
        if self._in_main_thread == 1:
            # Not by an event loop, which would forget who had them before.
            self._before = {number: signal.signal(number, self._ask_all) for number in NUMBERS}

    def _give_back(self) -> None:
        self._in_main_thread -= 1
        if not self._in_main_thread:
            for number, handler in self._before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _ask_all(self, *_: object) -> None:
        for ask in list(self._listeners):
            ask()


INTERRUPTS: Final = Signals()
