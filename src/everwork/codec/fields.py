"""The fields of jobs, read once from their declarations in the core, and messages built by looping over them.

The loop is for cold paths: it takes up to twice as long as a function that names every field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, get_args, get_type_hints

from everwork.core.job import Called, Kind, StoredJob
from everwork.core.queries import Reason
from everwork.core.states import State

if TYPE_CHECKING:
    from google.protobuf.message import Message

Value = TypeVar("Value")
M = TypeVar("M", bound="Message")


class Field(NamedTuple):
    """A field as its annotation declares it."""

    name: str
    json: str
    """The name in JSON."""
    type: Any
    """The Python type, without None."""
    kind: Kind | None
    is_optional: bool


def fields_of(declared: type) -> tuple[Field, ...]:
    """The fields of a class, in declaration order."""
    return tuple(_field(name, hint) for name, hint in get_type_hints(declared, include_extras=True).items())


def _field(name: str, hint: Any) -> Field:
    is_optional = NoneType in get_args(hint)
    one = next(option for option in get_args(hint) if option is not NoneType) if is_optional else hint
    marks = getattr(one, "__metadata__", ())
    kind = next((mark for mark in marks if isinstance(mark, Kind)), None)
    called = next((mark.json for mark in marks if isinstance(mark, Called)), None)
    json = called or (name.removesuffix("_ms") if kind is Kind.INSTANT else name)
    return Field(name, json, get_args(one)[0] if marks else one, kind, is_optional)


JOB: Final = fields_of(StoredJob)
TEXTS: Final = tuple(field.name for field in JOB if field.type is str and field.kind is None and field.is_optional)
"""Optional text fields of a job whose values come from users."""
JSON_TEXTS: Final = tuple(field.name for field in JOB if field.kind is Kind.JSON)


_WRITE: Final[Mapping[object, Callable[[Any], Any]]] = {
    Kind.JSON: str.encode,
    Reason: attrgetter("value"),
    frozenset[State]: sorted,
}
"""Converters for values that messages represent differently."""
_READ: Final[Mapping[object, Callable[[Any], Any]]] = {Kind.JSON: bytes.decode, Reason: Reason, State: State}


class MessageFields(Generic[Value, M]):
    """Converts values of a class to messages with the same field names, and back; None becomes an absent field."""

    def __init__(self, declared: type[Value], message: type[M]) -> None:
        fields = fields_of(declared)
        self._declared, self._message = declared, message
        self._names = tuple(field.name for field in fields)
        self._values = attrgetter(*self._names)  # All of them in one call.
        self._written = [
            (at, write) for at, field in enumerate(fields) if (write := _WRITE.get(field.kind or field.type))
        ]
        self._read = [(field.name, field.is_optional, _READ.get(field.kind or field.type)) for field in fields]

    def message(self, value: Value) -> M:
        """A value as a message."""
        values: list[Any] = list(self._values(value))
        for at, write in self._written:
            if (one := values[at]) is not None:
                values[at] = write(one)
        return self._message(**dict(zip(self._names, values, strict=True)))

    def value(self, message: M) -> Value:
        """The value of a message."""
        found: dict[str, Any] = {}
        for name, is_optional, read in self._read:
            if not is_optional or message.HasField(name):
                one = getattr(message, name)
                found[name] = one if read is None else read(one)
        return self._declared(**found)
