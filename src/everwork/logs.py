"""How Everwork logs: structured events, written through the program's standard `logging`."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import re
import select
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import orjson
import structlog

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
TEXT_CHARS_MAX: Final = 16_000
"""Longer fields and exceptions are shortened to their beginning and end."""
LOCK_SECONDS: Final = 5.0
"""How long a line waits while another process writes; a stopped process must not block the others."""


def configure(format: str = "console", level: str = "INFO", *, force: bool = False) -> bool:
    """Log everything to standard error, one write per line; returns whether that was configured.

    "json" writes one object per line, "console" is for people. A program that has configured its own `logging` handlers
    is left alone, unless `force` is given. Fields bound with `structlog.contextvars` appear in every line. Lines that
    a handler writes also have the fields of its worker and job.
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
        # Loggers that users get directly from structlog write the same way.
        structlog.configure([_render], logger_factory=structlog.stdlib.LoggerFactory(), **_BOUND)
    return True


def get_logger(name: str) -> Any:
    """Return a structured logger; the program's own `logging` settings decide what is printed."""
    return structlog.wrap_logger(logging.getLogger(name), processors=[_render], **_BOUND)


def add_process_facts(**facts: str) -> None:
    """Add these fields to every line of this process, from any thread or task."""
    _process_facts.update(facts)


_process_facts: Final[dict[str, str]] = {}


class HasFacts(Protocol):
    """An attempt, whose fields are added to log lines."""

    def log_facts(self) -> dict[str, Any]:
        """Worker, key, attempt and type."""


attempt_here: Final[ContextVar[HasFacts | None]] = ContextVar("everwork-attempt", default=None)
"""The attempt that runs in this context. Set for each job; its fields are read only when a line is logged."""


class Outage:
    """Logs an outage sparingly, however often the call is retried, and its end once."""

    def __init__(self, log: Any, outage_event: str, recovery_event: str, **facts: str) -> None:
        self._log = log.bind(**facts)
        self._outage_event = outage_event
        self._recovery_event = recovery_event
        self.errors = 0

    def report(self, error: Exception) -> None:
        """Report that a call failed; logs the first, second, fourth, eighth failure, and so on."""
        self.errors += 1
        if self.errors & (self.errors - 1) == 0:
            self._log.error(self._outage_event, error=str(error) or type(error).__name__, times=self.errors)

    def over(self) -> None:
        """Report that a call succeeded; logs the end of an outage, if there was one."""
        if self.errors:
            self._log.warning(self._recovery_event, errors=self.errors)
            self.errors = 0


class Occasional:
    """Logs each event at most once a minute, with the number of its occurrences since the last line."""

    def __init__(self, log: Any, every_seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._every = every_seconds
        self._clock = clock
        self._next_at: dict[str, float] = {}
        self._left_out: Counter[str] = Counter()

    def warning(self, event: str, **facts: Any) -> None:
        """Log an event, unless it was logged less than a minute ago. Events must be constants, so that they are few."""
        now = self._clock()
        if now < self._next_at.get(event, now):
            self._left_out[event] += 1
            return
        self._next_at[event] = now + self._every
        times = {"times": 1 + left_out} if (left_out := self._left_out.pop(event, 0)) else {}
        self._log.warning(event, **facts, **times)


_BOUND: Final[Mapping[str, Any]] = {"wrapper_class": structlog.stdlib.BoundLogger}


def _render(_logger: object, _method: str, event: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """The event and its fields as one line; an exception is formatted by `logging`.

    A custom formatter can read both separately, from `everwork_event` and `everwork_facts`.
    """
    text = str(event.pop("event"))
    error = event.pop("exc_info", None)
    event = {**_process_facts, **event}
    extra = {"everwork_event": text, "everwork_facts": event}
    facts = _field_text(event)
    return (f"{text}: {facts}" if facts else text,), {"exc_info": error, "extra": extra}


class _Stderr(logging.Handler):
    """Writes each record to standard error in one piece, so that the lines of several processes do not mix."""

    def __init__(self, form: Callable[[logging.LogRecord], str]) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line of bounded length, without passwords."""
        return self._form(record)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; a line that cannot be written is dropped without further effect."""
        try:
            _write(f"{self.format(record)}\n")
        except RecursionError:
            raise
        except Exception:  # noqa: BLE001 - like every handler of `logging`
            self.handleError(record)


def _write(line: str) -> None:
    if sys.stderr is None:
        return
    try:
        descriptor = sys.stderr.fileno()
    except (OSError, AttributeError, io.UnsupportedOperation):  # `sys.stderr` was replaced by a text buffer.
        sys.stderr.write(line)
        return
    sys.stderr.flush()
    with _locked(descriptor):
        _write_all(descriptor, line.encode(errors="backslashreplace"))


def _write_all(descriptor: int, left: bytes) -> None:
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


@contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    """Keep other processes from writing to a pipe or socket, which splits long lines; files need no lock."""
    mode = os.fstat(descriptor).st_mode
    is_locked = (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)) and _lock(descriptor)
    try:
        yield
    finally:
        if is_locked:
            with suppress(OSError):
                fcntl.lockf(descriptor, fcntl.LOCK_UN)


def _lock(descriptor: int) -> bool:
    """Lock the file behind a descriptor; returns False if it cannot be locked in time, or at all."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            # `flock` would not work: processes that inherited a descriptor share its lock.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.001)
        except OSError:
            return False
        else:
            return True


def _json(record: logging.LogRecord) -> str:
    fields: dict[str, Any] = {
        "time": _time(record),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": _event(record),
    }
    for name, fact in _facts(record).items():
        fields[f"{name}_" if name in fields or name == "exception" else name] = _value(fact)
    if trace := _trace(record):
        fields["exception"] = trace
    return orjson.dumps({_kept(name): value for name, value in fields.items()}).decode()


def _value(fact: object) -> Any:
    """A field as a JSON value; as a string if it is too long or not a JSON value."""
    if isinstance(fact, str):
        return _kept(fact)
    try:
        text = orjson.dumps(fact, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError, RecursionError):  # Such as a number over 64 bits, a lone surrogate, or a cycle.
        return _kept(_repr(fact))
    kept = _kept(text)
    return orjson.Fragment(text) if kept == text else kept


def _console(record: logging.LogRecord) -> str:
    facts, trace = _field_text(_facts(record)), _trace(record)
    line = f"{_time(record)} {record.levelname:<8} {record.name}: {_event(record)}"
    return f"{line}{f'  {facts}' if facts else ''}{chr(10) if trace else ''}{trace}"


_FORMATS: Final[Mapping[str, Callable[[logging.LogRecord], str]]] = {"console": _console, "json": _json}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _event(record: logging.LogRecord) -> str:
    found = getattr(record, "everwork_event", None)
    return _kept(found if isinstance(found, str) else record.getMessage())


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    attempt = attempt_here.get()
    of_attempt = {} if attempt is None else attempt.log_facts()
    bound = structlog.contextvars.get_contextvars()
    return {**_process_facts, **of_attempt, **bound, **getattr(record, "everwork_facts", {})}


_plain: Final = logging.Formatter()


def _trace(record: logging.LogRecord) -> str:
    trace = _plain.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""
    return _kept("\n".join(part for part in (trace, record.stack_info) if part))


def _field_text(facts: Mapping[str, Any]) -> str:
    return " ".join(
        f"{name}={_kept(fact)!r}" if isinstance(fact, str) else _other(name, fact) for name, fact in facts.items()
    )


def _other(name: str, fact: object) -> str:
    return f"{name}={_kept(_repr(fact))}"


def _repr(fact: object) -> str:
    try:
        return repr(fact)
    except Exception:  # noqa: BLE001 - users' objects, and numbers of more than 4,300 digits
        return f"<a {type(fact).__name__} that cannot be shown>"


def _kept(text: str) -> str:
    """A text as it is logged. Secrets are masked before it is shortened: a shortened secret would not be recognized."""
    left_out, examined, half = len(text) - TEXT_CHARS_MAX, 8 * TEXT_CHARS_MAX, TEXT_CHARS_MAX // 2
    if left_out > 2 * examined:
        text = f"{text[:examined]}{text[-examined:]}"
    text = _without_secrets(text).encode(errors="backslashreplace").decode()
    if len(text) <= TEXT_CHARS_MAX:
        return text
    return f"{text[:half]} [... about {max(left_out, 1):,} characters left out ...] {text[-half:]}"


# Each of these patterns examines a position a bounded number of times, because error messages are untrusted.
_ADDRESS: Final = re.compile(r'://(?:\\.|[^\s"\\])+')
_USER: Final = re.compile(r"://[^:/?#@]*:")
_BLANKS: Final = re.compile(r'(://[^\s:/?#@"]*:)(?!\d*(?:[\s/?#]|$))[^\s"@]{0,100}(?: [^\s"@]{0,60}){1,3}@')
_PARAMETER: Final = re.compile(
    r"""((?:[?&][^\s=&?"]{0,100}?(?:pass|secret|token)[^\s=&?"]{0,100}|pass(?:word|wd|phrase)?|pwd|secret|token)\s?=\s?)"""
    r"""(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^\s&"']+|'[^\s&"']*)""",
    re.IGNORECASE,
)


def _without_secrets(text: str) -> str:
    """The text with all passwords hidden, because drivers put them into their errors."""
    if "://" in text:
        text = _BLANKS.sub(r"\1***@", _ADDRESS.sub(_without_password, text))
    return _PARAMETER.sub(r"\1***", text) if "=" in text else text


def _without_password(address: re.Match[str]) -> str:
    """Everything between a user's name and the last "@" is the password."""
    text = address[0]
    last = text.rfind("@")
    user = _USER.search(text, 0, max(last, 0))
    return f"{text[: user.end()]}***{text[last:]}" if user else text
