"""Before anything is written: the URL, the password, and what the server says of itself."""

from __future__ import annotations

import asyncio
import logging

import pytest

from everwork.core.outcome import Complete
from everwork.engines.redis.engine import RedisEngine
from everwork.engines.redis.server import checked, parse_info
from everwork.engines.redis.store_url import StoreUrl
from everwork.engines.values import Durability
from everwork.exceptions import BadConfiguration, EngineError, EngineUnavailable, InvalidInput, SchemaMismatch
from tests.factories import TYPE, a_new_job, a_pending_job, asked
from tests.redis.conftest import opened
from tests.servers import RedisServer, free_port, redis_server

SECRET = "s3cr:t/%"
ENCODED = "s3cr%3At%2F%25"

INFO_5 = "# Server\r\nredis_version:5.0.14\r\nrole:master\r\n"
INFO_62 = "# Server\r\nredis_version:6.2.14\r\n# Persistence\r\naof_enabled:1\r\nrole:master\r\n"
INFO_VALKEY = "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.0\r\naof_enabled:1\r\nrole:master\r\n"
INFO_REPLICA = "redis_version:7.0.15\r\nrole:slave\r\nmaster_host:10.0.0.1\r\nmaster_port:6379\r\n"


# URLs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://", "redis://localhost:6379/0"),
        ("redis://example.org/3", "redis://example.org:6379/3"),
        ("redis://ann:pw@example.org:7000/3?namespace=x", "redis://example.org:7000/3"),
        ("rediss://[::1]:7000", "rediss://[::1]:7000/0"),
        ("redis+unix:///run/redis.sock?db=2", "redis+unix:///run/redis.sock?db=2"),
        ("redis+cluster://a:7000,b:7001", "redis+cluster://a:7000,b:7001/0"),
        ("rediss+cluster://a", "rediss+cluster://a:6379/0"),
    ],
)
def test_a_url_names_a_place(url: str, text: str) -> None:
    assert StoreUrl.from_url(url).text == text


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("redis://h?nmespace=x", "nmespace"),
        ("redis://h?namespace=a{b", "namespace"),
        ("redis://h?namespace=", "namespace"),
        ("redis://h/zero", "database"),
        ("redis://h/1?db=2", "two databases"),
        ("redis://h:port", "host:port"),
        ("redis://a,b", "redis+cluster://"),
        ("redis+cluster://h/1", "database 0"),
        ("redis+unix://", "socket"),
        ("unix:///run/redis.sock", "unknown scheme 'unix'"),
        ("redis://h?ssl_cert_reqs=none", "rediss://"),
        ("rediss://h?ssl_cert_reqs=maybe", "ssl_cert_reqs"),
        ("redis://h?replicas=all", "replicas"),
        ("redis://h?replicas=10", "replicas"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused_with_a_word_on_what_is_wrong(url: str, word: str) -> None:
    with pytest.raises(BadConfiguration, match=word.replace("+", r"\+")):
        StoreUrl.from_url(url)


def test_the_password_comes_from_the_url_or_else_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDISCLI_AUTH", "second")
    assert StoreUrl.from_url("redis://h").password == "second"
    monkeypatch.setenv("EVERWORK_REDIS_PASSWORD", "first")
    assert StoreUrl.from_url("redis://h").password == "first"
    assert StoreUrl.from_url(f"redis://:{ENCODED}@h").password == SECRET


def test_the_password_is_shown_nowhere() -> None:
    place = StoreUrl.from_url(f"redis://ann:{ENCODED}@h/0")
    assert "s3cr" not in repr(place) + place.text + str(place)


# Passwords and databases ----------------------------------------------------------------------------


async def test_with_the_right_password_the_engine_opens_and_never_shows_it(server: RedisServer) -> None:
    server.ask("CONFIG", "SET", "requirepass", SECRET)
    async with opened(f"redis://:{ENCODED}@127.0.0.1:{server.port}") as engine:
        assert (await a_pending_job(engine)).key == 1
        assert "s3cr" not in repr(await engine.health()) + repr(engine)


@pytest.mark.parametrize("account", ["", ":wrong@", "ann:wrong@"])
async def test_a_wrong_password_is_told_in_one_line_that_does_not_show_it(server: RedisServer, account: str) -> None:
    server.ask("CONFIG", "SET", "requirepass", SECRET)
    problem = await the_problem(f"redis://{account}127.0.0.1:{server.port}")
    assert isinstance(problem, BadConfiguration)
    assert "password" in str(problem)
    assert "wrong" not in str(problem)


async def test_a_database_that_does_not_exist_is_told(server: RedisServer) -> None:
    assert "no such database" in str(await the_problem(f"redis://127.0.0.1:{server.port}/99"))


async def test_a_socket_in_the_file_system_is_a_place_too(server: RedisServer) -> None:
    async with opened(f"redis+unix://{server.unix_socket}?db=2") as engine:
        assert (await a_pending_job(engine)).key == 1


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
async def test_a_server_that_is_not_there_is_told_with_what_to_do(scheme: str) -> None:
    problem = await the_problem(f"{scheme}://127.0.0.1:{free_port()}")
    assert isinstance(problem, EngineUnavailable)
    assert "start it, or correct the URL" in str(problem)


async def test_a_plain_server_is_no_cluster(server: RedisServer) -> None:
    assert "use redis://" in str(await the_problem(f"redis+cluster://127.0.0.1:{server.port}"))


async def test_a_node_of_a_cluster_is_no_plain_server() -> None:
    with redis_server("--cluster-enabled", "yes") as node:
        assert "use redis+cluster://" in str(await the_problem(node.url))


LIMITED = ["on", ">pw", "~{everwork}*", "+@all", "-@dangerous", "+info"]


@pytest.mark.parametrize("channels", [["resetchannels", "&{everwork}:*"], ["resetchannels"]])
async def test_a_user_with_rights_on_the_namespace_alone_can_work(server: RedisServer, channels: list[str]) -> None:
    server.ask("ACL", "SETUSER", "ann", *LIMITED, *channels)
    async with opened(f"redis://ann:pw@127.0.0.1:{server.port}") as engine, opened(server.url) as other:
        await asked(engine)
        waiter = asyncio.ensure_future(engine.wait([TYPE], 60_000, engine.mark()))
        job = await a_pending_job(other)
        assert await asyncio.wait_for(waiter, 20)
        assert (await asked(engine)).jobs[0].key == job.key
        assert (await engine.settle([Complete(job.key, 1)])).judged[0].ok


async def test_a_user_without_rights_is_told_what_is_missing(server: RedisServer) -> None:
    server.ask("ACL", "SETUSER", "bob", "on", ">pw", "~other*", "+@all")
    problem = await the_problem(f"redis://bob:pw@127.0.0.1:{server.port}")
    assert "denies this user a required command" in str(problem)


# What the server says of itself -----------------------------------------------------------------------


def test_a_server_that_is_too_old_is_refused() -> None:
    with pytest.raises(BadConfiguration, match=r"is Redis 5\.0\.14; Everwork needs 6\.2"):
        checked(parse_info(INFO_5), None, "it")


def test_the_oldest_server_that_will_do() -> None:
    assert checked(parse_info(INFO_62), "everysec", "it").version == "6.2.14"


def test_a_server_that_still_reads_its_file_is_not_taken_for_one_that_has_none() -> None:
    loading = INFO_62.replace("aof_enabled:1", "loading:1\r\naof_enabled:0")
    with pytest.raises(EngineUnavailable, match="still loading"):
        checked(parse_info(loading), "everysec", "it")


def test_valkey_is_known_by_its_own_name() -> None:
    server = checked(parse_info(INFO_VALKEY), "always", "it")
    assert (server.name, server.version, server.durability) == ("valkey", "8.1.0", Durability.POWER_LOSS)


def test_a_replica_is_refused_with_the_name_of_its_primary() -> None:
    with pytest.raises(EngineUnavailable, match=r"replica.*10\.0\.0\.1:6379"):
        checked(parse_info(INFO_REPLICA), None, "it")


async def test_a_real_replica_is_refused(server: RedisServer) -> None:
    with redis_server("--replicaof", "127.0.0.1", str(server.port)) as replica:
        assert f"127.0.0.1:{server.port}" in str(await the_problem(replica.url))


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
async def test_a_server_that_may_delete_any_key_is_refused(server: RedisServer, policy: str) -> None:
    server.ask("CONFIG", "SET", "maxmemory-policy", policy)
    problem = await the_problem(server.url)
    assert isinstance(problem, BadConfiguration)
    assert "CONFIG SET maxmemory-policy noeviction" in str(problem)
    assert server.ask("DBSIZE") == "0"


@pytest.mark.parametrize("policy", ["noeviction", "volatile-lru", "volatile-ttl"])
async def test_a_server_that_deletes_only_what_runs_out_will_do(server: RedisServer, policy: str) -> None:
    server.ask("CONFIG", "SET", "maxmemory-policy", policy)
    async with opened(server.url) as engine:
        assert (await engine.health()).details["maxmemory_policy"] == policy


@pytest.mark.parametrize(
    ("appendfsync", "durability"), [("everysec", Durability.PROCESS_CRASH), ("always", Durability.POWER_LOSS)]
)
async def test_the_durability_is_that_of_the_append_only_file(
    server: RedisServer, appendfsync: str, durability: Durability
) -> None:
    server.ask("CONFIG", "SET", "appendfsync", appendfsync)
    async with opened(server.url) as engine:
        assert engine.durability is durability


async def test_a_server_without_a_file_is_warned_about_loudly(caplog: pytest.LogCaptureFixture) -> None:
    with redis_server("--appendonly", "no") as server, caplog.at_level(logging.WARNING):
        async with opened(server.url) as engine:
            assert engine.durability is Durability.NONE
            assert (await engine.health()).durability is Durability.NONE
    assert "CONFIG SET appendonly yes" in caplog.text


async def test_a_server_that_forbids_config_is_taken_at_its_info() -> None:
    with redis_server("--rename-command", "CONFIG", "") as server:
        async with opened(server.url) as engine:
            assert engine.durability is Durability.PROCESS_CRASH
            assert (await engine.health()).details["appendfsync"] == "unknown"


# The store ----------------------------------------------------------------------------------------------


async def test_a_store_of_a_newer_version_is_left_alone(server: RedisServer) -> None:
    server.ask("SET", "{everwork}:version", "99")
    problem = await the_problem(server.url)
    assert isinstance(problem, SchemaMismatch)
    assert "upgrade this program" in str(problem)


async def test_without_create_a_server_that_never_held_jobs_is_left_as_it_is(server: RedisServer) -> None:
    engine = RedisEngine.from_url(server.url)
    with pytest.raises(EngineUnavailable, match="holds no jobs"):
        await engine.open(create=False)
    assert server.ask("DBSIZE") == "0"


async def test_namespaces_do_not_see_each_other(server: RedisServer) -> None:
    async with opened(f"{server.url}?namespace=a") as first, opened(f"{server.url}?namespace=b") as second:
        job = await a_pending_job(first, dedupe_key="d")
        assert (await second.create([a_new_job(dedupe_key="d", type="other")]))[0].deduplicated is False
        assert [job.type for job in await first.get([job.key]) if job] == ["email-send"]
        assert [info.type for info in await second.types()] == ["other"]


@pytest.mark.parametrize("transaction", [None, object(), "tx"])
async def test_no_transaction_can_be_joined(transaction: object) -> None:
    engine = RedisEngine.from_url("redis://")
    with pytest.raises(InvalidInput, match="no transactions that others can join"):
        await engine.create_in(transaction, [a_new_job()])
    with pytest.raises(InvalidInput, match="no transactions that others can join"):
        await engine.complete_in(transaction, [])


async def the_problem(url: str) -> EngineError:
    """Why an engine cannot be opened; one line."""
    engine = RedisEngine.from_url(url)
    with pytest.raises(EngineError) as caught:
        await engine.open()
    assert "\n" not in str(caught.value)
    return caught.value


async def test_entries_of_an_everwork_that_kept_them_in_no_order_are_found(server: RedisServer) -> None:
    async with opened(server.url) as engine:
        for name in ("a", "b", "c"):
            await engine.register("kind", name, "{}")
        server.ask("DEL", f"{StoreUrl.from_url(server.url).tag}:registered")
        await engine.register("kind", "d", "{}")
        assert [entry.name for entry in await engine.registered("kind")] == ["d"]
    async with opened(server.url) as engine:
        assert [entry.name for entry in await engine.registered("kind")] == ["a", "b", "c", "d"]
        assert [entry.name for entry in await engine.last_registered("kind", 2)] == ["d", "c"]
