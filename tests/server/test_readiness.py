"""Ready means that a write works: not on a full disk, in a file that was moved, on a replica, or without memory."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psycopg
import pytest
import redis

from everwork.engines.sqlite.engine import SqliteEngine
from everwork.service.monitor import write_check
from tests.server.http.serving import JOBS, Rest, serving
from tests.servers import redis_server
from tests.stores import url_of


@pytest.fixture(autouse=True)
def _ask_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_check, "REUSE_SECONDS", 0.0)
    monkeypatch.setattr(write_check, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr("everwork.server.readiness.REUSE_SECONDS", 0.0)


@contextmanager
def moved(file: Path) -> Iterator[None]:
    file.rename(file.with_suffix(".away"))
    yield
    file.with_suffix(".away").rename(file)


@contextmanager
def full(file: Path) -> Iterator[None]:
    """Forbid this process to enlarge files, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (Path(f"{file}-wal").stat().st_size, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def not_ready(rest: Rest) -> str:
    """Why the server is not ready; writes fail, too, and neither error reveals where the store is."""
    detail: str = (await rest.refused(503, "GET", "/readyz"))["detail"]
    refused: str = (await rest.refused(503, "POST", JOBS, {"type": "work"}))["detail"]
    assert refused.endswith("; see the server log")
    for secret in ("127.0.0.1", "jobs.db", "/", "postgres", "Redis"):
        assert secret not in detail + refused
    return detail


@pytest.mark.parametrize("spoil", [moved, full])
async def test_a_file_that_cannot_be_written_is_noticed_and_so_is_its_recovery(
    tmp_path: Path, spoil: Callable[[Path], AbstractContextManager[None]], caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(url_of("sqlite", tmp_path)) as rest:
        await rest.ok("GET", "/readyz")
        with spoil(tmp_path / "jobs.db"):
            assert "the engine accepts no writes" in await not_ready(rest)
        assert f"cannot use {tmp_path / 'jobs.db'}" in caplog.text
        await rest.ok("GET", "/readyz")


async def test_a_postgres_server_that_has_become_read_only_is_noticed(tmp_path: Path) -> None:
    url = url_of("postgres", tmp_path)
    async with serving(url) as rest:
        await rest.ok("GET", "/readyz")
        with psycopg.connect(url.partition("?")[0], autocommit=True) as admin, read_only(admin):
            assert "the engine accepts no writes" in await not_ready(rest)
        await rest.ok("GET", "/readyz")


@contextmanager
def read_only(admin: psycopg.Connection) -> Iterator[None]:
    """As after a failover: clients that reconnect find a server that is read-only."""
    ended = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'everwork'"
    )
    name = admin.info.dbname
    admin.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
    admin.execute(ended)
    yield
    admin.execute("SET default_transaction_read_only = off")
    admin.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only".encode())
    admin.execute(ended)


async def test_a_redis_server_without_memory_or_with_a_primary_is_noticed() -> None:
    with redis_server() as server, redis.Redis(port=server.port) as admin:
        async with serving(server.url) as rest:
            await rest.ok("GET", "/readyz")
            admin.config_set("maxmemory", 1)
            assert "the engine accepts no writes" in await not_ready(rest)
            admin.config_set("maxmemory", 0)
            await rest.ok("GET", "/readyz")
            admin.replicaof("127.0.0.1", 1)
            await not_ready(rest)
            admin.replicaof("NO", "ONE")
            await rest.ok("GET", "/readyz")


async def test_those_who_ask_share_a_write(local_writes: list[str], tmp_path: Path) -> None:
    async with serving(url_of("sqlite", tmp_path)) as rest:
        for _ in range(5):
            await rest.ok("GET", "/readyz")
        assert len(local_writes) == 1


@pytest.fixture
def local_writes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The registry turns that write checks have taken."""
    monkeypatch.setattr(write_check, "REUSE_SECONDS", 60.0)
    found: list[str] = []
    take_turn = SqliteEngine.take_turn

    async def counted(self: SqliteEngine, name: str, holder: str, ttl_ms: int) -> bool:
        if name.startswith(write_check.TURN):
            found.append(name)
        return await take_turn(self, name, holder, ttl_ms)

    monkeypatch.setattr(SqliteEngine, "take_turn", counted)
    return found
