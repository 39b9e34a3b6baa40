"""Offline mode through a server: what programs do while it is away is kept locally and delivered, exactly once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from everwork import Spool
from everwork.client import Client
from everwork.spool.file import SpoolFile
from tests.app.waiting import RESTART_S, until
from tests.client.server import KEY, ServerProcess
from tests.stores import url_of

PROGRAM = """
import asyncio, sys
from everwork import Spool
from everwork.client import Client

async def produce(client, first, last):
    for number in range(first, last):
        print((await client.create("work", {"number": number})).spool_id, flush=True)
    await asyncio.Event().wait()

async def work(client):
    async def handle(job):
        print("begun", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        return job.variables["number"] + 1

    await client.work({"work": handle}, lease=1)

async def main(url, key, path, role, *numbers):
    async with Client(url, key=key, offline=Spool(path, patience=2)) as client:
        await {"produce": produce, "work": work}[role](client, *map(int, numbers))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def server(tmp_path: Path) -> ServerProcess:
    return ServerProcess(url_of("sqlite", tmp_path), tmp_path).start()


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(str(tmp_path / "spool.db"), patience=2)


class Program:
    """A producer or a worker in a process of its own."""

    def __init__(self, server: ServerProcess, spool: Spool, *role: str) -> None:
        command = [sys.executable, "-c", PROGRAM, server.grpc_url, KEY, spool.path, *role]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    async def said(self, lines: int) -> list[str]:
        """The next lines of its output."""
        assert self._process.stdout is not None
        read = self._process.stdout.readline
        return [(await asyncio.to_thread(read)).strip() for _ in range(lines)]

    def tell(self) -> None:
        """Let its handler end."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """As the kernel does when memory is short."""
        self._process.kill()
        self._process.communicate()


async def numbers(server: ServerProcess) -> list[int]:
    """The numbers of all jobs, in the order of their keys."""
    async with Client(server.grpc_url, key=KEY) as client:
        return [job.variables["number"] async for job in client.list()][::-1]


async def test_jobs_of_a_producer_that_was_killed_are_delivered_by_the_next_one(
    server: ServerProcess, spool: Spool
) -> None:
    server.kill()
    producer = Program(server, spool, "produce", "0", "10")
    kept = await producer.said(10)
    assert all(kept)
    producer.kill()
    server.start()
    async with Client(server.grpc_url, key=KEY, offline=spool) as client:
        for spool_id in kept:
            await client.delivered(spool_id, RESTART_S)
    assert await numbers(server) == list(range(10))
    server.stop()


async def test_two_producers_share_a_spool_and_nothing_is_lost_or_doubled(server: ServerProcess, spool: Spool) -> None:
    server.kill()
    producers = [Program(server, spool, "produce", str(first), str(first + 10)) for first in (0, 10)]
    for producer in producers:
        assert all(await producer.said(10))
    server.start()
    file = SpoolFile(spool, None)
    await until(lambda: not file.has_waiting(), RESTART_S)
    file.close()
    for producer in producers:
        producer.kill()
    assert sorted(await numbers(server)) == list(range(20))
    server.stop()


async def test_what_a_worker_completed_before_it_was_killed_does_not_run_again(
    server: ServerProcess, spool: Spool
) -> None:
    """Server and worker are killed, one after the other; the next worker with the same spool reports it first."""
    async with Client(server.grpc_url, key=KEY) as client:
        created = await client.create("work", {"number": 1})
    worker = Program(server, spool, "work")
    assert await worker.said(1) == ["begun"]
    server.kill()
    worker.tell()
    file = SpoolFile(spool, None)
    await until(lambda: file.counts().outcomes == 1, RESTART_S)
    worker.kill()
    server.start()
    successor = Program(server, spool, "work")
    async with Client(server.grpc_url, key=KEY) as client:
        assert await client.result(created.key, RESTART_S) == 2
        assert [entry.kind for entry in await client.history(created.key)] == ["complete"]
    await until(lambda: not file.has_outcomes(), RESTART_S)
    file.close()
    successor.kill()
    server.stop()
