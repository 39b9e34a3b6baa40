"""Error classification: by the type's own rules, then by the built-in ones; classes first, then texts.

Built-in rules set the delay of a retry only where none is declared; they never override what a user declares.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from everwork.core import checks
from everwork.core.limits import ERROR_RULE_CHARS_MAX
from everwork.exceptions import InvalidInput


class Strategy(Enum):
    """How an error is handled: whether and when the job is retried."""

    RETRYABLE = "retryable"
    """Retried after 1 s * 2^attempts, at most 5 minutes."""
    RATE_LIMITED = "rate_limited"
    """Rate limited upstream: retried after 60 seconds."""
    TEMPORARY = "temporary"
    """Retried after 10 seconds."""
    PERMANENT = "permanent"
    """Never retried."""


RETRYABLE_MS: Final = 1_000
RETRYABLE_MS_MAX: Final = 300_000
MAIN: Final = "__main__"
_MAINS: Final = (MAIN, "__mp_main__")
"""The module name of a program's main script, in the program itself and in processes that it spawned."""
FIXED_MS: Final[Mapping[Strategy, int]] = MappingProxyType({Strategy.RATE_LIMITED: 60_000, Strategy.TEMPORARY: 10_000})


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRule:
    """How errors of a class, or containing a text, are handled: `ErrorRule(Strategy.PERMANENT, exception=KeyError)`.

    Args:
        strategy: A `Strategy` or its name, such as `"permanent"`.
        exception: An exception class, or its name with or without its module (`requests.exceptions.Timeout`,
            `Timeout`). Subclasses also match. Classes of the main script are named without a module.
        text: A part of the error text, case-insensitive. Pass either this or `exception`.
    """

    strategy: Strategy
    exception: str | None = None
    text: str | None = None

    def __init__(
        self, strategy: Strategy | str, *, exception: type[BaseException] | str | None = None, text: str | None = None
    ) -> None:
        if (exception is None) == (text is None):
            raise InvalidInput("errors", "each rule must name either an exception or a text")
        object.__setattr__(self, "strategy", _strategy(strategy))
        object.__setattr__(self, "exception", None if exception is None else _class_name(exception))
        object.__setattr__(self, "text", None if text is None else _part("errors.text", text).casefold())


def classify(classes: Sequence[str], text: str, rules: Sequence[ErrorRule] = ()) -> Strategy | None:
    """The strategy of the first rule that matches: own classes, own texts, built-in classes, built-in texts; or None.

    `classes` names the exception's class and its bases, as `class_names` does.
    """
    return match_rules(classes, text, rules) or match_rules(classes, text, BUILT_IN)


def match_rules(classes: Sequence[str], text: str, rules: Sequence[ErrorRule]) -> Strategy | None:
    """The strategy of the first of these rules that matches, classes before texts; None if none does."""
    named, folded = frozenset(classes), text.casefold()
    # A rule may come from a process that imported the main script, where its classes have another module.
    of_main = tuple(name.removeprefix(MAIN) for name in classes if name.startswith(f"{MAIN}."))
    for rule in rules:
        if rule.exception is not None and (rule.exception in named or rule.exception.endswith(of_main)):
            return rule.strategy
    for rule in rules:
        if rule.text is not None and rule.text in folded:
            return rule.strategy
    return None


def delay_ms(strategy: Strategy, attempts: int) -> int | None:
    """How long to wait after this many counted attempts; None: never retried."""
    if strategy is Strategy.RETRYABLE:
        return min(RETRYABLE_MS << min(attempts, 20), RETRYABLE_MS_MAX)
    return FIXED_MS.get(strategy)


def class_names(error: BaseException) -> tuple[str, ...]:
    """The names of an error's class and its bases for rules, with and without their modules."""
    return _names_of(type(error))


def _names_of(exception: type[BaseException]) -> tuple[str, ...]:
    names: list[str] = []
    for cls in exception.__mro__:
        if cls in (BaseException, object):  # They classify nothing.
            continue
        names.append(cls.__qualname__)
        if cls.__module__ != "builtins":
            module = MAIN if cls.__module__ in _MAINS else cls.__module__
            names.append(f"{module}.{cls.__qualname__}")
    return tuple(names)


def built_in_classes(name: str) -> tuple[str, ...]:
    """The names of an exception class and, if it is one of Python's own, of its bases."""
    found = getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, BaseException):
        return _names_of(found)
    return (name,) if name else ()


def _strategy(value: object) -> Strategy:
    try:
        return Strategy(value)
    except ValueError:
        allowed = ", ".join(strategy.value for strategy in Strategy)
        raise InvalidInput("errors.strategy", f"must be one of {allowed}, not {checks.shown(value)}") from None


def _class_name(value: object) -> str:
    if isinstance(value, type) and issubclass(value, BaseException):
        is_bare = value.__module__ in ("builtins", *_MAINS)
        return value.__qualname__ if is_bare else f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, type):
        raise InvalidInput("errors.exception", f"must be an exception class or its name, not {checks.shown(value)}")
    name = _part("errors.exception", value)
    if not all(part.isidentifier() or part == "<locals>" for part in name.split(".")):
        raise InvalidInput("errors.exception", f"must be a Python class name, not {checks.shown(name)}")
    return name


def _part(field: str, value: object) -> str:
    part = checks.text(field, value, ERROR_RULE_CHARS_MAX)
    if not part.strip():
        raise InvalidInput(field, "must not be empty: it would match every error")
    return part


BUILT_IN: Final = (
    ErrorRule(Strategy.RETRYABLE, exception=ConnectionError),
    ErrorRule(Strategy.RETRYABLE, exception=TimeoutError),
    *(
        ErrorRule(Strategy.RETRYABLE, text=text)
        for text in ("connection refused", "timeout", "network unreachable", "temporary failure")
    ),
    *(ErrorRule(Strategy.RATE_LIMITED, text=text) for text in ("rate limit", "too many requests")),
    *(ErrorRule(Strategy.TEMPORARY, text=text) for text in ("service unavailable", "server error")),
)
"""The rules for every type, after its own."""
