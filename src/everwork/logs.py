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


def _render(_logger: object, _method: str, event: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """The event and its facts as one line; an exception goes the way of `logging`."""
    text = str(event.pop("event"))
    error = event.pop("exc_info", None)
    facts = " ".join(f"{name}={value!r}" for name, value in event.items())
    return (f"{text}: {facts}" if facts else text,), {"exc_info": error}
