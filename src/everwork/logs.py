"""How Everwork logs: structured events, written through the standard `logging` of whoever runs it."""

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
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import orjson
import structlog

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
TEXT_CHARS_MAX: Final = 16_000
"""Of a longer fact or exception, the beginning and the end are written."""
TURN_SECONDS: Final = 5.0
"""How long a line waits for that of another process: one that has been stopped must not stop the others."""


def configure(format: str = "console", level: str = "INFO", *, force: bool = False) -> bool:
    """Let everything that is logged go to standard error, one write per line; whether that was done.

    "json" writes one object per line, "console" is for people. A program that has given `logging` handlers of its own
    is left alone, unless `force` is said. Facts that are bound with `structlog.contextvars` stand in every line, and so
    does the job whose handler writes it.
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


class JobFacts(Protocol):
    """What a line tells of the job that it was written for."""

    @property
    def key(self) -> int:
        """The job's key."""

    @property
    def type(self) -> str:
        """Its type."""

    @property
    def attempt(self) -> int:
        """The number of the attempt."""


job_here: Final[ContextVar[JobFacts | None]] = ContextVar("everwork-job", default=None)
"""The job that is worked at in this context. Set for each job; what it tells is made up only for lines."""


class Outage:
    """Few words about something that is away, however often it is tried; and one when it is back."""

    def __init__(self, log: Any, away: str, back: str, **facts: str) -> None:
        self._log = log.bind(**facts)
        self._away = away
        self._back = back
        self.errors = 0

    def report(self, error: Exception) -> None:
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
    """Writes each record to standard error at once: lines of processes that share it, and log like this, do not mix."""

    def __init__(self, form: Callable[[logging.LogRecord], str]) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        """The record as its line, bounded and without passwords."""
        return self._form(record)

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
    with _turn(descriptor):
        _write_all(descriptor, line.encode(errors="backslashreplace"))


def _write_all(descriptor: int, left: bytes) -> None:
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


@contextmanager
def _turn(descriptor: int) -> Iterator[None]:
    """Keep other processes from writing: what is long goes into a pipe or a socket in parts; a file takes it whole."""
    mode = os.fstat(descriptor).st_mode
    is_taken = (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)) and _take_turn(descriptor)
    try:
        yield
    finally:
        if is_taken:
            with suppress(OSError):
                fcntl.lockf(descriptor, fcntl.LOCK_UN)


def _take_turn(descriptor: int) -> bool:
    """Lock what a descriptor leads to; not if it cannot be locked, or is not let go of."""
    deadline = time.monotonic() + TURN_SECONDS
    while True:
        try:
            # Not `flock`: processes that have inherited a descriptor hold such a lock together.
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
    said: dict[str, Any] = {
        "time": _time(record),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": _event(record),
    }
    for name, fact in _facts(record).items():
        said[f"{name}_" if name in said or name == "exception" else name] = _value(fact)
    if trace := _trace(record):
        said["exception"] = trace
    return orjson.dumps({_kept(name): value for name, value in said.items()}).decode()


def _value(fact: object) -> Any:
    """A fact as JSON takes it; as a text, if it is too long or is none of JSON's."""
    if isinstance(fact, str):
        return _kept(fact)
    try:
        text = orjson.dumps(fact, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError, RecursionError):  # A number over 64 bits, a lone surrogate, a circle.
        return _kept(_repr(fact))
    kept = _kept(text)
    return orjson.Fragment(text) if kept == text else kept


def _console(record: logging.LogRecord) -> str:
    facts, trace = _told(_facts(record)), _trace(record)
    line = f"{_time(record)} {record.levelname:<8} {record.name}: {_event(record)}"
    return f"{line}{f'  {facts}' if facts else ''}{chr(10) if trace else ''}{trace}"


_FORMATS: Final[Mapping[str, Callable[[logging.LogRecord], str]]] = {"console": _console, "json": _json}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _event(record: logging.LogRecord) -> str:
    found = getattr(record, "everwork_event", None)
    return _kept(found if isinstance(found, str) else record.getMessage())


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    job = job_here.get()
    of_job = {} if job is None else {"key": job.key, "type": job.type, "attempt": job.attempt}
    return {**of_job, **structlog.contextvars.get_contextvars(), **getattr(record, "everwork_facts", {})}


_plain: Final = logging.Formatter()


def _trace(record: logging.LogRecord) -> str:
    trace = _plain.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""
    return _kept("\n".join(part for part in (trace, record.stack_info) if part))


def _told(facts: Mapping[str, Any]) -> str:
    return " ".join(
        f"{name}={_kept(fact)!r}" if isinstance(fact, str) else _other(name, fact) for name, fact in facts.items()
    )


def _other(name: str, fact: object) -> str:
    return f"{name}={_kept(_repr(fact))}"


def _repr(fact: object) -> str:
    try:
        return repr(fact)
    except Exception:  # noqa: BLE001 - users' objects; and numbers of more than 4,300 digits
        return f"<a {type(fact).__name__} that cannot be shown>"


def _kept(text: str) -> str:
    """What is written of a text. Secrets first: one that is cut through would not be known."""
    left_out, looked_at, half = len(text) - TEXT_CHARS_MAX, 8 * TEXT_CHARS_MAX, TEXT_CHARS_MAX // 2
    if left_out > 2 * looked_at:
        text = f"{text[:looked_at]}{text[-looked_at:]}"
    text = _without_secrets(text).encode(errors="backslashreplace").decode()
    if len(text) <= TEXT_CHARS_MAX:
        return text
    return f"{text[:half]} [... about {max(left_out, 1):,} characters left out ...] {text[-half:]}"


# Each of these looks at a place of the text a bounded number of times: texts of errors come from anywhere.
_ADDRESS: Final = re.compile(r'://(?:\\.|[^\s"\\])+')
_USER: Final = re.compile(r"://[^:/?#@]*:")
_BLANKS: Final = re.compile(r'(://[^\s:/?#@"]*:)(?!\d*(?:[\s/?#]|$))[^\s"@]{0,100}(?: [^\s"@]{0,60}){1,3}@')
_PARAMETER: Final = re.compile(
    r"""((?:[?&][^\s=&?"]{0,100}?(?:pass|secret|token)[^\s=&?"]{0,100}|pass(?:word|wd|phrase)?|pwd|secret|token)\s?=\s?)"""
    r"""(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^\s&"']+|'[^\s&"']*)""",
    re.IGNORECASE,
)


def _without_secrets(text: str) -> str:
    """The text with passwords hidden, wherever they stand: drivers put them into their errors."""
    if "://" in text:
        text = _BLANKS.sub(r"\1***@", _ADDRESS.sub(_without_password, text))
    return _PARAMETER.sub(r"\1***", text) if "=" in text else text


def _without_password(address: re.Match[str]) -> str:
    """What stands between a user's name and the last "@" is the password, whatever it consists of."""
    text = address[0]
    last = text.rfind("@")
    user = _USER.search(text, 0, max(last, 0))
    return f"{text[: user.end()]}***{text[last:]}" if user else text
