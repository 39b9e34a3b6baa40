"""Validation of external values: each error names the field and says what is allowed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from datetime import date, time
from typing import Final

from everwork.core.limits import ATTEMPT_MAX, KEY_MAX, NAME_CHARS_MAX
from everwork.core.states import ACTIVATABLE, SYNONYMS, State
from everwork.exceptions import InvalidInput, JobNotFound

SHOWN_CHARS_MAX: Final = 80
"""How much of a value an error message quotes."""
KEY_CHARS_SHOWN: Final = 60
"""How much of an unknown key an error message quotes."""
_KEY: Final = re.compile(r"[1-9][0-9]{0,18}")


def whole_number(field: str, value: object, low: int, high: int) -> int:
    """A whole number within its bounds; a bool is not a number."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidInput(field, f"must be a whole number from {low} to {high}, not {shown(value)}")
    return value


def number(field: str, value: object, low: float, high: float) -> float:
    """A finite number within its bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InvalidInput(field, f"must be a number from {_figure(low)} to {_figure(high)}, not {shown(value)}")
    return value


def typed(text: str) -> int | float | str:
    """The number that a user typed; if it is not one, the text, which the field's check then refuses by name.

    Python would accept digits of any script, and underscores between them; neither is accepted here.
    """
    if re.fullmatch(r"[+-]?[0-9]{1,1000}", text):
        return int(text)
    is_decimal = re.fullmatch(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?", text)
    return float(text) if is_decimal else text


def milliseconds(field: str, seconds: object, low: float, high: float) -> int:
    """Seconds, as people write them, converted to whole milliseconds."""
    return round(number(field, seconds, low, high) * 1000)


def name(field: str, value: object) -> str:
    """A name that people will read: 1 to 255 printable characters."""
    if not isinstance(value, str):
        raise InvalidInput(field, f"must be a string, not {shown(value)}")
    if not 1 <= len(value) <= NAME_CHARS_MAX:
        raise InvalidInput(field, f"must have 1 to {NAME_CHARS_MAX} characters, not {len(value)}")
    if not value.isprintable():
        raise InvalidInput(field, f"must consist of printable characters, not {shown(value)}")
    return value


def text(field: str, value: object, chars_max: int) -> str:
    """Any text that a store accepts, up to a length."""
    if not isinstance(value, str):
        raise InvalidInput(field, f"must be a string, not {shown(value)}")
    if len(value) > chars_max:
        raise InvalidInput(field, f"must have at most {chars_max:,} characters, not {len(value):,}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidInput(field, f"must be Unicode without lone surrogates, not {shown(value)}") from None
    if "\0" in value:
        raise InvalidInput(field, f"must not contain NUL characters, like {shown(value)}")
    return value


def job_key(value: object, field: str = "key") -> int:
    """A job key, as a number or as its decimal text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= len(str(KEY_MAX)):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= KEY_MAX:
        raise InvalidInput(field, f"must be a job key, a whole number from 1 to {KEY_MAX}, not {shown(value)}")
    return value


def known_key(text: str, field: str = "key") -> int:
    """A job key that a caller sent: a malformed key counts as a job that does not exist."""
    if not text:
        raise InvalidInput(field, "is required")
    if _KEY.fullmatch(text) and (key := int(text)) <= KEY_MAX:
        return key
    cut = text if len(text) <= KEY_CHARS_SHOWN else f"{text[:KEY_CHARS_SHOWN]}..."
    raise JobNotFound(0, f"Job {shown(cut)} not found")


def attempt(value: object) -> int:
    """The number of an attempt; 0 means the running one."""
    return whole_number("attempt", value, 0, ATTEMPT_MAX)


def state(value: object, field: str = "state") -> State:
    """A state by its name or one of its synonyms, in any case."""
    if isinstance(value, State):
        return value
    found = SYNONYMS.get(value.upper()) if isinstance(value, str) else None
    if found is None:
        allowed = ", ".join(s.label for s in State)
        raise InvalidInput(field, f"must be one of {allowed}, not {shown(value)}")
    return found


def state_filter(value: object, field: str = "state") -> tuple[State, bool]:
    """A state in a filter: the state, and whether only jobs that are due match."""
    if isinstance(value, str) and value.upper() == ACTIVATABLE:
        return State.PENDING, True
    return state(value, field), False


def state_filters(values: Iterable[object], field: str = "state") -> tuple[frozenset[State], bool]:
    """Several states in a filter; none means all, and "activatable" cannot be combined with another state."""
    found = {state_filter(value, field) for value in values}
    due = any(is_due for _, is_due in found)
    if due and len(found) > 1:
        raise InvalidInput(field, "must be activatable alone: it cannot be combined with other states")
    return frozenset(state for state, _ in found), due


def shown(value: object) -> str:
    """A value as an error message shows it: short, and on one line."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, date | time):
        return value.isoformat()
    text = ""
    try:
        for part in _parts(value):
            text += part
            if len(text) > SHOWN_CHARS_MAX:
                break
    except (ValueError, RecursionError):  # Integers of more than 4,300 digits; containers a thousand levels deep.
        text = f"a {type(value).__name__} too long to show"
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[: SHOWN_CHARS_MAX - 3]}..."


def _parts(value: object) -> Iterator[str]:
    """The `repr` of a value, piece by piece: that of a large one would be made in vain."""
    if type(value) is list:
        yield "["
        for index, one in enumerate(value):
            yield from ([", "] if index else [])
            yield from _parts(one)
        yield "]"
    elif type(value) is dict:
        yield "{"
        for index, (name, one) in enumerate(value.items()):
            yield f"{', ' if index else ''}{_repr(name)}: "
            yield from _parts(one)
        yield "}"
    else:
        yield _repr(value)


def _repr(value: object) -> str:
    return repr(value[: SHOWN_CHARS_MAX + 1] if isinstance(value, str | bytes) else value)


def _figure(bound: float) -> str:
    """A bound as people write it: no exponent, no needless zeros."""
    return f"{int(bound)}" if bound == int(bound) else f"{bound:g}"
