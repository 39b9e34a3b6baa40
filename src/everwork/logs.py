"""How Everwork logs: structured events, written through the standard `logging` of whoever runs it."""

from __future__ import annotations

import io
import logging
import os
import re
import select
import sys
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, Final

import orjson
import structlog

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def configure(format: str = "console", level: str = "INFO", *, force: bool = False) -> bool:
    """Let everything that is logged go to standard error, one write per line; whether that was done.

    "json" writes one object per line, "console" is for people. A program that has given `logging` handlers of its own
    is left alone, unless `force` is said. Facts that are bound with `structlog.contextvars` stand in every line.
    """
    if format not in _FORMATS:
        raise ValueError(f"format: must be one of {', '.join(_FORMATS)}, not {format!r}")
    if f"{level}".upper() not in LEVELS:
        raise ValueError(f"level: must be one of {', '.join(LEVELS)}, not {level!r}")
    root = logging.getLogger()
    if not force and any(not isinstance(handler, _Stderr) for handler in root.handlers):
        return False
    logging.basicConfig(handlers=[_Stderr(_FORMATS[format])], level=level.upper(), force=True)
    if force or not structlog.is_configured():
        # Loggers that users get from structlog itself go the same way.
        structlog.configure([_render], logger_factory=structlog.stdlib.LoggerFactory(), **_BOUND)
    return True


def get_logger(name: str) -> Any:
    """A structured logger. Nothing is printed that the program's own `logging` settings do not want."""
    return structlog.wrap_logger(logging.getLogger(name), processors=[_render], **_BOUND)


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


_BOUND: Final[Mapping[str, Any]] = {"wrapper_class": structlog.stdlib.BoundLogger}


def _render(_logger: object, _method: str, event: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """The event and its facts as one line; an exception goes the way of `logging`.

    Who formats the record himself finds both apart, in `everwork_event` and `everwork_facts`.
    """
    text = str(event.pop("event"))
    error = event.pop("exc_info", None)
    apart = {"everwork_event": text, "everwork_facts": dict(event)}
    facts = _told(event)
    return (f"{text}: {facts}" if facts else text,), {"exc_info": error, "extra": apart}


class _Stderr(logging.Handler):
    """Writes each record to standard error at once: lines of several processes that share it do not mix."""

    def __init__(self, form: Callable[[logging.LogRecord], str]) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        """The record as its line, without passwords."""
        return _without_secrets(self._form(record))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; a line that cannot be written is lost, and nothing else."""
        try:
            _write(f"{self.format(record)}\n")
        except RecursionError:
            raise
        except Exception:  # noqa: BLE001 - as every handler of `logging`
            self.handleError(record)


def _write(line: str) -> None:
    if sys.stderr is None:
        return
    try:
        descriptor = sys.stderr.fileno()
    except (OSError, AttributeError, io.UnsupportedOperation):  # Somebody has put a text buffer in its place.
        sys.stderr.write(line)
        return
    sys.stderr.flush()
    left = line.encode(errors="backslashreplace")
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


def _json(record: logging.LogRecord) -> str:
    said = {
        "time": _time(record),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": _event(record),
    }
    said |= {f"{name}_" if name in said or name == "exception" else name: fact for name, fact in _facts(record).items()}
    if trace := _trace(record):
        said["exception"] = trace
    try:
        return orjson.dumps(said, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError, RecursionError):  # A number over 64 bits, a lone surrogate, a circle.
        return orjson.dumps({name: _safe(value) for name, value in said.items()}).decode()


def _console(record: logging.LogRecord) -> str:
    facts, trace = _told(_facts(record)), _trace(record)
    line = f"{_time(record)} {record.levelname:<8} {record.name}: {_event(record)}"
    return f"{line}{f'  {facts}' if facts else ''}{chr(10) if trace else ''}{trace}"


_FORMATS: Final[Mapping[str, Callable[[logging.LogRecord], str]]] = {"console": _console, "json": _json}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _event(record: logging.LogRecord) -> str:
    found = getattr(record, "everwork_event", None)
    return found if isinstance(found, str) else record.getMessage()


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    return {**structlog.contextvars.get_contextvars(), **getattr(record, "everwork_facts", {})}


_plain: Final = logging.Formatter()


def _trace(record: logging.LogRecord) -> str:
    trace = _plain.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""
    return "\n".join(part for part in (trace, record.stack_info) if part)


def _told(facts: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value!r}" for name, value in facts.items())


def _safe(value: object) -> str:
    return (value if isinstance(value, str) else repr(value)).encode(errors="backslashreplace").decode()


_PASSWORD: Final = re.compile(r'(://[^\s:/?#@"]*):(?:\\.|[^\s"/?#\\])*@')
_PARAMETER: Final = re.compile(r'([?&][^\s=&"]*(?:pass|secret|token)[^\s=&"]*=)[^\s&"\']*', re.IGNORECASE)


def _without_secrets(line: str) -> str:
    """The line with the passwords of URLs hidden, wherever they stand: drivers put them into their errors."""
    if "://" not in line:
        return line
    return _PARAMETER.sub(r"\1***", _PASSWORD.sub(r"\1:***@", line))
