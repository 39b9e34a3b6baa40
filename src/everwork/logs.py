"""How Everwork logs: structured events, written through the standard `logging` of whoever runs it."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

import structlog


def get_logger(name: str) -> Any:
    """A structured logger. Nothing is printed that the program's own `logging` settings do not want."""
    return structlog.wrap_logger(
        logging.getLogger(name), processors=[_render], wrapper_class=structlog.stdlib.BoundLogger
    )


class Outage:
    """Few words about something that is away, however often it is tried; and one when it is back."""

    def __init__(self, log: Any, away: str, back: str, **facts: str) -> None:
        self._log = log.bind(**facts)
        self._away = away
        self._back = back
        self.errors = 0

    def tell(self, error: Exception) -> None:
        """It did not work: told the first, second, fourth, eighth time, and so on."""
        self.errors += 1
        if self.errors & (self.errors - 1) == 0:
            self._log.error(self._away, error=str(error) or type(error).__name__, times=self.errors)

    def over(self) -> None:
        """It has worked."""
        if self.errors:
            self._log.warning(self._back, errors=self.errors)
            self.errors = 0


def _render(_logger: object, _method: str, event: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """The event and its facts as one line; an exception goes the way of `logging`."""
    text = str(event.pop("event"))
    error = event.pop("exc_info", None)
    facts = " ".join(f"{name}={value!r}" for name, value in event.items())
    return (f"{text}: {facts}" if facts else text,), {"exc_info": error}
