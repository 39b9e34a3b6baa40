"""Before anything is written: the URL, the user, and a server that can hold jobs. One line says what to do."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from everwork import Everwork
from everwork.engines.open import open_engine
from everwork.engines.postgres.connections import Connections
from everwork.engines.postgres.engine import PostgresEngine
from everwork.engines.postgres.migrate import require_server
from everwork.engines.postgres.store_url import StoreUrl
from everwork.engines.values import Durability
from everwork.exceptions import BadConfiguration, EngineBusy, EngineError, EngineUnavailable, InvalidInput
from tests.app.waiting import finished, working
from tests.factories import a_new_job, a_pending_job
from tests.postgres.conftest import opened, schema_of, without_options
from tests.servers import LOOPBACK, PostgresServer, _unprivileged, free_port, wait_until
from tests.stores import word_of

SECRET = "s3cr:t/@%"
ENCODED = "s3cr%3At%2F%40%25"


async def the_problem(url: str) -> EngineError:
    """Why an engine cannot be opened: one line, without the password."""
    with pytest.raises(EngineError) as caught:
        await open_engine(url).open()
    assert "\n" not in str(caught.value)
    assert "s3cr" not in str(caught.value)
    return caught.value


@pytest.fixture(scope="module")
def guarded(spare: PostgresServer) -> None:
    """A role that must show its password."""
    with psycopg.connect(spare.url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE guarded LOGIN PASSWORD '{SECRET}'".encode())
        connection.execute("GRANT CREATE ON DATABASE postgres TO guarded")


@pytest.fixture
def admin(guarded: None, server: PostgresServer) -> Iterator[psycopg.Connection]:
    """The superuser of a server that some test may have restarted."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        yield connection


def database(server: PostgresServer, name: str) -> str:
    """Another database of the server."""
    return f"{server.url.rpartition('/')[0]}/{name}"


# URLs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://h/jobs", "PostgreSQL 'jobs' on h"),
        ("postgres://ann:s3cr@h:5433/jobs?schema=x", "PostgreSQL 'jobs' on h:5433"),
        ("postgresql:///my%20jobs?host=/run/pg", "PostgreSQL 'my jobs' on /run/pg"),
        ("postgresql://h", "PostgreSQL 'the default database' on h"),
    ],
)
def test_a_url_names_a_place_and_never_shows_the_password(url: str, shown: str) -> None:
    address = StoreUrl.from_url(url)
    assert address.shown == shown
    assert "s3cr" not in repr(address) + repr(PostgresEngine(address))


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("schema=", "schema must be"),
        ("schema=Jobs", "schema must be"),
        ("schema=a-b", "schema must be"),
        ("schema=9a", "schema must be"),
        ("schema=pg_jobs", "schema must be"),
        ("schema=information_schema", "schema must be"),
        (f"schema={'a' * 51}", "schema must be"),
        ("schema=a;drop", "schema must be"),
        ("notify=maybe", "notify must be on or off"),
        ("notify=", "notify must be on or off"),
        ("pool=0", "pool must be a whole number from 1 to 100"),
        ("pool=101", "pool must be a whole number"),
        ("pool=-1", "pool must be a whole number"),
        ("pool=²", "pool must be a whole number"),
        ("pool=many", "pool must be a whole number"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused_with_what_is_allowed(query: str, word: str) -> None:
    with pytest.raises(BadConfiguration, match=f"^engine URL: {word}"):
        StoreUrl.from_url(f"postgresql://h/jobs?{query}")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:s3cr/et@h/jobs",
        "postgresql://ann:12/s3cr@h/jobs",
        "postgresql://ann:s3cr?et@h/jobs",
        "postgresql://ann:12?s3cr@h/jobs",
        "postgresql://ann:s3cr#et@h/jobs",
        "postgresql://ann:12#s3cr@h/jobs",
        "postgresql://ann:s3cr[et@h/jobs",
        "postgresql://ann:s3cr@h:port/jobs",
        "postgresql://h:99999/jobs?password=s3cr",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_showing_the_password(url: str) -> None:
    with pytest.raises(BadConfiguration, match=r"^engine URL: ") as caught:
        open_engine(url)
    assert "s3cr" not in str(caught.value)


async def test_a_setting_that_nobody_knows_is_refused(url: str) -> None:
    problem = await the_problem(f"{url}&pol=3")
    assert isinstance(problem, BadConfiguration)
    assert '"pol"' in str(problem)
    assert "correct the query string of the URL" in str(problem)


async def test_what_the_driver_knows_goes_to_the_driver(url: str) -> None:
    async with opened(f"{url}&synchronous_commit=off") as engine:
        assert (await engine.health()).details["synchronous_commit"] == "off"
        assert engine.durability is Durability.NONE


async def test_a_socket_in_the_file_system_is_a_place_too(server: PostgresServer, tmp_path: Path) -> None:
    url = f"postgresql:///postgres?host={server.folder}&port={server.port}&user=postgres&schema=ew_{word_of(tmp_path)}"
    async with opened(url) as engine:
        assert (await a_pending_job(engine)).key == 1


# Users and passwords ------------------------------------------------------------------------------------


async def test_the_password_comes_from_the_url_or_else_from_the_environment(
    server: PostgresServer, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(f"postgresql://guarded:{ENCODED}@{LOOPBACK}:{server.port}/postgres?schema=by_url") as engine:
        assert "s3cr" not in repr(await engine.health()) + repr(engine)
    monkeypatch.setenv("PGPASSWORD", SECRET)
    async with opened(f"postgresql://guarded@{LOOPBACK}:{server.port}/postgres?schema=by_env") as engine:
        assert (await a_pending_job(engine)).key == 1


@pytest.mark.parametrize("account", ["guarded:s3cr-wrong", "guarded", "nobody:s3cr"])
async def test_who_may_not_enter_is_told_so_without_the_password(
    server: PostgresServer, admin: psycopg.Connection, account: str
) -> None:
    problem = await the_problem(f"postgresql://{account}@{LOOPBACK}:{server.port}/postgres")
    assert isinstance(problem, BadConfiguration)
    assert "check user and password (URL or PGPASSWORD)" in str(problem)


async def test_a_password_that_is_wrong_in_the_middle_of_work_is_in_no_log(
    server: PostgresServer, admin: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"postgresql://guarded:{ENCODED}@{LOOPBACK}:{server.port}/postgres?schema=changed"
    with caplog.at_level(logging.DEBUG):
        async with opened(url) as engine:
            await engine.wait(["t"], 1)
            admin.execute("ALTER ROLE guarded PASSWORD 'another'")
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'guarded'")
            async with asyncio.timeout(45):
                while "cannot receive notifications" not in caplog.text:
                    with pytest.raises(EngineError):
                        await engine.create([a_new_job()])
        admin.execute(f"ALTER ROLE guarded PASSWORD '{SECRET}'".encode())
    assert "s3cr" not in caplog.text


async def test_a_user_who_may_not_create_is_told_what_to_grant(
    server: PostgresServer, admin: psycopg.Connection
) -> None:
    admin.execute("CREATE ROLE plain LOGIN")
    problem = await the_problem(f"postgresql://plain@{LOOPBACK}:{server.port}/postgres?schema=denied")
    assert isinstance(problem, BadConfiguration)
    assert "everwork migrate" in str(problem)
    assert "schema denied" in str(problem)


async def test_a_user_who_may_not_open_more_connections_is_told(
    server: PostgresServer, admin: psycopg.Connection
) -> None:
    admin.execute("CREATE ROLE few LOGIN CONNECTION LIMIT 1")
    url = f"postgresql://few@{LOOPBACK}:{server.port}/postgres"
    with psycopg.connect(url):
        problem = await the_problem(url)
    assert isinstance(problem, EngineBusy)
    assert "?pool=" in str(problem)


# Databases and servers ------------------------------------------------------------------------------------


async def test_a_database_that_does_not_exist_is_told(server: PostgresServer) -> None:
    problem = await the_problem(database(server, "nowhere"))
    assert isinstance(problem, BadConfiguration)
    assert "createdb" in str(problem)


async def test_a_server_that_is_not_there_is_told_with_what_to_do() -> None:
    problem = await the_problem(f"postgresql://ann:s3cr@{LOOPBACK}:{free_port()}/jobs")
    assert isinstance(problem, EngineUnavailable)
    assert "is the server running?" in str(problem)


async def test_a_server_that_shuts_down_is_told(server: PostgresServer, tmp_path: Path) -> None:
    with psycopg.connect(server.url) as holder:
        os.kill(server.pid, signal.SIGTERM)  # It waits for those who are connected.
        wait_until(lambda: "received smart shutdown" in server.log(), "the server never heard it")
        problem = await the_problem(server.url)
        holder.rollback()
    server.restart()
    assert isinstance(problem, EngineUnavailable)
    assert "shutting down" in str(problem)
    assert "retry when the server is up" in str(problem)


async def test_a_database_that_is_not_in_utf8_is_refused(server: PostgresServer, admin: psycopg.Connection) -> None:
    admin.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    problem = await the_problem(database(server, "latin"))
    assert isinstance(problem, BadConfiguration)
    assert "LATIN1" in str(problem)
    assert "UTF8" in str(problem)


async def test_a_database_that_may_only_be_read_is_refused(server: PostgresServer, admin: psycopg.Connection) -> None:
    admin.execute("CREATE DATABASE frozen")
    admin.execute("ALTER DATABASE frozen SET default_transaction_read_only = on")
    problem = await the_problem(database(server, "frozen"))
    assert isinstance(problem, EngineUnavailable)
    assert "read-only" in str(problem)


async def test_a_store_that_becomes_read_only_in_the_middle_of_work_is_told(
    server: PostgresServer, admin: psycopg.Connection
) -> None:
    admin.execute("CREATE DATABASE freezing")
    url = database(server, "freezing")
    async with opened(f"{url}?pool=1") as engine:
        admin.execute("ALTER DATABASE freezing SET default_transaction_read_only = on")
        await engine._store.connections.close()
        engine._store.connections = Connections(engine._store.url)
        with pytest.raises(EngineUnavailable, match="is read-only; use the primary server"):
            await engine.create([a_new_job()])


class Standby(PostgresServer):
    """A replica of another server, which may be read and not written."""

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__()
        user = _unprivileged()
        if user is not None:
            self.folder.chmod(0o777)
        command: list[str | Path] = [self._binaries / "pg_basebackup", "-D", self._cluster, "-d", primary.url, "-R"]
        subprocess.run(
            [*command, "--no-sync", "--checkpoint=fast"],
            check=True,
            capture_output=True,
            cwd="/",
            user=user,
            group=user,
        )


async def test_a_real_replica_is_refused(server: PostgresServer) -> None:
    with Standby(server) as replica:
        problem = await the_problem(replica.url)
    assert isinstance(problem, EngineUnavailable)
    assert "read-only replica; use the primary server" in str(problem)


@pytest.mark.parametrize(("number", "shown"), [(130_014, "13.14"), (90_624, "9.6.24")])
def test_a_server_that_is_too_old_is_refused(number: int, shown: str) -> None:
    with pytest.raises(BadConfiguration, match=f"is PostgreSQL {shown}; Everwork needs 14 or newer"):
        require_server(StoreUrl.from_url("postgresql://h/jobs"), number, shown)


@pytest.mark.parametrize(("number", "shown"), [(140_000, "14.0"), (160_004, "16.4"), (180_001, "18.1")])
def test_a_server_that_is_new_enough_will_do(number: int, shown: str) -> None:
    require_server(StoreUrl.from_url("postgresql://h/jobs"), number, shown)


async def test_the_durability_is_that_of_the_servers_settings(server: PostgresServer, own_url: str) -> None:
    async with opened(own_url) as engine:  # Test servers do not wait for the disk.
        assert engine.durability is Durability.PROCESS_CRASH
        assert (await engine.health()).details["fsync"] == "off"
    assert PostgresEngine.from_url(own_url).durability is Durability.POWER_LOSS


# Texts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "\udfff end"], ids=["nul", "half", "other half"])
@pytest.mark.parametrize("field", ["dedupe_key", "tenant", "correlation_id", "limit_key"])
async def test_a_name_that_no_database_can_hold_is_refused_before_it_gets_there(
    url: str, field: str, text: str
) -> None:
    async with Everwork(url) as app:
        with pytest.raises(InvalidInput, match=f"^{field}: "):
            await app.enqueue("t", **{field: text})


async def test_a_nul_inside_variables_and_results_comes_back_as_it_was(url: str) -> None:
    app = Everwork(url, worker="w1")

    @app.job("echo")
    async def echo(text: str) -> dict[str, str]:
        return {"text": text}

    async with app, working(app):
        key = await app.enqueue("echo", text="a\0b\u2028é😀")
        assert await app.result(key, timeout=45) == {"text": "a\0b\u2028é😀"}


async def test_half_a_character_inside_variables_is_refused(url: str) -> None:
    async with Everwork(url) as app:
        with pytest.raises(InvalidInput, match=r"^text: "):
            await app.enqueue("t", text="\ud800")


async def test_an_error_text_with_a_nul_is_kept_without_it(url: str) -> None:
    app = Everwork(url, worker="w1")

    @app.job("break", retry=None)
    async def broken() -> None:
        raise ValueError("a\0b")

    async with app, working(app):
        error = (await finished(app, await app.enqueue("break"))).last_error
    assert error is not None
    assert "\0" not in error
    assert error.startswith("ValueError: a")


async def test_the_schema_of_a_store_can_be_named(url: str) -> None:
    async with opened(url) as engine:
        assert (await engine.health()).details["schema"] == schema_of(url)
    with psycopg.connect(without_options(url)) as own:
        assert own.execute("SELECT to_regclass(%s)", [f"{schema_of(url)}.live"]).fetchone() != (None,)
