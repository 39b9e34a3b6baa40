"""Jobs by the list: all or none, and a mistake is named by its place."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from everwork.server.http.api.create import RESPONSE_CHARS_MAX
from tests.server.http.serving import JOBS, Rest, problem

JSON = {"Content-Type": "application/json"}
SHARED = pytest.mark.asyncio(loop_scope="module")


async def total(rest: Rest) -> int:
    return int((await rest.ok("GET", "/api/v1/stats"))["total"])


@SHARED
@pytest.mark.parametrize(
    ("item", "field"),
    [
        ({"type": "a", "priority": 512}, "jobs[3].priority"),
        ({"type": ""}, "jobs[3].type"),
        ({"variables": {}}, "jobs[3].type"),
        ({"type": "a", "variables": []}, "jobs[3].variables"),
        ({"type": "a", "variables": 7, "priority": 1}, "jobs[3].variables"),
        ({"type": "a", "tye": "b"}, "jobs[3].tye"),
        ("text", "jobs[3]"),
        (None, "jobs[3]"),
        ({"type": "a", "retries": 0}, "jobs[3].retries"),
        ({"type": "a", "max_attempts": 101}, "jobs[3].max_attempts"),
        ({"type": "a", "retries": 2, "max_attempts": 3}, "jobs[3].retries"),
        ({"type": "a", "delay_ms": -1}, "jobs[3].delay_ms"),
        ({"type": "a", "delay_ms": 1.5}, "jobs[3].delay_ms"),
        ({"type": "a", "delay_ms": 1, "run_at": "2030-01-01T00:00:00Z"}, "jobs[3].delay_ms"),
        ({"type": "a", "run_at": "tomorrow"}, "jobs[3].run_at"),
        ({"type": "a", "run_at": "2030-01-01T00:00:00"}, "jobs[3].run_at"),
        ({"type": "a", "expires_at": 5}, "jobs[3].expires_at"),
        ({"type": "a", "tenant": "x\ny"}, "jobs[3].tenant"),
        ({"type": "a", "dedupe_key": ""}, "jobs[3].dedupe_key"),
        ({"type": "a", "correlation_id": "x" * 256}, "jobs[3].correlation_id"),
        ({"type": "a", "limit_key": 1}, "jobs[3].limit_key"),
        ({"type": "a", "headers": "h"}, "jobs[3].headers"),
        ({"type": "a", "headers": {"h": "x" * 70_000}}, "jobs[3].headers"),
        ({"type": "a", "variables": {"v": "x" * 1_100_000}}, "jobs[3].variables"),
        ({"type": "a", "timeout_ms": 0}, "jobs[3].timeout_ms"),
        ({"type": "a", "timeout_ms": True}, "jobs[3].timeout_ms"),
    ],
)
async def test_one_bad_job_keeps_the_whole_list_out(unchanged: Rest, item: Any, field: str) -> None:
    good = {"type": "a"}
    refusal = await unchanged.refused(422, "POST", JOBS, [good, good, good, item, good])
    assert refusal["field"] == field
    assert refusal["detail"].startswith(field)
    assert await total(unchanged) == 0


async def test_the_field_of_a_single_job_has_no_place(local: Rest) -> None:
    assert (await local.refused(422, "POST", JOBS, {"type": "a", "priority": 512}))["field"] == "priority"


async def test_a_list_has_one_to_ten_thousand_jobs(local: Rest) -> None:
    assert (await local.refused(422, "POST", JOBS, []))["field"] == "jobs"
    refusal = await local.refused(422, "POST", JOBS, [{"type": "a"}] * 10_001)
    assert "10,000" in refusal["detail"]
    assert await total(local) == 0


async def test_ten_thousand_jobs_are_one_call(rest: Rest) -> None:
    keys = await rest.ok("POST", JOBS, [{"type": "a"}] * 10_000, headers={"Prefer": "return=minimal"})
    assert len({one["key"] for one in keys}) == 10_000
    assert await total(rest) == 10_000


async def test_an_answer_is_no_larger_than_can_be_borne_however_large_the_jobs_are_that_it_meets(rest: Rest) -> None:
    text = "x" * 1_000_000
    first = await rest.job(dedupe_key="a", variables={"text": text})
    met = await rest.ok("POST", JOBS, [{"type": "email-send", "dedupe_key": "a"}] * 60)
    assert {one["key"] for one in met} == {first["key"]}
    full = [one for one in met if "variables" in one]
    assert len(full) == RESPONSE_CHARS_MAX // 1_000_000 + 1
    assert all(one["variables"] == {"text": text} for one in full)
    assert met[len(full) :] == [{"key": first["key"], "deduplicated": True}] * (60 - len(full))


async def test_every_answer_says_whether_the_job_was_there_before(local: Rest) -> None:
    first, second = await local.job(dedupe_key="a"), await local.job(dedupe_key="a", variables={"b": 1})
    assert (first.pop("deduplicated"), second.pop("deduplicated")) == (False, True)
    assert first == second


async def test_the_two_names_of_attempts_may_agree(local: Rest) -> None:
    job = await local.job(retries=4, max_attempts=4)
    assert (job["retries"], job["max_attempts"]) == (4, 4)


async def test_null_is_as_good_as_nothing(local: Rest) -> None:
    nothing = dict.fromkeys(["variables", "retries", "priority", "delay_ms", "run_at", "tenant", "headers"])
    job = await local.job(**nothing)
    assert (job["variables"], job["priority"], job["tenant"], job["headers"]) == ({}, 0, "<default>", None)


async def test_a_whole_number_may_be_written_with_a_point(local: Rest) -> None:
    answer = await local("POST", JOBS, content=b'{"type": "a", "priority": 7.0, "retries": 2e0}', headers=JSON)
    assert (answer.json()["priority"], answer.json()["max_attempts"]) == (7, 2)


async def test_a_job_that_is_gone_before_it_could_be_read_is_answered_as_it_was_asked_for(local: Rest) -> None:
    job = await local.dead_letter(dedupe_key="d")
    read = local.engine.get

    async def read_too_late(keys: Any) -> Any:
        await local.engine.delete(keys)
        return await read(keys)

    local.engine.get = read_too_late  # type: ignore[method-assign]
    again = await local.ok("POST", JOBS, {"type": "email-send", "dedupe_key": "d", "variables": {"a": 1}})
    assert (again["key"], again["variables"]) == (job["key"], {"a": 1})


BAD_JSON = {
    "cut short": (400, b'{"type": "a"'),
    "not a number": (400, b'{"type": "a", "variables": {"x": NaN}}'),
    "infinite": (400, b'{"type": "a", "variables": {"x": 1e999}}'),
    "lone surrogate": (400, b'{"type": "a", "variables": {"x": "\\ud800"}}'),
    "bad UTF-8": (400, b'{"type": "\xff\xfe"}'),
    "UTF-16": (400, '{"type": "a"}'.encode("utf-16")),
    "too deep": (422, b'{"type": "a", "variables": ' + b'{"a":' * 65 + b"1" + b"}" * 66),
    "far too deep": (400, b'{"type": "a", "variables": ' + b'{"a":' * 5_000 + b"1" + b"}" * 5_001),
    "twice": (422, b'{"type": "a", "type": "b"}'),
    "twice inside": (422, b'[{"type": "a", "variables": {"x": {"y": 1, "y": 2}}}]'),
    "long number": (422, b'{"type": "a", "variables": {"x": 18446744073709551616}}'),
    "very long number": (422, b'{"type": "a", "variables": {"x": -' + b"9" * 300 + b"}}"),
    "endless number": (400, b'{"type": "a", "variables": {"x": -' + b"9" * 5_000 + b"}}"),
    "two values": (400, b'{"type": "a"} {"type": "b"}'),
    "text": (422, b'"type"'),
    "null": (422, b"null"),
    "number": (422, b"5"),
    "nothing": (422, b""),
}


@SHARED
@pytest.mark.parametrize(("status", "body"), BAD_JSON.values(), ids=BAD_JSON.keys())
async def test_json_that_is_not_clear_is_refused(unchanged: Rest, status: int, body: bytes) -> None:
    refusal = problem(await unchanged("POST", JOBS, content=body, headers=JSON), status)
    assert refusal["code"] == ("invalid_json" if status == 400 else "invalid_input")
    assert await total(unchanged) == 0


@SHARED
@pytest.mark.parametrize("depth", range(100, 1_100, 50))
async def test_no_depth_is_more_than_the_server_can_bear(unchanged: Rest, depth: int) -> None:
    for opening, closing in [(b"[", b"]"), (b'{"type":', b"}"), (b'{"type": "a", "variables":', b"}")]:
        body = opening * depth + b"{}" + closing * depth
        answer = await unchanged("POST", JOBS, content=body, headers=JSON)
        assert answer.status_code in {400, 422}


async def test_the_largest_and_smallest_numbers_come_back_as_they_were(local: Rest) -> None:
    variables = {"max": 2**64 - 1, "min": -(2**63), "deep": orjson.loads(b"[" * 62 + b"]" * 62), "nul": "a\0b"}
    assert (await local.job(variables=variables))["variables"] == variables
