"""Requests that nobody sends by accident: each gets a problem document, and the server goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from everwork.server.http.framework import body
from everwork.server.http.framework.body import BODY_BYTES_MAX, BULK_BYTES_MAX
from tests.server.http.serving import JOBS, ROOT_KEY, Rest, problem

JSON = {"Content-Type": "application/json"}
SHARED = pytest.mark.asyncio(loop_scope="module")
ACTIVATE = f"{JOBS}/activate"
INJECTIONS = ["' OR 1=1 --", '"; DROP TABLE jobs; --', "%", "_", "*", "${7*7}", "\\", "]]>", "🙂" * 60]
NOWHERE = ["/nope", "/api/v1", "/api/v1/jobs/", "/jobs/1", "/api/v1/jobs/1/explode", "/%2e%2e/etc/passwd"]


async def raw(rest: Rest, request: bytes) -> bytes:
    """What a server says to bytes that no client library would send, until it hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(rest.url.rpartition(":")[2]))
    writer.write(request)
    try:
        return await asyncio.wait_for(reader.read(), 20)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def chunks(size: int) -> AsyncIterator[bytes]:
    """A body whose length nobody is told."""
    for _ in range(0, size, 1 << 20):
        yield b" " * (1 << 20)


# Sizes ----------------------------------------------------------------------------------------------


async def test_a_body_that_says_it_is_too_large_is_refused(local: Rest) -> None:
    answer = await local("POST", ACTIVATE, content=b" " * (BODY_BYTES_MAX + 1), headers=JSON)
    assert problem(answer, 413)["code"] == "body_too_large"


async def test_a_body_that_does_not_say_its_size_is_refused_as_soon_as_it_is_too_large(local: Rest) -> None:
    answer = await local("POST", ACTIVATE, content=chunks(5 << 20), headers=JSON)
    assert problem(answer, 413)["code"] == "body_too_large"


async def test_a_body_that_stops_coming_is_not_awaited_for_ever(local: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BODY_SECONDS", 0.05)
    head = f"POST {JOBS} HTTP/1.1\r\nHost: x\r\n{KEY}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    answer = await raw(local, f"{head}{{".encode())
    assert answer.startswith(b"HTTP/1.1 408")
    assert b'"code":"body_timeout"' in answer


async def test_a_body_that_comes_too_slowly_is_not_awaited_to_its_end(
    local: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "BODY_SECONDS", 0.1)
    monkeypatch.setattr(body, "BODY_BYTES_PER_SECOND", 1 << 40)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(local.url.rpartition(":")[2]))
    writer.write(f"POST {JOBS} HTTP/1.1\r\nHost: x\r\n{KEY}Content-Length: {BODY_BYTES_MAX}\r\n\r\n".encode())
    answer = asyncio.ensure_future(reader.readuntil(b"}"))
    while not answer.done():
        writer.write(b" ")
        await asyncio.wait([answer], timeout=0.001)
    assert (await answer).startswith(b"HTTP/1.1 408")
    writer.close()


async def test_a_list_of_jobs_may_be_large_but_not_endless(local: Rest) -> None:
    jobs = [{"type": "a", "variables": {"text": "x" * 1_000_000}} for _ in range(6)]
    assert len(await local.ok("POST", JOBS, jobs, headers={"Prefer": "return=minimal"})) == 6
    answer = await local("POST", JOBS, content=chunks(BULK_BYTES_MAX + (1 << 20)), headers=JSON)
    assert problem(answer, 413)["detail"] == "the body must be at most 32 MiB"


async def test_a_body_of_exactly_the_limit_is_read(local: Rest) -> None:
    padded = b'{"type": "a", "worker": "w"}'.ljust(BODY_BYTES_MAX)
    assert (await local("POST", ACTIVATE, content=padded, headers=JSON)).json() == {"jobs": []}


async def test_a_page_of_large_jobs_is_shorter_and_paging_still_meets_them_all(local: Rest) -> None:
    large = [{"type": "a", "variables": {"text": "x" * 1_000_000}} for _ in range(60)]
    small = [{"type": "a"}] * 150
    created = []
    for jobs in (large[:30], [*large[30:], *small]):
        created += await local.ok("POST", JOBS, jobs, headers={"Prefer": "return=minimal"})
    first = await local.ok("GET", "/jobs", params={"limit": 1000})
    second = await local.ok("GET", "/jobs", params={"limit": 1000, "cursor": first["next"]})
    assert 100 < len(first["jobs"]) < 210
    keys = [job["key"] for job in first["jobs"] + second["jobs"]]
    assert keys == [one["key"] for one in reversed(created)]
    assert second["next"] is None


# Content types --------------------------------------------------------------------------------------


@SHARED
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/json5"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": ""},
        [("Content-Type", "application/json"), ("Content-Type", "text/plain")],
        {**JSON, "Content-Encoding": "gzip"},
    ],
)
async def test_a_body_that_is_not_said_to_be_plain_json_is_refused(unchanged: Rest, headers: Any) -> None:
    answer = await unchanged("POST", JOBS, content=b'{"type": "a"}', headers=headers)
    assert problem(answer, 415)["code"] == "unsupported_media_type"


@pytest.mark.parametrize("said", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/json;a=b"])
async def test_json_with_a_parameter_is_json(local: Rest, said: str) -> None:
    answer = await local("POST", JOBS, content=b'{"type": "a"}', headers={"Content-Type": said})
    assert answer.status_code == 201


# Names and filters ----------------------------------------------------------------------------------


@pytest.mark.every_engine
@pytest.mark.parametrize("text", INJECTIONS)
async def test_a_filter_is_only_ever_a_text(rest: Rest, text: str) -> None:
    job = await rest.dead_letter(f"it says {text} here", type="a", correlation_id=text, tenant=text)
    await rest.dead_letter("something else", type="b")

    async def keys(**query: Any) -> list[str]:
        return [one["key"] for one in (await rest.ok("GET", "/jobs", params=query))["jobs"]]

    assert await keys(type=text) == await keys(worker=text) == []
    assert await keys(correlation_id=text) == await keys(tenant=text) == await keys(error=text) == [job["key"]]


@SHARED
@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=-1", "limit"),
        ("limit=1e3", "limit"),
        ("limit=%D9%A1", "limit"),
        ("limit=" + "9" * 5_000, "limit"),
        ("limit=", "limit"),
        ("limit=1&limit=2", "limit"),
        ("cursor=0", "cursor"),
        ("cursor=abc", "cursor"),
        ("cursor=9223372036854775808", "cursor"),
        ("state=bogus", "state"),
        ("state=activatable&state=failed", "state"),
        ("type=", "type"),
        ("type=a%00b", "type"),
        ("type=" + "x" * 256, "type"),
        ("created_after=yesterday", "created_after"),
        ("created_after=2026-01-01", "created_after"),
        ("created_before=99999-01-01T00:00:00Z", "created_before"),
        ("error=%00", "error"),
        ("typ=a", "typ"),
        ("offset=5", "offset"),
        ("type=%FF%FE", "query"),
        ("&".join(f"x{n}=1" for n in range(3_000)), "query"),
        ("&".join("tenant=a" for _ in range(51)), "tenant"),
    ],
)
async def test_a_wrong_query_names_what_is_wrong(unchanged: Rest, query: str, field: str) -> None:
    refusal = await unchanged.refused(422, "GET", f"/jobs?{query}")
    assert (refusal["field"], refusal["code"]) == (field, "invalid_input")


@SHARED
@pytest.mark.parametrize(
    "key",
    ["0", "-1", "+1", "01", "abc", "1.5", "9223372036854775808", "%00", "%F0%9F%99%82", "1%20", "٣", "9" * 5_000],
    ids=lambda key: ascii(key[:20]),
)
async def test_a_key_of_another_form_is_a_job_that_does_not_exist(unchanged: Rest, key: str) -> None:
    for method, path in (("GET", ""), ("PUT", "/complete"), ("PUT", "/fail"), ("PUT", "/cancel"), ("DELETE", "")):
        problem = await unchanged.refused(404, method, f"{JOBS}/{key}{path}")
        assert (problem["code"], len(problem["detail"]) < 200) == ("job_not_found", True)


@SHARED
@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/fail", {"retries": 101}, "retries"),
        ("/fail", {"retries": "1"}, "retries"),
        ("/fail", {"backoff_ms": -1}, "backoff_ms"),
        ("/fail", {"by_policy": True, "retries": 1}, "by_policy"),
        ("/fail", {"by_policy": 1}, "by_policy"),
        ("/fail", {"strict": True, "backoff_ms": 1}, "strict"),
        ("/fail", {"strict": "yes"}, "strict"),
        ("/fail", {"error_message": 5}, "error_message"),
        ("/fail", {"traceback": ["a", "b"]}, "traceback"),
        ("/fail", {"variables": [1]}, "variables"),
        ("/fail", {"attempt": -1}, "attempt"),
        ("/fail", {"attempt": 2**31}, "attempt"),
        ("/complete", {"result": 1}, "result"),
        ("/complete", [], "body"),
        ("/cancel", {"reason": "x" * 8_193}, "reason"),
        ("/cancel", {"reason": "a\0b"}, "reason"),
        ("/retries", {}, "retries"),
        ("/retries", {"retries": None}, "retries"),
        ("/timeout", {"timeout_ms": 86_400_001}, "timeout_ms"),
        ("/reschedule", {}, "run_at"),
        ("/reschedule", {"run_at": "2030-01-01T00:00:00Z", "delay_ms": 1}, "run_at"),
        ("/priority", {"priority": -513}, "priority"),
        ("/requeue", {"really": True}, "really"),
        ("/run-now", {"when": "now"}, "when"),
    ],
)
async def test_a_wrong_field_of_a_body_is_named(unchanged: Rest, path: str, body: Any, field: str) -> None:
    assert (await unchanged.refused(422, "PUT", f"{JOBS}/1{path}", body))["field"] == field


@SHARED
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"worker": "w"}, "type"),
        ({"type": "a"}, "worker"),
        ({"type": "a", "worker": "w", "max_jobs": 101}, "max_jobs"),
        ({"type": "a", "worker": "w", "max_jobs": 0}, "max_jobs"),
        ({"type": "a", "worker": "w", "wait": -1}, "wait"),
        ({"type": "a", "worker": "w", "wait": 301}, "wait"),
        ({"type": "a", "worker": "w", "timeout_ms": 0}, "timeout_ms"),
        ({"type": "a", "worker": "w", "tenants": "acme"}, "tenants"),
        ({"type": "a", "worker": "w", "tenants": ["acme", 5]}, "tenants[1]"),
        ({"type": "a", "worker": "w", "fetch_variables": [None]}, "fetch_variables[0]"),
        ({"type": "a", "worker": "w", "group": 7}, "group"),
    ],
)
async def test_a_wrong_demand_names_the_field(unchanged: Rest, body: Any, field: str) -> None:
    assert (await unchanged.refused(422, "POST", ACTIVATE, body))["field"] == field


async def test_an_error_message_of_any_length_and_content_is_taken(rest: Rest) -> None:
    job = await rest.leased()
    failed = await rest.ok("PUT", f"{JOBS}/{job['key']}/fail", {"retries": 0, "error_message": "a\0" + "x" * 100_000})
    assert (len(failed["last_error"]), failed["last_error"][:3]) == (8_192, "a�x")


async def test_a_traceback_of_any_length_and_content_is_cut_and_one_of_10_mb_is_refused(rest: Rest) -> None:
    job = await rest.leased()
    at = f"{JOBS}/{job['key']}"
    refused = await rest.refused(413, "PUT", f"{at}/fail", {"traceback": "x" * 10_000_000})
    assert "body" in refused["detail"]
    await rest.ok("PUT", f"{at}/fail", {"retries": 0, "traceback": "a\0\n" + "b\n" * 100_000 + "last"})
    [event] = (await rest.ok("GET", at))["history"]
    assert event["traceback"].startswith("a�\n  [191,")
    assert event["traceback"].endswith("\nb\nlast")
    assert len(event["traceback"]) <= 8_192


# HTTP -----------------------------------------------------------------------------------------------


async def test_a_path_that_leads_nowhere_is_a_problem_document(local: Rest) -> None:
    for path in NOWHERE:
        assert (await local.refused(404, "GET", path))["code"] == "not_found"


async def test_a_method_that_is_not_allowed_is_told_which_are(local: Rest) -> None:
    for method, path, allowed in [
        ("PATCH", f"{JOBS}/1", "DELETE, GET, HEAD"),
        ("DELETE", JOBS, "GET, HEAD, POST"),
        ("GET", ACTIVATE, "POST"),
        ("POST", "/healthz", "GET, HEAD"),
        ("TRACE", "/jobs", "GET, HEAD"),
        ("OPTIONS", "/jobs", "GET, HEAD"),
    ]:
        answer = await local(method, path)
        assert (problem(answer, 405)["code"], answer.headers["allow"]) == ("method_not_allowed", allowed)


async def test_a_head_request_has_the_headers_and_no_body(local: Rest) -> None:
    answer = await local("HEAD", "/jobs")
    assert (answer.status_code, answer.content, int(answer.headers["content-length"]) > 0) == (200, b"", True)


KEY = f"X-API-Key: {ROOT_KEY}\r\n"
CLOSE = "Connection: close\r\n"
GOOD = KEY + CLOSE


@SHARED
@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (f"GET /jobs HTTP/1.1\r\nHost: x\r\n{GOOD}{GOOD}\r\n", {401}),
        (f"GET /jobs HTTP/1.1\r\nHost: x\r\n{GOOD}Authorization: Bearer {ROOT_KEY}\r\n\r\n", {401}),
        (f"POST {JOBS} HTTP/1.1\r\nHost: x\r\n{GOOD}Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", {400}),
        (
            f"POST {JOBS} HTTP/1.1\r\n{GOOD}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            {400},
        ),
        (f"POST {JOBS} HTTP/1.1\r\nHost: x\r\n{GOOD}Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", {400}),
        (f"POST {JOBS} HTTP/1.1\r\nHost: x\r\n{GOOD}Content-Length: -5\r\n\r\n", {400}),
        (f"POST {JOBS} HTTP/1.1\r\nHost: x\r\n{GOOD}Content-Length: 99999999999999999999\r\n\r\n", {400, 413}),
        (f"GET /jobs HTTP/1.1\r\nHost: x\r\n{GOOD}Expect: 100-continue\r\n\r\n", {200}),
        (f"GET /jobs HTTP/1.1\r\nHost: x\r\n{CLOSE}X-API-Key: {ROOT_KEY}\x01\r\n\r\n", {400, 401}),
        (f"GET /jobs HTTP/1.1\r\nHost: x\r\n{CLOSE}X-API-Key : {ROOT_KEY}\r\n\r\n", {400, 401}),
        (f"GET /jobs HTTP/1.1\r\nHost: x\r\n{CLOSE} X-API-Key: {ROOT_KEY}\r\n\r\n", {400, 401}),
        (f"GET /jobs?type=a b HTTP/1.1\r\nHost: x\r\n{GOOD}\r\n", {400}),
        (f"GET http://other/jobs HTTP/1.1\r\nHost: x\r\n{GOOD}\r\n", {200, 400, 404}),
        (f"GET /jobs HTTP/1.0\r\n{GOOD}\r\n", {200}),
        (f"GET /jobs HTTP/9.9\r\nHost: x\r\n{GOOD}\r\n", {400}),
        (f"GET /jobs HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{GOOD}\r\n", {200, 400}),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 404, 405}),
        ("\x16\x03\x01\x02\x00\x01\r\n\r\n", {400}),
    ],
)
async def test_odd_requests_are_answered_and_let_nobody_in(unchanged: Rest, sent: str, statuses: set[int]) -> None:
    answer = await raw(unchanged, sent.encode("latin-1"))
    first = answer.partition(b"\r\n")[0]
    assert first.startswith(b"HTTP/1.1 "), answer[:200]
    assert int(first.split()[1]) in statuses
    assert b"Traceback" not in answer
    assert (await unchanged("GET", "/healthz")).status_code == 200


LAST = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def test_a_second_request_hidden_in_a_body_is_a_body(local: Rest) -> None:
    hidden = f"GET /jobs HTTP/1.1\r\nHost: x\r\n{KEY}\r\n"
    head = f"POST {ACTIVATE} HTTP/1.1\r\nHost: x\r\n{KEY}Content-Length: {len(hidden)}\r\n\r\n"
    answer = await raw(local, (head + hidden).encode() + LAST)
    assert (answer.count(b"HTTP/1.1 "), answer.count(b"HTTP/1.1 200")) == (2, 1)
    assert answer.startswith(b"HTTP/1.1 415")


async def test_a_refused_body_does_not_disturb_the_next_request_of_its_connection(local: Rest) -> None:
    body = 'Content-Type: application/json\r\nContent-Length: 8\r\n\r\n{"type":'
    answer = await raw(local, f"POST {JOBS} HTTP/1.1\r\nHost: x\r\n{KEY}{body}".encode() + LAST)
    assert (answer.count(b"HTTP/1.1 400"), answer.count(b"HTTP/1.1 200")) == (1, 1)


async def test_words_of_a_caller_come_back_as_data_only(local: Rest) -> None:
    answer = await local("GET", "/jobs", params={"<script>alert(1)</script>": "1"})
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


async def test_an_engine_that_is_away_is_a_problem_with_a_code(local: Rest) -> None:
    await local.engine.close()
    assert (await local.refused(503, "GET", "/readyz"))["code"] == "engine_unavailable"
    answer = await local("GET", "/jobs")
    assert answer.status_code == 503
    assert answer.json()["code"] in {"engine_unavailable", "engine_error"}
    assert (await local("GET", "/healthz")).status_code == 200


async def test_a_defect_is_a_problem_document_without_a_traceback(local: Rest, caplog: Any) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError("secret detail")

    local.engine.types = broken  # type: ignore[assignment,method-assign]
    answer = await local("GET", "/api/v1/types")
    assert problem(answer, 500)["code"] == "internal_error"
    assert "secret" not in answer.text
    assert "internal error in a request" in caplog.text


async def test_every_answer_carries_its_protection(local: Rest) -> None:
    async with httpx.AsyncClient(base_url=local.url, verify=False) as stranger:
        for path in ["/healthz", "/jobs", "/nowhere", "/openapi.json", "/docs"]:
            headers = (await stranger.get(path)).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert "server" not in headers
