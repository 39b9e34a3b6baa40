"""What a server would refuse or misjudge: documents too long, other isolation levels; and one that says nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import psycopg
import pytest

from everwork.core.outcome import Complete
from everwork.engines.open import open_engine
from everwork.engines.postgres import create
from everwork.exceptions import EngineUnavailable, InvalidInput
from tests.factories import a_new_job, a_processing_job, leased_keys, the_job

if TYPE_CHECKING:
    from everwork.engines.contract import Engine
    from tests.servers import PostgresServer


async def test_a_batch_that_no_document_can_hold_is_the_callers_to_part(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await a_processing_job(engine)
    monkeypatch.setattr(create, "DOCUMENT_BYTES_MAX", 1_000)
    long = '"' + "x" * 2_000 + '"'
    with pytest.raises(InvalidInput, match="bytes in one call"):
        await engine.create([a_new_job(variables=f'{{"v":{long}}}')])
    with pytest.raises(InvalidInput, match="bytes in one call"):
        await engine.settle([Complete(job.key, 1, long)])
    assert (await the_job(engine, job.key)).attempt == 1


async def test_the_databases_own_isolation_level_does_not_matter(server: PostgresServer, own_url: str) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("ALTER ROLE CURRENT_USER SET default_transaction_isolation = 'repeatable read'")
        try:
            engines = [open_engine(own_url) for _ in range(4)]
            await asyncio.gather(*(engine.open() for engine in engines))
            await asyncio.gather(*(engine.create([a_new_job(dedupe_key="d")]) for engine in engines))
            assert len(await leased_keys(engines[0])) == 1
        finally:
            connection.execute("ALTER ROLE CURRENT_USER RESET default_transaction_isolation")
    await asyncio.gather(*(engine.close() for engine in engines))


async def say_nothing(*_: object) -> None:
    """Accept, and never answer."""
    await asyncio.Event().wait()


async def test_a_server_that_says_nothing_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everwork.engines.postgres.connections.CONNECT_SECONDS", 0.2)
    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    host, port = silent.sockets[0].getsockname()
    with pytest.raises(EngineUnavailable, match="is not responding"):
        await open_engine(f"postgresql://u@{host}:{port}/d?sslmode=disable").open()
    silent.close()
