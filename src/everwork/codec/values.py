"""The values of an annotation: how they are converted to JSON and back."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from datetime import date
from types import NoneType, UnionType
from typing import Annotated, Any, Final, ForwardRef, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from everwork.codec.json import MASKED, STORABLE_TYPES, decode, encode
from everwork.core.checks import shown
from everwork.core.limits import PAYLOAD_BYTES_MAX
from everwork.core.texts import error_text
from everwork.exceptions import BadConfiguration, InvalidInput, ResultNotStored

NO_TYPE: Final[frozenset[type]] = frozenset()
_EXACT: Final[Mapping[object, frozenset[type]]] = {
    str: frozenset({str}),
    int: frozenset({int}),
    float: frozenset({float, int}),
    bool: frozenset({bool}),
    dict: frozenset({dict}),
    list: frozenset({list}),
    dict[str, Any]: frozenset({dict}),
    list[Any]: frozenset({list}),
    None: frozenset({NoneType}),
    NoneType: frozenset({NoneType}),
}
"""Annotations that JSON values match as is; all others go through pydantic."""


class Values:
    """The values that an annotation allows.

    `exact` holds the types of values that are their own JSON, or None if every value is left as is. pydantic is
    loaded only for annotations beyond plain JSON, or for values that do not fit.
    """

    __slots__ = ("_adapter", "_hint", "exact", "is_plain")

    def __init__(self, name: str, hint: Any) -> None:
        self._hint = hint
        self.exact = exact_types(hint)
        self.is_plain = _is_plain(hint)
        """Whether a value read from JSON is the annotated value."""
        # An annotation that cannot be filled from JSON is refused at the declaration.
        self._adapter: Any = None if self.is_plain else _adapter(name, hint)

    def dump(self, name: str, value: Any, *, may_narrow: bool = False) -> Any:
        """A checked value as JSON; a value that would be read back as something else is refused.

        `may_narrow`: it may be read back as an annotated base class, as for results.
        """
        # A JSON value is read as a worker will read it.
        checked = self.load(name, value)
        if self.is_plain:
            return checked
        problem = None
        for by_alias in (True, False):  # Fields can have different names for reading and writing.
            dumped = self._written(name, checked, by_alias=by_alias)
            try:
                read = self.load(name, dumped)
            except InvalidInput as error:
                problem = problem or InvalidInput(error.field, f"cannot be read back from JSON: {error.problem}")
            else:
                _require_same(name, read, checked, self._hint, may_narrow=may_narrow)
                _require_base64(name, dumped, checked, value)
                # For example, a password that a validator hashes: once here, and again for the handler.
                if not may_narrow and _differ(read, checked) and dumped != self._written(name, read, by_alias=by_alias):
                    raise InvalidInput(
                        name, "would be changed a second time by its validators when the handler receives it"
                    )
                return dumped
        raise problem or AssertionError

    def _written(self, name: str, checked: Any, *, by_alias: bool) -> Any:
        try:
            return self._adapter.dump_python(checked, mode="json", by_alias=by_alias, round_trip=True)
        except ValueError as error:  # Includes pydantic's errors.
            raise InvalidInput(name, f"cannot be stored as JSON: {_reason(error, checked)}") from None

    def load(self, name: str, value: Any) -> Any:
        """The annotated value; raises if it does not fit."""
        from pydantic import PydanticUserError, ValidationError  # noqa: PLC0415 - see the class

        adapter = self._adapter
        if adapter is None:
            self._adapter = adapter = _adapter(name, self._hint)
        try:
            return adapter.validate_python(value)
        except PydanticUserError as error:  # A model that refers to a class that is not defined yet.
            raise BadConfiguration(f"parameter '{name}': {str(error).splitlines()[0]}") from None
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            if (found := self._strictly(adapter, value)) is not None:
                return found
        inner = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        problem = first["msg"].removeprefix("Value error, ")
        if first["type"] != "missing":
            problem += f", not {shown(_at(value, first['loc']))}"
        raise InvalidInput(f"{name}{inner}", problem) from None

    def _strictly(self, adapter: Any, value: Any) -> Any:
        """The value of a strict model, which reads dates and similar types only from JSON."""
        from pydantic import ValidationError  # noqa: PLC0415 - see the class

        try:
            return adapter.validate_json(json.dumps(value))
        except (ValidationError, ValueError, TypeError, RecursionError):
            return None


def exact_types(hint: Any) -> frozenset[type] | None:
    """The types of values that are their own JSON; None: every value is left as is."""
    if hint is Any or hint is object:
        return None
    try:
        found = _EXACT.get(hint)
    except TypeError:  # An annotation that cannot be hashed.
        return NO_TYPE
    if found is not None:
        return found
    if get_origin(hint) in (Union, UnionType):
        parts = [exact_types(one) for one in get_args(hint)]
        if all(parts):  # Neither "any value" nor None.
            return frozenset().union(*(part for part in parts if part))
    return NO_TYPE


def _is_plain(hint: Any) -> bool:
    """Whether these values are plain JSON: strings, numbers, and lists and objects of them."""
    if exact_types(hint) != NO_TYPE:
        return True
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType, list):
        return all(_is_plain(one) for one in inner)
    return origin is dict and inner[0] is str and _is_plain(inner[1])


def _require_same(name: str, read: Any, checked: Any, hint: Any, *, may_narrow: bool) -> None:
    """Refuse a value that JSON would silently turn into something else."""
    whole = Pair(name, read, checked, may_narrow)
    _require_unambiguous(whole)
    pairs = [whole._replace(is_any=may_narrow or _takes_anything(hint))]
    while pairs:
        pair = pairs.pop()
        _require_unambiguous(pair)
        at, one, given, _ = pair
        if hasattr(given, "get_secret_value") and _secret(one) != _secret(given):
            raise InvalidInput(at, MASKED.format(type(given).__name__))
        more = set() if may_narrow or type(one) is type(given) else _dict(given).keys() - _dict(one)
        if more and isinstance(given, type(one)):
            lost = f"the handler would receive a {type(one).__name__} without {', '.join(sorted(more))}"
            raise InvalidInput(at, f"must not be a {type(given).__name__}: {lost}; annotate it with that class")
        pairs += _parts(pair, may_narrow=may_narrow)


class Pair(NamedTuple):
    """A part of a value as read back from JSON, and as given; `is_any`: its annotation allows any JSON."""

    at: str
    read: Any
    given: Any
    is_any: bool


def _require_unambiguous(pair: Pair) -> None:
    at, one, given, is_any = pair
    if not is_any and isinstance(one, str | date) and type(one) is not type(given) and one != given:
        kinds = f"{type(given).__name__} would be read as {type(one).__name__}"
        raise InvalidInput(at, f"is ambiguous in JSON: {kinds}; annotate it with one class")


def _takes_anything(hint: Any) -> bool:
    """Whether an annotation leaves open how a value, or a part of it, is read."""
    is_open = hint is Any or hint is object or isinstance(hint, str | ForwardRef | TypeVar)
    if is_open or hasattr(hint, "__value__"):  # An alias, which can contain itself.
        return True
    if isinstance(hint, type) and not get_args(hint):
        return issubclass(hint, Collection) and not issubclass(hint, str | bytes)
    if get_origin(hint) is Literal:
        return False  # Its arguments are values.
    inner = get_args(hint)[:1] if get_origin(hint) is Annotated else get_args(hint)
    return any(_takes_anything(one) for one in inner if one is not Ellipsis)


def _secret(value: Any) -> Any:
    return value.get_secret_value() if hasattr(value, "get_secret_value") else value


def _differ(read: Any, checked: Any) -> bool:
    try:
        return bool(read != checked)
    except Exception:  # noqa: BLE001 - user code: not everything can be compared
        return False


def _require_base64(name: str, dumped: Any, checked: Any, value: Any) -> None:
    """Refuse bytes that pydantic has read as base64 although they are not valid: it skips invalid characters."""
    if isinstance(value, bytes) and isinstance(checked, bytes) and dumped != value.decode(errors="replace"):
        raise InvalidInput(name, "must be base64, as written by base64.b64encode")


def _dict(value: Any) -> dict[str, Any]:
    """The fields of a model or a dataclass; other values have none."""
    kind = type(value)
    if hasattr(kind, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in kind.__dataclass_fields__ if hasattr(value, name)}
    return value.__dict__ if hasattr(kind, "__pydantic_validator__") else {}


def _parts(pair: Pair, *, may_narrow: bool) -> Iterator[Pair]:
    """The parts of two values at the same position."""
    name, read, checked, is_any = pair
    if isinstance(read, list | tuple) and isinstance(checked, list | tuple):
        both = enumerate(zip(read, checked, strict=False))
        yield from (Pair(f"{name}[{at}]", *parts, is_any) for at, parts in both)
    elif isinstance(read, dict) and isinstance(checked, dict):
        if len(read) != len(checked):
            raise InvalidInput(name, "has keys that become the same string in JSON")
        for key in () if may_narrow else checked.keys() - read.keys():
            raise InvalidInput(name, f"has keys that change in JSON, such as {shown(key)}")
        yield from (Pair(f"{name}.{key}", one, checked[key], is_any) for key, one in read.items() if key in checked)
    elif isinstance(checked, type(read)):
        given, fields = _dict(checked), getattr(type(read), "__pydantic_fields__", {})
        for key, one in _dict(read).items():
            if key in given:
                hint = getattr(fields.get(key), "annotation", Any)
                yield Pair(f"{name}.{key}", one, given[key], may_narrow or _takes_anything(hint))


def _adapter(name: str, hint: Any) -> Any:
    from pydantic import PydanticUserError, TypeAdapter  # noqa: PLC0415 - see the class
    from pydantic.errors import PydanticUndefinedAnnotation  # noqa: PLC0415 - see the class

    what = "the result" if name == "result" else f"parameter '{name}'"
    try:
        return TypeAdapter(hint)
    except (PydanticUserError, PydanticUndefinedAnnotation, TypeError, LookupError) as error:
        # Pydantic's advice is for the fields of models.
        problem, is_unknown_class, _ = str(error).splitlines()[0].partition(". Set `arbitrary_types_allowed")
        if is_unknown_class:
            problem += f"; {STORABLE_TYPES}"
        raise BadConfiguration(f"{what}: its annotation cannot be serialized to JSON: {problem}") from None


def _reason(error: Exception, value: Any) -> str:
    text = str(error).removeprefix("Error serializing to JSON: ")
    if isinstance(value, bytes) or "utf-8" in text:
        return f"{text}; for other bytes, annotate it with pydantic.Base64Bytes and pass base64.b64encode(...) of them"
    return text


def _at(value: Any, path: tuple[int | str, ...]) -> Any:
    """The part of a value that an error points to."""
    for part in path:
        try:
            value = value[part]
        except (TypeError, KeyError, IndexError, AttributeError):
            return value
    return value


# Results that cannot be stored ---------------------------------------------------------------------------

NOT_STORED: Final = "everwork.result_not_stored"
"""The name in the result of a job that completed without a storable result; its value is the reason."""
JOB: Final = "everwork.job"
"""The other name in such a note: the job's key, so that a copy in another job's result is not taken for a note."""


def not_stored(key: int, error: Exception) -> str:
    """The note stored in place of a result; the job still completes."""
    return encode("result", {NOT_STORED: error_text(error), JOB: key}, PAYLOAD_BYTES_MAX)


def stored_result(key: int, text: str | None) -> Any:
    """The result of a completed job; raises if the result could not be stored, or was damaged in the store."""
    try:
        value = None if text is None else decode(text)
    except ValueError as error:
        text = f"job '{key}' is completed, but its result was damaged in the store: {error}"
        raise ResultNotStored(key, text) from None
    if isinstance(value, dict) and value.keys() == {NOT_STORED, JOB} and value[JOB] == key:
        raise ResultNotStored(key, f"job '{key}' is completed, but its result could not be stored: {value[NOT_STORED]}")
    return value
