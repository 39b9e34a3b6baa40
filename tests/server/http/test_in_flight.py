"""Bytes in flight: how much the server holds for one API key, and for all callers together."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from everwork.server.http.framework import in_flight, middleware
from everwork.server.http.framework.in_flight import Hold, InFlight
from everwork.server.http.framework.problems import Refusal
from tests.app.waiting import DEADLINE_S, until
from tests.server.http.serving import JOBS, ROOT_KEY, Rest, problem, serving
from tests.server.http.test_activate import Connection, is_given_back
from tests.server.http.test_connections import TIMEOUTS, connections, pass_time
from tests.stores import url_of

MIB = 1_048_576
PAGE = 16 * MIB


def a_hold(all_bytes: InFlight, owner: str = "a") -> Hold:
    """The bytes of a new request."""
    hold = Hold(all_bytes)
    hold.owner = owner
    return hold


def is_refused(hold: Hold, size: int) -> int:
    """The status of a refusal, or 0."""
    try:
        hold.require_room(size)
    except Refusal as error:
        return error.status if error.headers["Retry-After"] else -1
    return 0


# The account ----------------------------------------------------------------------------------------


def test_a_key_has_its_own_limit_and_all_keys_share_one() -> None:
    flight = InFlight(250, 100)
    for owner in ("a", "b"):
        a_hold(flight, owner).send(90)
    assert is_refused(a_hold(flight, "a"), 11) == 429
    assert is_refused(a_hold(flight, "a"), 10) == 0
    assert is_refused(a_hold(flight, "c"), 84) == 503
    assert is_refused(a_hold(flight, "c"), 250 // 3) == 0


async def test_a_key_without_any_work_waits_for_no_other_key() -> None:
    flight = InFlight(250, 100)
    for owner in ("a", "b", "c"):
        await a_hold(flight, owner).reserve(150)
    assert not a_hold(flight, "a").try_reserve(1)


async def test_bytes_for_a_response_wait_only_if_the_request_has_reserved_none() -> None:
    flight = InFlight(250, 100)
    first, large, small = a_hold(flight), a_hold(flight), a_hold(flight)
    await large.reserve(40)
    await first.reserve(60)
    assert not await large.reserve_more(10)
    waiting = asyncio.ensure_future(small.reserve_more(10))
    await asyncio.wait([waiting], timeout=0)
    assert not waiting.done()
    first.release()
    assert await waiting
    assert await large.reserve_more(10)


async def test_the_requests_of_a_key_get_their_turns_in_order_and_one_that_leaves_takes_none() -> None:
    flight, order = InFlight(250, 100), []

    async def work(name: str, size: int) -> None:
        await a_hold(flight).reserve(size)
        order.append(name)

    first = a_hold(flight)
    await first.reserve(90)
    waiting = [asyncio.ensure_future(work(name, size)) for name, size in (("b", 50), ("c", 40), ("d", 10))]
    await asyncio.wait(waiting, timeout=0)
    waiting[1].cancel()
    await asyncio.wait([waiting[1]])
    first.release()
    await asyncio.wait_for(asyncio.gather(waiting[0], waiting[2]), 5)
    assert (order, flight.all.reserved) == (["b", "d"], 60)


def test_what_is_larger_than_any_limit_may_be_in_flight_alone() -> None:
    flight = InFlight(250, 100)
    alone = a_hold(flight)
    for size in (50, 150, 400):
        alone.receive(size)
    assert is_refused(a_hold(flight), 1) == 429
    alone.release()
    assert is_refused(a_hold(flight), 1_000) == 0


def test_what_has_ended_leaves_nothing_behind() -> None:
    flight = InFlight(250, 100)
    for number in range(1_000):
        hold = a_hold(flight, str(number))
        hold.receive(50)
        hold.send(70)
        hold.release()
        hold.release()
    assert (flight.all.held, flight.all.reserved, flight._accounts) == (0, 0, {})


async def test_work_waits_for_its_turn_and_one_request_always_has_it() -> None:
    flight = InFlight(250, 100)
    first, second, third = a_hold(flight), a_hold(flight), a_hold(flight, "b")
    await first.reserve(150)
    waiting = asyncio.ensure_future(second.reserve(60))
    await third.reserve(60)
    await asyncio.wait([waiting], timeout=0)
    assert not waiting.done()
    first.send(10)
    await asyncio.wait_for(waiting, DEADLINE_S)
    assert (flight.all.held, flight.all.reserved) == (10, 120)


async def test_a_response_that_could_not_be_sent_is_refused_when_its_turn_comes() -> None:
    flight = InFlight(250, 100)
    first, second = a_hold(flight), a_hold(flight)
    await first.reserve(60, is_response=True)
    waiting = asyncio.ensure_future(second.reserve(60, is_response=True))
    await asyncio.wait([waiting], timeout=0)
    first.send(60)
    with pytest.raises(Refusal, match="too many bytes in flight"):
        await asyncio.wait_for(waiting, DEADLINE_S)


async def test_a_turn_that_does_not_come_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "TURN_SECONDS", 0.01)
    flight = InFlight(250, 100)
    await a_hold(flight).reserve(150)
    with pytest.raises(Refusal) as refused:
        await a_hold(flight).reserve(10)
    assert refused.value.status == 503


# The server -----------------------------------------------------------------------------------------


async def fill(rest: Rest, mebibytes: int = 17) -> None:
    """Jobs that fill a page of the maximum size."""
    jobs = [{"type": "email-send", "variables": {"text": "x" * 1_000_000}} for _ in range(mebibytes)]
    await rest.ok("POST", JOBS, jobs, headers={"Prefer": "return=minimal"})


async def a_slow_reader(rest: Rest, path: str = f"{JOBS}?limit=1000", body: Any = None) -> Connection:
    """A caller that requests a large response and does not read it."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    peer.setblocking(False)
    await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", int(rest.url.rpartition(":")[2])))
    connection = Connection(*await asyncio.open_connection(sock=peer, limit=1))
    connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await connection.send("GET" if body is None else "POST", path, body)
    return connection


def held(rest: Rest) -> int:
    """How many bytes are in flight."""
    return rest.server.context.in_flight.all.held


async def test_pages_that_are_not_read_are_refused_to_their_key_and_dropped(tmp_path: Path) -> None:
    async with serving(url_of("sqlite", tmp_path), max_bytes_in_flight_per_key=32 * MIB) as rest:
        await fill(rest)
        reader = await a_slow_reader(rest)
        await until(lambda: held(rest) > PAGE)
        answer = await rest("GET", JOBS, params={"limit": 1000})
        assert answer.status_code == 429
        assert (problem(answer, 429)["code"], answer.headers["retry-after"]) == ("too_many_bytes", "1")
        other = await rest.key("jobs:read")
        assert len((await rest.ok("GET", JOBS, params={"limit": 1000}, headers=other))["jobs"]) == 17
        await rest.job()  # Small requests are never refused.
        pass_time(rest, TIMEOUTS.stalled + 1)
        await until(lambda: held(rest) == 0)
        assert len((await rest.ok("GET", JOBS, params={"limit": 1000}))["jobs"]) == 18
        await reader.cut()


async def test_pages_that_are_not_read_are_refused_to_everybody_if_the_server_has_too_many(tmp_path: Path) -> None:
    async with serving(url_of("sqlite", tmp_path), max_bytes_in_flight=32 * MIB) as rest:
        await fill(rest)
        reader = await a_slow_reader(rest)
        await until(lambda: held(rest) > PAGE)
        answer = await rest("GET", JOBS, headers=await rest.key("jobs:read"))
        assert answer.status_code == 503
        assert (problem(answer, 503)["code"], answer.headers["retry-after"]) == ("too_many_bytes", "1")
        await reader.cut()
        await until(lambda: held(rest) == 0)


async def test_a_page_that_is_read_too_slowly_is_not_sent_to_its_end(
    local: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "SEND_SECONDS", 0.05)
    monkeypatch.setattr(middleware, "SEND_BYTES_PER_SECOND", 1 << 40)
    await fill(local)
    reader = await a_slow_reader(local)
    await until(lambda: held(local) > PAGE)
    await until(lambda: held(local) == 0)
    pass_time(local, TIMEOUTS.stalled + 1)
    await until(lambda: len(connections(local)) == 1)  # The test's own.
    await reader.cut()


async def test_jobs_that_cannot_be_sent_go_back_to_their_queue(tmp_path: Path) -> None:
    async with serving(url_of("sqlite", tmp_path), max_bytes_in_flight_per_key=32 * MIB) as rest:
        await fill(rest, 30)
        reader = await a_slow_reader(rest)
        await until(lambda: held(rest) > PAGE)
        asked = {"type": "email-send", "worker": "w1", "max_jobs": 30}
        refusal = await rest.refused(429, "POST", f"{JOBS}/activate", asked)
        assert refusal["code"] == "too_many_bytes"
        await reader.cut()
        await until(lambda: held(rest) == 0)
        await until(lambda: is_given_back(rest, {"key": "1"}))
        assert len((await rest.ok("POST", f"{JOBS}/activate", asked))["jobs"]) == 30


async def test_bodies_that_do_not_end_are_counted(tmp_path: Path) -> None:
    async with serving(url_of("sqlite", tmp_path), max_bytes_in_flight_per_key=2 * MIB) as rest:
        slow = await Connection.open(rest)
        head = f"POST {JOBS} HTTP/1.1\r\nHost: x\r\nX-API-Key: {ROOT_KEY}\r\nContent-Length: {4 * MIB}\r\n\r\n"
        slow.writer.write(head.encode() + b" " * (4 * MIB - 1))
        await until(lambda: held(rest) > 3 * MIB)
        answer = await rest("POST", JOBS, [{"type": "a", "variables": {"text": "x" * MIB}}])
        assert problem(answer, 429)["code"] == "too_many_bytes"
        assert (await rest("POST", JOBS, {"type": "a"})).status_code == 201
        await slow.cut()
        await until(lambda: held(rest) == 0)


async def test_of_many_large_bodies_some_are_accepted_and_the_others_can_read_their_refusal(tmp_path: Path) -> None:
    async with serving(url_of("sqlite", tmp_path), max_bytes_in_flight_per_key=9 * MIB) as rest:
        large = [{"type": "a", "variables": {"text": "x" * 1_000_000}} for _ in range(4)]
        minimal = {"Prefer": "return=minimal", "Connection": "close"}
        answers = await asyncio.gather(*[rest("POST", JOBS, large, headers=minimal) for _ in range(6)])
        found = sorted(one.status_code for one in answers)
        assert (found[0], set(found)) in [(201, {201}), (201, {201, 429})]
        assert all(one.headers["retry-after"] == "1" for one in answers if one.status_code == 429)


async def test_nothing_of_a_body_is_read_before_its_caller_is_known(local: Rest) -> None:
    stranger = await Connection.open(local)
    head = f"POST {JOBS} HTTP/1.1\r\nHost: x\r\nContent-Length: {4 * MIB}\r\n\r\n"
    stranger.writer.write(head.encode())
    assert (await stranger.reader.readuntil(b"}")).startswith(b"HTTP/1.1 401")
    await stranger.cut()


async def test_a_login_form_has_a_few_kibibytes_and_other_forms_have_more(local: Rest) -> None:
    answer = await local.client.post("/ui/login", data={"key": "x" * 20_000})
    assert answer.status_code == 413
    assert "at most 16 KiB" in answer.text
    await local.client.post("/ui/login", data={"key": ROOT_KEY, "next": "/ui/jobs?error=" + "x" * 10_000})
    page = (await local.client.get("/ui/jobs/new")).text
    token = page.partition('name="csrf" value="')[2].partition('"')[0]
    made = {"csrf": token, "type": "a", "variables": '{"text": "' + "x" * 500_000 + '"}'}
    assert (await local.client.post("/ui/jobs/new", data=made)).status_code == 303
