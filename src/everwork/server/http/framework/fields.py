"""Types of request values: each validates JSON and query strings, and describes itself as a JSON schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from everwork.codec.json import encode_object, require_object
from everwork.codec.new_job import search_text
from everwork.core import checks
from everwork.core.instants import moment_ms
from everwork.core.limits import ERROR_CHARS_MAX, KEY_MAX, NAME_CHARS_MAX
from everwork.core.states import SYNONYMS
from everwork.core.texts import error_text, traceback_text
from everwork.exceptions import InvalidInput

Schema = dict[str, Any]
ACTIVATABLE: Final = "ACTIVATABLE"
LIST_ITEMS_MAX: Final = 1_000


class FieldType(Protocol):
    """The type of a request value."""

    @property
    def schema(self) -> Schema:
        """The JSON schema."""

    def read(self, name: str, value: object) -> Any:
        """Validate a value from a JSON body."""

    def parse(self, name: str, text: str) -> Any:
        """Validate a value from a query string."""


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer within bounds."""

    low: int
    high: int

    @property
    def schema(self) -> Schema:
        """The JSON schema."""
        return {"type": "integer", "minimum": self.low, "maximum": self.high}

    def read(self, name: str, value: object) -> int:
        """The integer; JSON does not distinguish 1 from 1.0."""
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        return checks.whole_number(name, value, self.low, self.high)

    def parse(self, name: str, text: str) -> int:
        """The number, parsed from decimal digits."""
        digits = text.removeprefix("-")
        is_number = digits.isascii() and digits.isdigit() and len(digits) <= 20
        return checks.whole_number(name, int(text) if is_number else text, self.low, self.high)


@dataclass(frozen=True, slots=True)
class Number:
    """A number within bounds."""

    low: float
    high: float

    @property
    def schema(self) -> Schema:
        """The JSON schema."""
        return {"type": "number", "minimum": self.low, "maximum": self.high}

    def read(self, name: str, value: object) -> float:
        """The number."""
        return checks.number(name, value, self.low, self.high)

    def parse(self, name: str, text: str) -> float:
        """The number, parsed from decimal digits."""
        try:
            return self.read(name, float(text))
        except ValueError:
            return self.read(name, text)


@dataclass(frozen=True, slots=True)
class Name:
    """A printable name."""

    schema: Schema = field(
        default_factory=lambda: {"type": "string", "minLength": 1, "maxLength": NAME_CHARS_MAX, "format": "printable"}
    )

    def read(self, name: str, value: object) -> str:
        """The name."""
        return checks.name(name, value)

    parse = read


@dataclass(frozen=True, slots=True)
class Text:
    """Any text up to a maximum length."""

    chars_max: int

    @property
    def schema(self) -> Schema:
        """The JSON schema."""
        return {"type": "string", "maxLength": self.chars_max, "format": "text"}

    def read(self, name: str, value: object) -> str:
        """The text."""
        return checks.text(name, value, self.chars_max)

    parse = read


@dataclass(frozen=True, slots=True)
class SearchText:
    """A text to search for in error messages."""

    schema: Schema = field(
        default_factory=lambda: {"type": "string", "maxLength": ERROR_CHARS_MAX, "pattern": r"\S", "format": "text"}
    )

    def read(self, name: str, value: object) -> str:
        """The text."""
        return search_text(name, value)

    parse = read


@dataclass(frozen=True, slots=True)
class Message:
    """An error message of any length: a failure must not be refused because of its message."""

    schema: Schema = field(default_factory=lambda: {"type": "string"})

    def read(self, name: str, value: object) -> str:
        """The part of the message that is stored."""
        if not isinstance(value, str):
            raise InvalidInput(name, f"must be a string, not {checks.shown(value)}")
        return error_text(value)

    parse = read


@dataclass(frozen=True, slots=True)
class Traceback:
    """The traceback of a failure; like the message, it can have any length."""

    schema: Schema = field(default_factory=lambda: {"type": "string"})

    def read(self, name: str, value: object) -> str | None:
        """The part of the traceback that is stored; None if there is none."""
        if not isinstance(value, str):
            raise InvalidInput(name, f"must be a string, not {checks.shown(value)}")
        return traceback_text(value) or None

    parse = read


@dataclass(frozen=True, slots=True)
class Flag:
    """A boolean."""

    schema: Schema = field(default_factory=lambda: {"type": "boolean"})

    def read(self, name: str, value: object) -> bool:
        """The boolean."""
        if not isinstance(value, bool):
            raise InvalidInput(name, f"must be true or false, not {checks.shown(value)}")
        return value

    def parse(self, name: str, text: str) -> bool:
        """The boolean, parsed from `true` or `false`."""
        return self.read(name, {"true": True, "false": False}.get(text, text))


@dataclass(frozen=True, slots=True)
class Instant:
    """An RFC 3339 timestamp; read as milliseconds UTC."""

    schema: Schema = field(default_factory=lambda: {"type": "string", "format": "date-time"})

    def read(self, name: str, value: object) -> int:
        """The instant."""
        return moment_ms(name, value)

    parse = read


@dataclass(frozen=True, slots=True)
class JsonObject:
    """A JSON object up to a maximum size."""

    bytes_max: int

    @property
    def schema(self) -> Schema:
        """The JSON schema."""
        return {"type": "object", "additionalProperties": True}

    def read(self, name: str, value: object) -> Mapping[str, Any]:
        """The object, if it can be stored."""
        encode_object(name, value, self.bytes_max)
        return require_object(name, value)

    def parse(self, name: str, text: str) -> Mapping[str, Any]:
        """Always refused: a query cannot hold objects."""
        return self.read(name, text)


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a set of words, in upper or lower case."""

    words: tuple[str, ...]

    @property
    def schema(self) -> Schema:
        """The JSON schema."""
        return {"type": "string", "enum": sorted({*self.words, *(word.upper() for word in self.words)})}

    def read(self, name: str, value: object) -> str:
        """The word as listed."""
        found = next((word for word in self.words if isinstance(value, str) and value.lower() == word), None)
        if found is None:
            raise InvalidInput(name, f"must be one of {', '.join(self.words)}, not {checks.shown(value)}")
        return found

    parse = read


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of values of one type; in a query the parameter is repeated."""

    item: FieldType
    items_max: int = LIST_ITEMS_MAX
    items_min: int = 0

    @property
    def schema(self) -> Schema:
        """The JSON schema."""
        return {"type": "array", "items": self.item.schema, "maxItems": self.items_max, "minItems": self.items_min}

    def read(self, name: str, value: object) -> tuple[Any, ...]:
        """The values."""
        if not isinstance(value, list):
            raise InvalidInput(name, f"must be a list, not {checks.shown(value)}")
        self._check_length(name, value)
        return tuple(self.item.read(f"{name}[{at}]", item) for at, item in enumerate(value))

    def parse(self, name: str, text: str) -> tuple[Any, ...]:
        """A single value as a list."""
        return (self.item.parse(name, text),)

    def parse_all(self, name: str, texts: Sequence[str]) -> tuple[Any, ...]:
        """The values of a repeated parameter."""
        self._check_length(name, texts)
        return tuple(self.item.parse(name, text) for text in texts)

    def _check_length(self, name: str, values: Sequence[object]) -> None:
        if not self.items_min <= len(values) <= self.items_max:
            raise InvalidInput(name, f"must have {self.items_min} to {self.items_max:,} items, not {len(values):,}")


NAME: Final = Name()
SEARCH_TEXT: Final = SearchText()
MESSAGE: Final = Message()
TRACEBACK: Final = Traceback()
FLAG: Final = Flag()
INSTANT: Final = Instant()
KEY: Final = Integer(1, KEY_MAX)
STATE: Final = OneOf(tuple(sorted(word.lower() for word in (*SYNONYMS, ACTIVATABLE))))
