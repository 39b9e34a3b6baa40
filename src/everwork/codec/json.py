"""JSON encoding and decoding, with the same rules for every engine and every API."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from dataclasses import fields as dataclass_fields
from enum import Enum
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final

import orjson

from everwork.core.checks import shown
from everwork.core.limits import JSON_DEPTH_MAX
from everwork.core.policy import (
    DEFAULT_TYPE_POLICY,
    POLICY_FIELDS,
    TypePolicy,
    declared_fields,
    policy_from,
    with_retry,
)
from everwork.core.retry import RetryPolicy
from everwork.exceptions import InvalidInput
from everwork.logs import get_logger

log = get_logger("everwork")


def encode_object(field: str, value: object, bytes_max: int) -> str:
    """A JSON object as text; other values are refused, and the error names the field."""
    mapping = require_object(field, value)
    return encode(field, mapping if type(mapping) is dict else dict(mapping), bytes_max)


def require_object(field: str, value: object) -> Mapping[str, Any]:
    """Return the value if it is a mapping; refuse anything else."""
    if not isinstance(value, Mapping):
        raise InvalidInput(field, f"must be a JSON object, not {shown(value)}")
    return value


def encode(field: str, value: object, bytes_max: int) -> str:
    """Any JSON value as text."""
    try:
        raw = orjson.dumps(value, _json_form)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(field, f"must consist of JSON values{_not_made(error)}") from None
    if len(raw) > bytes_max:
        raise InvalidInput(field, f"must be at most {bytes_max:,} bytes of JSON, not {len(raw):,}")
    if b"null" in raw:
        _refuse_not_finite(field, value)
    if raw.count(b"{") + raw.count(b"[") > JSON_DEPTH_MAX:
        _refuse_deep(field, raw)
    return raw.decode()


STORABLE_TYPES: Final = "use a Pydantic model, a dataclass or JSON types, or pass an id"
_UNKNOWN_CLASS: Final = re.compile(r"Unable to serialize unknown type: <class '(?:__main__\.)?(.+)'>")


def _not_made(error: Exception) -> str:
    """The problem, with advice for classes that pydantic does not know."""
    reason = str(error.__cause__ or error)
    unknown = _UNKNOWN_CLASS.fullmatch(reason)
    return f": {reason}" if unknown is None else f", not {unknown[1]}; {STORABLE_TYPES}"


def _json_form(value: object) -> object:
    """The JSON form of a value that is not a JSON type, such as a Decimal, a set or a model."""
    form = any_value().dump_python(value, mode="json", by_alias=True)
    for secret in _secrets(any_value().dump_python(value)) if _ASTERISKS in str(form) else ():
        raise ValueError(MASKED.format(type(secret).__name__))
    return form


MASKED: Final = "a {} would be stored as asterisks; pass its get_secret_value(), or only the name of the secret"
_ASTERISKS: Final = "*" * 10
"""The text that pydantic writes for a secret."""


def _secrets(value: object) -> Iterator[object]:
    if hasattr(value, "get_secret_value"):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _secrets(inner)
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            yield from _secrets(inner)


@lru_cache(maxsize=1)
def any_value() -> Any:
    """Writes any value that pydantic knows."""
    from pydantic import TypeAdapter  # noqa: PLC0415 - few values need it

    return TypeAdapter(Any)


def decode(text: str) -> Any:
    """The value of a JSON text written by Everwork."""
    return orjson.loads(text)


def decode_shown(text: str) -> Any:
    """The value of a stored JSON text, for display; the text itself if it was damaged in the store."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def spliced(text: str) -> Any:
    """A stored JSON text, to be embedded in other JSON unchanged; a plain string if it was damaged in the store."""
    if text == "{}":
        return {}
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return orjson.Fragment(text)


def decode_stored_object(field: str, text: str) -> dict[str, Any]:
    """The value of a stored JSON object; raises `InvalidInput` if it was damaged in the store."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(field, f"damaged in the store: not JSON: {error}") from None
    if type(value) is not dict:
        raise InvalidInput(field, "damaged in the store: not a JSON object")
    return value


def decode_object(field: str, text: str | bytes, bytes_max: int) -> dict[str, Any]:
    """The value of an external JSON text, which must be an object."""
    value = _decoded(field, text, bytes_max, "a JSON object")
    if not isinstance(value, dict):
        raise InvalidInput(field, f"must be a JSON object, not {shown(value)}")
    return value


def decode_typed_object(field: str, text: str | bytes, bytes_max: int) -> dict[str, Any]:
    """The value of a JSON object that a person typed: a duplicate name is a mistake, not a value to drop."""
    value = decode_object(field, text, bytes_max)
    json.loads(text, object_pairs_hook=lambda pairs: _refuse_duplicates(field, pairs))
    return value


def _refuse_duplicates(field: str, pairs: list[tuple[str, Any]]) -> None:
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            raise InvalidInput(field, f"must not have the name {shown(name)} twice in one object")
        names.add(name)


def decode_json(field: str, text: str | bytes, bytes_max: int) -> Any:
    """The value of any external JSON text."""
    return _decoded(field, text, bytes_max, "JSON")


def encode_policy(policy: TypePolicy | RetryPolicy) -> str:
    """A policy as stored: a type's, or the retry policy of one job."""
    return encode_policy_fields(asdict(policy) if isinstance(policy, RetryPolicy) else declared_fields(policy))


def encode_policy_fields(fields: Mapping[str, Any]) -> str:
    """The given fields of a type's policy, already checked, as stored."""
    return orjson.dumps(fields).decode()


def decode_policy(text: str | None) -> TypePolicy:
    """A stored policy; missing fields use their defaults."""
    return policy_of(None, text)


@lru_cache(maxsize=1024)
def policy_of(own: str | None, type_text: str | None) -> TypePolicy:
    """The effective policy of a job: its type's, with the job's own retry policy if it has one."""
    policy = _policy(type_text)
    return policy if own is None else with_retry(policy, _policy(own).retry)


def decode_policy_fields(text: str | None) -> dict[str, Any]:
    """The fields of a stored policy."""
    if text is None:
        return {}
    fields = orjson.loads(text)
    if not isinstance(fields, dict):
        raise TypeError("not a JSON object")
    retry = fields.pop("retry", None)  # Earlier versions stored these fields one level deeper.
    return fields | retry if isinstance(retry, dict) else fields


def _policy(text: str | None) -> TypePolicy:
    try:
        fields = decode_policy_fields(text)
        return policy_from({name: value for name, value in fields.items() if name in POLICY_FIELDS})
    except (ValueError, TypeError) as error:
        # It was edited by hand: jobs must still run.
        log.error("a stored policy cannot be read; using the default", policy=text, error=str(error))
        return DEFAULT_TYPE_POLICY


def _decoded(field: str, text: str | bytes, bytes_max: int, expected: str) -> Any:
    if len(text) > bytes_max:
        raise InvalidInput(field, f"must be at most {bytes_max:,} bytes of JSON, not {len(text):,}")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(field, f"must be {expected}: {error}") from None
    raw = text.encode() if isinstance(text, str) else text
    if raw.count(b"{") + raw.count(b"[") > JSON_DEPTH_MAX:
        _refuse_deep(field, raw)
    # orjson silently reads integers over 64 bits as floats; no digits may be lost.
    if _MANY_DIGITS.search(raw) and (digits := long_integer(b"".join(without_escapes(raw).split(b'"')[::2]))):
        raise InvalidInput(field, f"must not contain integers over 64 bits, such as {digits}")
    return value


_MANY_DIGITS: Final = re.compile(rb"[0-9]{19}")
_LONG: Final = re.compile(rb"(?<![0-9.eE+-])-?[0-9]{19,}(?![0-9.eE])")
_SHOWN: Final = 40


def without_escapes(raw: bytes) -> bytes:
    """A JSON text in which every quotation mark begins or ends a string."""
    return raw.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in raw else raw


def long_integer(outside: bytes) -> str | None:
    """The first integer over 64 bits in a JSON text without its strings."""
    for found in _LONG.finditer(outside):
        digits = found[0].decode()
        if len(digits) > 20 or not -(2**63) <= int(digits) < 2**64:
            return digits[:_SHOWN]
    return None


def _refuse_deep(field: str, raw: bytes) -> None:
    if _depth(raw) > JSON_DEPTH_MAX:
        raise InvalidInput(field, f"must be nested at most {JSON_DEPTH_MAX} levels deep")


_FINITE: Final = frozenset([type(None), bool, int, str])


def _refuse_not_finite(field: str, value: object) -> None:
    """orjson silently writes NaN and infinities as null; a number must not become null."""
    if isinstance(value, float) and value - value != 0.0:
        raise InvalidInput(field, f"must not contain {value}: JSON has no such number")
    if isinstance(value, Mapping):
        _refuse_any_not_finite(field, value.values())
    elif isinstance(value, list | tuple):
        _refuse_any_not_finite(field, value)
    elif isinstance(value, Enum):
        _refuse_not_finite(field, value.value)
    elif is_dataclass(value):
        for part in dataclass_fields(value):
            _refuse_not_finite(field, getattr(value, part.name))


def _refuse_any_not_finite(field: str, values: Iterable[object]) -> None:
    for inner in values:
        if type(inner) not in _FINITE:  # There can be hundreds of thousands.
            _refuse_not_finite(field, inner)


_NO_STRUCTURE: Final = bytes(set(range(256)) - set(b'"[]{}'))
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")


def _depth(raw: bytes) -> int:
    """How deeply containers are nested in a valid JSON text; its values, which can be many, are not created."""
    marks = without_escapes(raw).translate(None, _NO_STRUCTURE).replace(b'""', b"")
    brackets = b"".join(marks.split(b'"')[::2])
    return max(accumulate(memoryview(brackets.translate(_STEPS)).cast("b")), default=0)


_WORDS: Final = {"True": "true", "False": "false", "None": "null"}


_QUOTED: Final = re.compile(r"(?<=, not )(True|False|None)$")


def in_json_words(message: str) -> str:
    """An error message that ends with the invalid value, written as in JSON; quoted strings stay as they are."""
    return _QUOTED.sub(lambda found: _WORDS[found[0]], message)
