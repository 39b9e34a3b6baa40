"""JSON with very many small values is checked as text: creating its values again would stop all callers."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everwork.codec.json import decode_json, encode
from everwork.core.limits import JSON_DEPTH_MAX, PAYLOAD_BYTES_MAX
from everwork.exceptions import InvalidInput
from everwork.server.http.framework.body import parse_json

MANY = 100_000
TEXTS = st.text(st.sampled_from('[]{}"\\,a'), max_size=6)
VALUES = st.recursive(
    st.none() | TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
)


@contextmanager
def collections() -> Iterator[list[str]]:
    """The garbage collections that start in the block."""
    seen: list[str] = []

    def note(phase: str, _: object) -> None:
        if phase == "start":
            seen.append(phase)

    gc.callbacks.append(note)
    try:
        yield seen
    finally:
        gc.callbacks.remove(note)


@pytest.mark.parametrize(
    "value", [[[] for _ in range(MANY)], [{"a": []} for _ in range(MANY)]], ids=["lists", "objects"]
)
async def test_many_small_values_do_not_run_the_garbage_collector(value: Any) -> None:
    text = json.dumps(value)
    with collections() as seen:
        encode("variables", value, PAYLOAD_BYTES_MAX)
        assert len(seen) < 5
        decode_json("variables", text, 2 * PAYLOAD_BYTES_MAX)
        assert len(seen) < 15
        await parse_json(text.encode())
        assert len(seen) < 30
    assert gc.isenabled()


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
