"""What a program pays for that talks to a server only."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, sys
import everwork.client.stream_source
from everwork.client import Client, SyncClient

async def main():
    async with Client("grpc://localhost:1") as client:
        client.stream()

SyncClient("grpc://localhost:1")
asyncio.run(main())
print(*sys.modules)
"""
NOT_NEEDED = frozenset(
    {
        "asyncpg",
        "everwork.app",
        "everwork.client.offline",
        "everwork.engines",
        "everwork.manager",
        "everwork.server",
        "everwork.service",
        "everwork.spool",
        "psycopg",
        "pydantic",
        "redis",
        "sqlite3",
        "starlette",
        "uvicorn",
    }
)


def test_a_remote_client_loads_no_engine_no_service_and_no_server() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    assert "everwork.client.remote_stream" in loaded
    assert sorted(loaded & NOT_NEEDED) == []
