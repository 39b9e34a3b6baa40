"""Long polls whose callers go away, and servers that stop: no job is left behind."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from everwork.core.job import LeasedJob
from everwork.core.leasing import Demand
from everwork.server.http.api.activate import Delivery
from tests.app.waiting import until
from tests.server.http.serving import JOBS, ROOT_KEY, Rest, problem, serving
from tests.stores import url_of

DEMAND = Demand("email-send", "w1", 1)
ASKED = {"type": "email-send", "worker": "w1", "wait": 20}


class Connection:
    """A connection without a client library, which can be cut at any byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, rest: Rest) -> Connection:
        port = int(rest.url.rpartition(":")[2])
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, method: str, path: str, body: Any) -> None:
        """One request."""
        raw = json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nX-API-Key: {ROOT_KEY}\r\nContent-Type: application/json\r\n"
        self.writer.write(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
        await self.writer.drain()

    async def cut(self) -> None:
        """Go away without a word."""
        self.writer.transport.abort()


async def is_given_back(rest: Rest, job: dict[str, Any]) -> bool:
    found = await rest.ok("GET", f"{JOBS}/{job['key']}")
    return bool(found["state"] == "pending" and found["attempts"] == 0)


@pytest.mark.every_engine
async def test_a_caller_who_goes_away_while_waiting_takes_no_job_along(rest: Rest) -> None:
    connection = await Connection.open(rest)
    await connection.send("POST", f"{JOBS}/activate", ASKED)
    await until(lambda: rest.service.waiting("email-send") == 1)
    await connection.cut()
    await until(lambda: rest.service.waiting("email-send") == 0)
    job = await rest.job()
    # An engine step in progress may still lease the job; it is then released, and the attempt is not counted.
    await until(lambda: is_given_back(rest, job))


async def test_a_caller_who_goes_away_during_a_large_answer_hands_it_back(rest: Rest) -> None:
    job = await rest.job(variables={"text": "x" * 1_000_000})
    others = [await rest.job(variables={"text": "x" * 1_000_000}) for _ in range(9)]
    connection = await Connection.open(rest)
    connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await connection.send("POST", f"{JOBS}/activate", {**ASKED, "max_jobs": 10})

    async def is_leased() -> bool:
        return bool((await rest.ok("GET", f"{JOBS}/{job['key']}"))["state"] == "processing")

    await until(is_leased)
    await connection.cut()
    for one in [job, *others]:
        await until(lambda one=one: is_given_back(rest, one))  # type: ignore[misc]


async def test_an_answer_that_cannot_be_written_hands_its_jobs_back(rest: Rest) -> None:
    job = await rest.job()
    leased = await rest.service.activate(DEMAND)

    async def receive() -> dict[str, Any]:
        return await asyncio.Future()

    async def send(message: Any) -> None:
        raise OSError("the wire is cut")

    with pytest.raises(OSError, match="the wire is cut"):
        await Delivery(rest.service, leased, b"{}")({}, receive, send)
    await until(lambda: is_given_back(rest, job))


async def test_an_answer_to_somebody_who_has_just_gone_hands_its_jobs_back(rest: Rest) -> None:
    job = await rest.job()
    leased: list[LeasedJob] = await rest.service.activate(DEMAND)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await Delivery(rest.service, leased, b"{}")({}, receive, send)
    assert sent == []
    await until(lambda: is_given_back(rest, job))


async def test_a_server_that_stops_ends_its_polls_with_nothing(tmp_path: Path) -> None:
    async with serving(url_of("sqlite", tmp_path)) as rest:
        poll = asyncio.create_task(rest.ok("POST", f"{JOBS}/activate", ASKED))
        await until(lambda: rest.service.waiting("email-send") == 1)
        await rest.server.stop(5)
        assert await poll == {"jobs": []}


async def test_a_server_that_can_wait_no_longer_says_so_and_strands_nothing(tmp_path: Path) -> None:
    async with serving(url_of("sqlite", tmp_path)) as rest:
        connection = await Connection.open(rest)
        head = f"POST {JOBS} HTTP/1.1\r\nHost: x\r\nX-API-Key: {ROOT_KEY}\r\nContent-Length: 100\r\n\r\n"
        connection.writer.write(head.encode())
        await until(lambda: bool(rest.server._server and rest.server._server.server_state.tasks))
        await rest.server.stop(0)
        assert (await connection.reader.read()).startswith(b"HTTP/1.1 503")


async def test_a_poll_ends_with_nothing_when_its_time_is_over(local: Rest) -> None:
    assert await local.ok("POST", f"{JOBS}/activate", {**ASKED, "wait": 0.01}) == {"jobs": []}


async def test_a_poll_lasts_no_longer_than_the_server_allows(tmp_path: Path) -> None:
    async with serving(url_of("sqlite", tmp_path), long_poll_seconds=0.01) as rest:
        assert await rest.ok("POST", f"{JOBS}/activate", {**ASKED, "wait": 300}) == {"jobs": []}


async def test_a_key_that_is_revoked_during_its_poll_gets_no_job(rest: Rest) -> None:
    made = await rest.keys.create("somebody", ["jobs"])
    poll = asyncio.create_task(rest("POST", f"{JOBS}/activate", ASKED, headers={"X-API-Key": made.text}))
    await until(lambda: rest.service.waiting("email-send") == 1)
    await rest.keys.revoke(made.key.id)
    job = await rest.job()
    assert problem(await poll, 401)["code"] == "unauthenticated"
    await until(lambda: is_given_back(rest, job))


@pytest.mark.every_engine
async def test_a_poll_of_a_type_that_is_stopped_says_why_it_gets_nothing(rest: Rest) -> None:
    await rest.job()
    await rest.ok("PUT", "/api/v1/types/email-send/pause")
    told = await rest.ok("POST", f"{JOBS}/activate", {**ASKED, "wait": 0})
    assert told == {"jobs": [], "reason": "type 'email-send' is paused until it is resumed"}
