"""Servers that a test may kill and misconfigure, and engines on them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from everwork.engines.postgres import jobs, migrate
from everwork.engines.postgres.engine import PostgresEngine
from everwork.engines.postgres.statements import functions
from tests.servers import PostgresServer, postgres_server
from tests.stores import VirtualClock, url_of, word_of


@pytest.fixture(scope="module")
def spare() -> Iterator[PostgresServer]:
    """A server that belongs to the tests of one file."""
    with postgres_server() as started:
        yield started


@pytest.fixture
def server(spare: PostgresServer) -> Iterator[PostgresServer]:
    """A server that the test may kill; the next test finds it running."""
    yield spare
    if spare._process is None:
        spare.start()


@pytest.fixture
def own_url(server: PostgresServer, tmp_path: Path) -> str:
    """A fresh store on the server that the test may kill."""
    return f"{server.url}?schema=ew_{word_of(tmp_path)}"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A fresh store on the server that all tests share."""
    return url_of("postgres", tmp_path)


@asynccontextmanager
async def opened(url: str, clock: VirtualClock | None = None) -> AsyncIterator[PostgresEngine]:
    """An open engine."""
    engine = PostgresEngine.from_url(url, clock=clock)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


@pytest.fixture
def engine_name() -> str:
    """These tests run on PostgreSQL, whatever engines were chosen for the others."""
    return "postgres"


@pytest.fixture
async def engine(url: str, clock: VirtualClock) -> AsyncIterator[PostgresEngine]:
    """An engine on a fresh store."""
    async with opened(url, clock) as one:
        yield one


def without_options(url: str) -> str:
    """A store's URL as drivers understand it."""
    return url.partition("?")[0]


def schema_of(url: str) -> str:
    """The schema that a store's URL names."""
    return url.partition("schema=")[2].partition("&")[0]


def pretend_old(patched: pytest.MonkeyPatch, version: int, *unknown: str) -> None:
    """Make and use stores as a process of an old version does; `unknown`: see `old_functions`."""
    texts = migrate.migrations()[:version]
    patched.setattr(migrate, "migrations", lambda: texts)
    patched.setattr(migrate, "functions", lambda schema: old_functions(schema, *unknown))
    patched.setattr(jobs, "plain_values", lambda _: None)


def old_functions(schema: str, *unknown: str) -> list[str]:
    """The functions as they were before version 6, without files that use something `unknown` to an old schema."""
    texts = [
        text
        for text in functions(schema)
        if not any(one in text for one in ("list_types", "count_jobs", ".parked", *unknown))
    ]
    revive = (
        "ON CONFLICT (name) DO UPDATE SET deleted_at_ms = NULL, deleted_xid = NULL WHERE t.deleted_at_ms IS NOT NULL"
    )
    return [text.replace(revive, "ON CONFLICT DO NOTHING").replace("AND t.deleted_at_ms IS NULL", "") for text in texts]
