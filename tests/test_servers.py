"""The servers that the tests start: they keep their promises, so that what a test finds is the engine's doing."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
import redis

from tests.servers import LOOPBACK, postgres_server, redis_server, wait_until
from tests.torture.proxy import Proxy

ROOT = Path(__file__).resolve().parents[1]
OWNER = """
import sys
from tests.servers import redis_server
server = redis_server()
print(server.pid, server.folder, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("version", [16, 18])
def test_a_postgresql_that_was_killed_comes_back_with_what_it_had_acknowledged(version: int) -> None:
    with postgres_server(fsync=True, version=version) as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
        url, killed = server.url, server.pid
        server.kill()
        server.start()
        assert (server.url, server.pid != killed) == (url, True)
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT one FROM kept").fetchone() == (1,)


def test_a_redis_that_was_killed_comes_back_with_what_it_had_acknowledged() -> None:
    with redis_server("--appendfsync", "always") as server:
        redis.Redis.from_url(server.url).set("kept", 1)
        server.kill()
        server.start()
        assert redis.Redis.from_url(server.url).get("kept") == b"1"


def test_servers_do_not_outlive_the_process_that_started_them() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    pid, folder = owner.stdout.readline().decode().split()
    server = os.pidfd_open(int(pid))
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    wait_until(lambda: _has_ended(server), "the server lives on")
    shutil.rmtree(folder)
    os.close(server)


def _has_ended(watched: int) -> bool:
    try:
        signal.pidfd_send_signal(watched, 0)
    except ProcessLookupError:
        return True
    return False


async def test_a_proxy_passes_on_what_is_said_until_it_cuts_in_the_middle() -> None:
    listener = await asyncio.start_server(_echo, LOOPBACK, 0)
    proxy = Proxy(listener.sockets[0].getsockname()[1])
    reader, writer = await asyncio.open_connection(LOOPBACK, await proxy.start())
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    [link] = proxy._links
    link.cut_after(7)
    writer.write(b"goodbye")
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await reader.readexactly(7)
    await proxy.close()
    listener.close()


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(100):
        writer.write(chunk)
    writer.close()
