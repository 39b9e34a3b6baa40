"""Stop requests, and SIGINT and SIGTERM, shared by all managers of a program, which can run in several threads."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

NUMBERS: Final = (signal.SIGINT, signal.SIGTERM)


class StopRequests:
    """Stop requests of a manager: the first lets running calls finish, the second cancels them, the third kills."""

    def __init__(self) -> None:
        self.soft = asyncio.Event()
        self.hard = asyncio.Event()
        self.immediate = asyncio.Event()

    def add(self) -> None:
        """Add a request."""
        next((stage for stage in (self.soft, self.hard) if not stage.is_set()), self.immediate).set()

    def hurry(self) -> None:
        """Cancel running calls."""
        self.soft.set()
        self.hard.set()


class Signals:
    """Calls every listener for each signal; without listeners, the program's own handlers are restored."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[], None]] = []
        self._in_main_thread = 0
        self._previous: dict[signal.Signals, Any] = {}

    @contextmanager
    def listening(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call `callback`, which must not block, for each signal. Handlers can be installed only in the main thread."""
        is_main = threading.current_thread() is threading.main_thread()
        self._listeners.append(callback)
        try:
            if is_main:
                self._install()
            yield
        finally:
            self._listeners.remove(callback)
            if is_main:
                self._restore()

    def _install(self) -> None:
        self._in_main_thread += 1
        if self._in_main_thread == 1:
            # Not through an event loop, which would forget the previous handlers.
            self._previous = {number: signal.signal(number, self._notify_all) for number in NUMBERS}

    def _restore(self) -> None:
        self._in_main_thread -= 1
        if not self._in_main_thread:
            for number, handler in self._previous.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _notify_all(self, *_: object) -> None:
        for callback in list(self._listeners):
            callback()


SIGNALS: Final = Signals()
