"""Limits on connections: how long they may take, how much they may send ahead, and how many there may be."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import uvicorn

from everwork.server.http.framework import acceptor
from everwork.server.http.framework.connections import Connections, Timeouts
from everwork.server.http.framework.protocol import HEAD_BYTES_MAX, HEADERS_MAX, PIPELINE_MAX, PIPELINE_PAUSE
from tests.app.waiting import DEADLINE_S, until
from tests.server.http.serving import JOBS, ROOT_KEY, Rest, serving
from tests.server.http.test_activate import ASKED, Connection, is_given_back
from tests.stores import url_of

KEY = f"X-API-Key: {ROOT_KEY}\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
TIMEOUTS = Timeouts()


def connections(rest: Rest) -> Connections:
    """The connections of a running server."""
    assert rest.server.connections is not None
    return rest.server.connections


def running(rest: Rest) -> uvicorn.Server:
    """The server behind the connections."""
    assert rest.server._server is not None
    return rest.server._server


def pass_time(rest: Rest, seconds: float) -> None:
    """Let this many seconds pass for the server."""
    connections(rest).sweep(asyncio.get_running_loop().time() + seconds)


async def opened(rest: Rest, sent: bytes = b"") -> Connection:
    """A connection that the server has accepted, and that has sent this data."""
    before = len(connections(rest))
    connection = await Connection.open(rest)
    connection.writer.write(sent)
    await until(lambda: len(connections(rest)) == before + 1)
    return connection


async def rest_of(connection: Connection) -> bytes:
    """What the server sends until it closes the connection."""
    try:
        return await asyncio.wait_for(connection.reader.read(), DEADLINE_S)
    except ConnectionResetError:
        return b""


# Heads ----------------------------------------------------------------------------------------------


async def test_a_head_that_does_not_end_in_time_is_answered_with_408(local: Rest) -> None:
    slow = await opened(local, b"GET /jobs HTTP/1.1\r\nHost")
    await until(lambda: connections(local).heads_bytes > 0)
    pass_time(local, TIMEOUTS.head - 1)
    slow.writer.write(b": x\r\nX-More: 1\r\n")
    await until(lambda: connections(local).heads_bytes > 30)
    pass_time(local, TIMEOUTS.head + 1)
    answer = await rest_of(slow)
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b'"code":"head_timeout"' in answer
    await until(lambda: (len(connections(local)), connections(local).heads_bytes) == (0, 0))


async def test_a_connection_that_says_nothing_is_closed_without_a_word(local: Rest) -> None:
    silent = await opened(local)
    pass_time(local, TIMEOUTS.head + 1)
    assert await rest_of(silent) == b""


async def test_a_connection_may_wait_between_two_requests_but_not_for_ever(local: Rest) -> None:
    kept = await opened(local, HEALTH)
    assert (await kept.reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
    pass_time(local, TIMEOUTS.idle - 1)
    kept.writer.write(HEALTH)
    assert (await kept.reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
    pass_time(local, TIMEOUTS.idle + 1)
    assert await rest_of(kept) == b""


async def test_what_follows_a_refused_request_keeps_no_connection(local: Rest) -> None:
    head = f"POST {JOBS} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
    refused = await opened(local, head.encode())
    assert (await refused.reader.readuntil(b"}")).startswith(b"HTTP/1.1 401")
    for _ in range(3):
        refused.writer.write(b"x")
        await refused.writer.drain()
    pass_time(local, TIMEOUTS.idle + 1)
    assert await rest_of(refused) == b""


async def test_a_poll_may_take_longer_than_any_head(local: Rest) -> None:
    poll = asyncio.create_task(local.ok("POST", f"{JOBS}/activate", ASKED))
    await until(lambda: local.service.waiting("email-send") == 1)
    pass_time(local, 3_600)
    job = await local.job()
    assert [one["key"] for one in (await poll)["jobs"]] == [job["key"]]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /jobs HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 1_000_000, 431),
        (b"GET /jobs?" + b"x" * 1_000_000, 431),
        (b"GET /jobs HTTP/1.1\r\n" + b"X-Many: x\r\n" * (HEADERS_MAX + 2), 431),
        (b"GET /jobs HTTP/1.1\r\n" + b"X-Many: x\r\n" * 10_000 + b"\r\n", 431),
        (b"GET /jobs\r\n\r\n", 401),
        (b"GET /jobs HTTP/1.1\r\n\r\n garbage\r\n\r\n" * 3, 400),
    ],
    ids=["header", "url", "headers", "many-headers", "http-0.9", "garbage"],
)
async def test_a_head_of_any_size_is_bounded(local: Rest, sent: bytes, status: int) -> None:
    answer = await rest_of(await opened(local, sent))
    assert answer == b"" or f"HTTP/1.1 {status} ".encode() in answer
    assert (await local("GET", "/healthz")).status_code == 200


async def test_as_many_headers_as_allowed_are_read(local: Rest) -> None:
    lines = b"X-Many: x\r\n" * (HEADERS_MAX - 1)
    answer = await rest_of(await opened(local, b"GET /healthz HTTP/1.1\r\nConnection: close\r\n" + lines + b"\r\n"))
    assert answer.startswith(b"HTTP/1.1 200")


async def test_the_unfinished_heads_of_all_connections_have_one_limit(
    local: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everwork.server.http.framework.protocol.HEADS_BYTES_MAX", 100_000)
    first = await opened(local, b"GET /jobs?" + b"x" * 60_000)
    await until(lambda: connections(local).heads_bytes > 60_000)
    second = await opened(local, b"GET /jobs?" + b"x" * 60_000)
    answer = await rest_of(second)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 503")
    first.writer.write(b" HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert (await rest_of(first)).startswith(b"HTTP/1.1 401")
    await until(lambda: connections(local).heads_bytes == 0)


# Bodies ---------------------------------------------------------------------------------------------


def chunked(key: str) -> bytes:
    return f"POST {JOBS} HTTP/1.1\r\nHost: x\r\n{key}Transfer-Encoding: chunked\r\n\r\n".encode()


@pytest.mark.parametrize("key", [KEY, ""], ids=["key", "stranger"])
@pytest.mark.parametrize(
    "endless",
    [b"1;" + b"x" * 1_000_000, b"1\r\nx\r\n0\r\nX-Long: " + b"x" * 1_000_000, b"0\r\n" + b"X: y\r\n" * 200_000],
    ids=["extension", "trailer", "trailers"],
)
async def test_what_surrounds_a_body_is_bounded(local: Rest, key: str, endless: bytes) -> None:
    connection = await opened(local, chunked(key))
    connection.writer.write(endless)
    await rest_of(connection)
    await until(lambda: len(connections(local)) == 0)


async def test_trailers_and_chunk_extensions_of_usual_size_are_ignored(local: Rest) -> None:
    head = chunked(KEY + "Content-Type: application/json\r\nConnection: close\r\n")
    body = b'd;a=b\r\n{"type": "a"}\r\n0\r\nX-Sum: 1\r\n\r\n'
    assert (await rest_of(await opened(local, head + body))).startswith(b"HTTP/1.1 201")


async def test_a_trailer_is_no_header(local: Rest) -> None:
    head = chunked("Content-Type: application/json\r\nConnection: close\r\n")
    body = b'd\r\n{"type": "a"}\r\n0\r\n' + KEY.encode() + b"X-Forwarded-For: 6.6.6.6\r\n\r\n"
    assert (await rest_of(await opened(local, head + body))).startswith(b"HTTP/1.1 401")


# Requests sent ahead --------------------------------------------------------------------------------


async def a_poll(rest: Rest) -> Connection:
    """A connection whose first request waits for a job."""
    connection = await opened(rest)
    await connection.send("POST", f"{JOBS}/activate", ASKED)
    await until(lambda: rest.service.waiting("email-send") == 1)
    return connection


def sent_ahead(rest: Rest) -> int:
    """How many requests wait for an earlier response."""
    return max((len(getattr(one, "pipeline", ())) for one in running(rest).server_state.connections), default=0)


@pytest.mark.parametrize("count", [1, PIPELINE_PAUSE])
async def test_a_request_sent_ahead_does_not_hide_that_the_caller_has_gone(local: Rest, count: int) -> None:
    connection = await a_poll(local)
    connection.writer.write(HEALTH * count)
    await until(lambda: sent_ahead(local) == count)
    await connection.cut()
    if count == PIPELINE_PAUSE:  # Nothing more is read, so there is no event to wait for.
        pass_time(local, TIMEOUTS.blocked + 1)
    await until(lambda: local.service.waiting("email-send") == 0)
    job = await local.job()
    await until(lambda: is_given_back(local, job))


async def test_requests_sent_ahead_are_answered_in_their_order(local: Rest) -> None:
    connection = await a_poll(local)
    connection.writer.write(
        HEALTH * (PIPELINE_PAUSE - 1) + HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    )
    await until(lambda: sent_ahead(local) == PIPELINE_PAUSE)
    await local.job()
    answer = await rest_of(connection)
    assert answer.count(b"HTTP/1.1 200") == PIPELINE_PAUSE + 1
    assert answer.index(b'"jobs"') < answer.index(b'"status"')


async def test_requests_sent_ahead_have_time_as_long_as_responses_are_sent(local: Rest) -> None:
    connection = await a_poll(local)
    await connection.send("POST", f"{JOBS}/activate", ASKED)
    connection.writer.write(HEALTH * (PIPELINE_PAUSE - 1))
    await until(lambda: sent_ahead(local) == PIPELINE_PAUSE)
    await local.job()
    await connection.reader.readuntil(b'"jobs"')
    await until(lambda: local.service.waiting("email-send") == 1)
    pass_time(local, TIMEOUTS.blocked + 1)
    await local.job()
    assert (await connection.reader.readuntil(b'"status"')).count(b"HTTP/1.1 200") == 2


async def test_a_flood_of_requests_sent_ahead_ends_the_connection(local: Rest) -> None:
    connection = await a_poll(local)
    connection.writer.write(HEALTH * (PIPELINE_MAX + 2))
    assert await rest_of(connection) == b""
    await until(lambda: local.service.waiting("email-send") == 0)


async def test_a_large_body_sent_ahead_blocks_a_poll_only_for_a_while(local: Rest) -> None:
    connection = await a_poll(local)
    connection.writer.write(f"POST {JOBS} HTTP/1.1\r\nHost: x\r\n{KEY}Content-Length: 9000000\r\n\r\n".encode())
    connection.writer.write(b"x" * 1_000_000)
    await until(lambda: bool(connections(local)._blocked))
    pass_time(local, TIMEOUTS.blocked + 1)
    await until(lambda: local.service.waiting("email-send") == 0)


async def test_a_large_body_is_not_counted_to_the_head_that_is_sent_ahead_behind_it(local: Rest) -> None:
    connection = await a_poll(local)
    [protocol] = running(local).server_state.connections
    size = HEAD_BYTES_MAX + 1
    posted = f"POST {JOBS} HTTP/1.1\r\nHost: x\r\n{KEY}Content-Length: {size}\r\n\r\n".encode()
    protocol.data_received(posted + b"x" * size + b"GET /heal")  # In one packet.
    connection.writer.write(b"thz HTTP/1.1\r\nConnection: close\r\n\r\n")
    await local.job()
    assert (await rest_of(connection)).count(b"HTTP/1.1 200") == 2


async def test_garbage_sent_ahead_does_not_end_up_in_the_response(local: Rest) -> None:
    connection = await a_poll(local)
    connection.writer.write(b"\x00\x01\x02 garbage\r\n\r\n")
    assert await rest_of(connection) == b""


# Numbers --------------------------------------------------------------------------------------------


async def test_above_the_limit_the_connection_that_was_idle_for_longest_is_closed(tmp_path: Path) -> None:
    async with serving(url_of("sqlite", tmp_path), max_connections=10) as rest:
        kept = [await opened(rest, HEALTH) for _ in range(10)]
        for one in kept:
            await one.reader.readuntil(b"}")
        new = await Connection.open(rest)
        new.writer.write(HEALTH)
        assert (await new.reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
        assert await rest_of(kept[0]) == b""
        kept[1].writer.write(HEALTH)
        assert (await kept[1].reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")


async def test_a_head_that_takes_its_time_makes_room_too(tmp_path: Path) -> None:
    async with serving(url_of("sqlite", tmp_path), max_connections=10) as rest:
        slow = [await opened(rest, b"GET /jobs") for _ in range(10)]
        connections(rest).clock = lambda: asyncio.get_running_loop().time() + 2
        new = await Connection.open(rest)
        new.writer.write(HEALTH)
        assert (await new.reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
        assert await rest_of(slow[0]) == b""


async def test_if_all_connections_are_busy_a_new_one_is_told_to_come_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "REFUSED_MAX", 2)
    async with serving(url_of("sqlite", tmp_path), max_connections=10) as rest:
        polls = [await opened(rest) for _ in range(10)]
        for one in polls:
            await one.send("POST", f"{JOBS}/activate", ASKED)
        await until(lambda: rest.service.waiting("email-send") == 10)
        refused = [await Connection.open(rest) for _ in range(4)]
        answers = [await rest_of(one) for one in refused]
        assert answers[2:] == [b"", b""]
        for answer in answers[:2]:
            assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            assert b"retry-after: 1\r\n" in answer
            assert b'"code":"too_many_connections"' in answer
        assert rest.service.waiting("email-send") == 10
        await polls[0].cut()
        await until(lambda: len(connections(rest)) == 9)
        assert (await rest("GET", "/healthz")).status_code == 200
    assert len([one for one in caplog.records if "too many connections" in one.message]) <= 1


async def test_an_upgrade_is_not_made_and_the_connection_is_not_lost_count_of(local: Rest) -> None:
    head = (
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n"
    )
    connection = await opened(local, head)
    assert (await connection.reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
    connection.writer.write(b"\x81\x05hello" * 100_000)
    pass_time(local, TIMEOUTS.idle + 1)
    await rest_of(connection)
    await until(lambda: len(connections(local)) == 0)


class Silent:
    """A connection that only records whether it was ended."""

    def __init__(self, *, is_closing: bool = False) -> None:
        self.is_closing = is_closing
        self.has_ended = False

    def end(self) -> None:
        self.has_ended = True

    abort = end_slow_head = end


async def test_a_connection_that_is_refused_while_it_is_idle_delays_the_end_of_no_other() -> None:
    now = 0.0
    found = Connections(10, lambda: now)
    refused, idle = Silent(), Silent()
    for one in (refused, idle):
        found.await_request(one)
    now = TIMEOUTS.idle - 1
    found.await_request(refused)
    found.sweep(TIMEOUTS.idle + 1)
    assert (refused.has_ended, idle.has_ended) == (False, True)


async def test_a_connection_that_closes_does_not_wait_for_ever_until_the_peer_has_read_the_rest() -> None:
    found = Connections(10, lambda: 0.0)
    closing, busy = Silent(is_closing=True), Silent()
    for one in (closing, busy):
        assert found.admit(one)
    for now in (0.0, TIMEOUTS.idle + 1):
        found.sweep(now)
    assert (closing.has_ended, busy.has_ended) == (True, False)
