"""What a body is made of is known before its values are made."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everwork.exceptions import InvalidInput
from everwork.server.http.framework import body as module
from everwork.server.http.framework.body import CHUNK_BYTES, DIAGNOSE_BYTES_MAX, VALUES_MAX, parse_json, scan_json
from tests.server.http.serving import JOBS, Rest

TEXTS = st.text(st.sampled_from('a:,[{"\\}]0é\n'), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | TEXTS | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, width=32),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
)


def names_in(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(names_in, value.values()))
    return sum(map(names_in, value)) if isinstance(value, list) else 0


@given(VALUES, st.booleans(), st.integers(1, 30))
async def test_names_are_counted_whatever_texts_look_like_and_wherever_pieces_end(
    value: Any, is_escaped: bool, piece: int
) -> None:
    text = json.dumps(value, ensure_ascii=is_escaped, indent=1 if is_escaped else None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_BYTES", piece)
        seen = await scan_json(text.encode("utf-8", "surrogatepass"))
    assert (seen.names, seen.long_number) == (names_in(value), None)


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**30])
async def test_a_number_that_loses_digits_is_found_only_where_it_is_a_number(number: int) -> None:
    assert (await scan_json(f'[1, {{"a": [{number}]}}]'.encode())).long_number == str(number)
    assert (await scan_json(f'["{number}", "a,{number},", {number}.5, {number}e1]'.encode())).long_number is None


async def test_a_name_that_is_there_twice_is_refused_in_a_large_body_too() -> None:
    filling = "x" * DIAGNOSE_BYTES_MAX
    with pytest.raises(InvalidInput, match=r"^body: must not have duplicate names"):
        await parse_json(f'[{{"a": 1, "\\u0061": "{filling}"}}]'.encode())
    twice = f'{{"a\\u003a": ":", "b": "{filling}"}}'
    assert await parse_json(twice.encode()) == {"a:": ":", "b": filling}


async def test_more_values_than_can_be_read_at_once_are_refused_before_they_are_made(local: Rest) -> None:
    body = b"[" + b"{}," * VALUES_MAX + b"{}]"
    answer = await local("POST", JOBS, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["detail"] == "body: must have at most 1,000,000 values; send them in several calls"


async def test_a_text_full_of_commas_is_one_value() -> None:
    value = {"csv": "1,2,[" * VALUES_MAX}
    assert await parse_json(orjson.dumps(value)) == value


async def test_quotes_without_end_are_refused_before_they_are_looked_at_one_by_one() -> None:
    with pytest.raises(InvalidInput, match="1,000,000 values"):
        await scan_json(b'"' * (5 * VALUES_MAX))


async def test_a_long_text_is_looked_at_in_pieces_others_are_served_in_between() -> None:
    given_way = 0

    async def give_way() -> None:
        nonlocal given_way
        given_way += 1

    text = orjson.dumps({"text": "x" * (10 * CHUNK_BYTES)})
    await parse_json(text, give_way)
    assert given_way >= 2 * 10


async def test_a_long_number_is_found_wherever_pieces_end() -> None:
    for piece in range(1, 60):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "CHUNK_BYTES", piece)
            found = await scan_json(b'{"a": ["\\\\", "\\"1", -1.5e+7, 100000000000000000000000, true]}')
        assert (found.names, found.long_number) == (1, "100000000000000000000000")
