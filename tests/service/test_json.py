"""Nesting and long integers, which are checked in the text: creating very many values again would stop all callers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everwork.codec.json import decode_json, encode
from everwork.core.limits import JSON_DEPTH_MAX, PAYLOAD_BYTES_MAX
from everwork.exceptions import InvalidInput

TEXTS = st.text(st.sampled_from('[]{}"\\,a'), max_size=6)
VALUES = st.recursive(
    st.none() | TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
)


@given(VALUES, st.integers(0, 3))
def test_only_brackets_outside_of_strings_count_as_nesting(value: Any, extra: int) -> None:
    depth = _depth(value)
    for _ in range(JSON_DEPTH_MAX - depth):
        value = [value]
    encode("variables", value, PAYLOAD_BYTES_MAX)
    decode_json("variables", json.dumps(value, indent=extra), PAYLOAD_BYTES_MAX)
    for act in (
        lambda: encode("variables", [value], PAYLOAD_BYTES_MAX),
        lambda: decode_json("variables", json.dumps({"[": value}), PAYLOAD_BYTES_MAX),
    ):
        with pytest.raises(InvalidInput, match=r"^variables: must be nested at most 64 levels deep$"):
            act()


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**30])
def test_an_integer_over_64_bits_is_refused_only_where_it_is_a_number(number: int) -> None:
    for text in (f"{number}", f'["\\\\", {number}]', f'{{"a\\"": [1, {number}]}}'):
        with pytest.raises(InvalidInput, match=rf"^result: must not contain integers over 64 bits, such as {number}$"):
            decode_json("result", text, 1_000)
    text = f'["{number}", "\\",{number},", {number}.5, {number}e1, {2**64 - 1}, {-(2**63)}]'
    assert decode_json("result", text, 1_000) == json.loads(text)


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0
