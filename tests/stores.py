"""The engines under test, a fresh store of each, and the clock that tests move."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from typing import TYPE_CHECKING, Final

import psycopg
import pytest
import redis

from everwork.engines.open import open_engine
from tests.shared_servers import shared_url

if TYPE_CHECKING:
    from pathlib import Path

    from everwork.engines.contract import Engine

_CHOSEN: Final = os.environ.get("EVERWORK_TEST_ENGINES", "sqlite,postgres,redis").split(",")
_WAYS_OF: Final = {
    "sqlite": ["sqlite", "sqlite-own-loop"],
    "postgres": ["postgres", "postgres-poll"],
    "redis": ["redis", "redis-cluster"],
}
ENGINES: Final = _CHOSEN
"""Every conformance, model, race and crash test runs on each of these."""
WAYS: Final = [way for name in ENGINES for way in _WAYS_OF.get(name, [name])]
"""An engine may have more than one way to write, to wake or to be reached."""
EVERYTHING: Final = os.environ.get("EVERWORK_TEST_EVERYTHING", "") not in ("", "0")
"""Whether every test runs on every engine and in every way that it can."""

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

START_MS = 1_699_999_200_000
"""Where the clock of every test begins: a full hour."""

DROPS_MAX: Final = 5

ROWS_MAX: Final = 2_000
USES_MAX: Final = 50
"""A schema that has held more rows, or was used so often, is not used again: dead rows slow down whoever comes next."""

_handed_out: Final[set[str]] = set()
_spare: Final[dict[str, list[str]]] = {}
_chosen: Final[dict[str, str]] = {}
_reused: Final[Counter[str]] = Counter()
_connections: Final[dict[str, psycopg.Connection]] = {}
_clients: Final[dict[str, redis.Redis | redis.RedisCluster]] = {}


class VirtualClock:
    """An engine's clock that stands still until a test moves it."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, *, ms: int = 0, seconds: float = 0) -> int:
        """Move on and answer the new instant."""
        self.now_ms += ms + round(seconds * SECOND_MS)
        return self.now_ms


def ways_of(marker: pytest.Mark | None, *, by_poll: bool = True) -> list[str]:
    """The ways in which a conformance test runs: those that its marker `every_way` names, all if it names none.

    `by_poll`: whether PostgreSQL without notifications is among them.
    """
    if EVERYTHING or (marker is not None and not marker.args):
        found = WAYS
    else:
        found = [way for way in WAYS if way in ENGINES or (marker is not None and way in marker.args)]
    return [way for way in found if by_poll or not way.endswith("-poll")]


def at_length(everything: int, usually: int) -> int:
    """How much of something long is done: as much as counts where everything is tested, else what fits into minutes."""
    return everything if EVERYTHING else usually


async def open_store(name: str, folder: Path, clock: VirtualClock | None, *, reuse: bool = False) -> Engine:
    """An opened engine on the store that belongs to this folder.

    `reuse`: a PostgreSQL schema that an earlier test has left, emptied, will do; to make one takes a tenth of a second.
    """
    engine = open_engine(url_of(name, folder, reuse=reuse), clock=clock, own_loop=name == "sqlite-own-loop")
    await engine.open()
    return engine


def url_of(name: str, folder: Path, *, reuse: bool = False) -> str:
    """The store that belongs to this folder: the same for the same folder, a fresh one for another.

    `reuse`: as in `open_store`, for tests whose processes have all ended when they end.
    """
    if reuse and name.startswith("postgres"):
        _reuse_schema(folder)
    match name:
        case "sqlite" | "sqlite-own-loop":
            return f"sqlite:///{folder / 'jobs.db'}"
        case "postgres":
            url = _with(_postgres_database(), f"schema={schema_of(folder)}")
        case "postgres-poll":
            url = _with(_postgres_database(), f"schema={schema_of(folder)}&notify=off")
        case "redis" | "redis-cluster":
            url = _with(shared_url(name), f"namespace=t{word_of(folder)}")
        case _:
            return _url_of_another(name, folder)
    _handed_out.add(url)
    return url


def _url_of_another(name: str, folder: Path) -> str:
    """A store of an engine that another package provides, by the pattern in the environment."""
    pattern = os.environ.get(f"EVERWORK_TEST_{name.upper()}")
    if pattern is None:
        raise ValueError(f"no engine is called {name!r}, and EVERWORK_TEST_{name.upper()} does not say how to reach it")
    return pattern.format(folder=folder, word=word_of(folder))


def drop_stores() -> None:
    """Delete from the shared servers every store that this process was given."""
    while _handed_out:
        drop_store(_handed_out.pop())
    _chosen.clear()


def schema_of(folder: Path) -> str:
    """The PostgreSQL schema that belongs to this folder."""
    own = f"ew_{word_of(folder)}"
    return _chosen.setdefault(own, own)


def _reuse_schema(folder: Path) -> None:
    """Choose a schema that is left, if there is one; and let the folder's be left."""
    own = f"ew_{word_of(folder)}"
    if own not in _chosen and (left := _spare.get(_postgres_database())):
        _chosen[own] = left.pop()
    _reused[schema_of(folder)] += 1


def drop_store(url: str) -> None:
    """Delete one store from its server; a file is left to its folder."""
    place, _, parameters = url.partition("?")
    named = dict(part.split("=", 1) for part in parameters.split("&") if part)
    if url.startswith("postgres"):
        _drop_schema(place, named["schema"])
    elif url.startswith("redis"):
        _delete_keys(place, f"*{{{named['namespace']}}}*")


def _drop_schema(place: str, schema: str) -> None:
    """Leave a schema to the next test, if it may be used again; else delete it."""
    if 0 < _reused[schema] < USES_MAX and _is_emptied(_connection(place), schema):
        _spare.setdefault(place, []).append(schema)
        return
    _delete_schema(place, schema)


def _is_emptied(connection: psycopg.Connection, schema: str) -> bool:
    """Delete what stands in a schema, unless it is plenty, or not what a fresh one is."""
    tables = (
        "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r' AND relname <> 'store'"
    )
    try:
        names = [name for (name,) in connection.execute(tables, [schema])]
        held = " + ".join(f"(SELECT count(*) FROM {schema}.{name})" for name in names)
        key = connection.execute(f"SELECT last_value FROM {schema}.job_key").fetchone()
        if connection.execute(f"SELECT {held}").fetchone()[0] + key[0] > ROWS_MAX:  # type: ignore[index]
            return False
        deletes = "; ".join(f"DELETE FROM {schema}.{name}" for name in names)
        connection.execute(f"{deletes}; SELECT setval('{schema}.job_key', 1, false)".encode())
    except psycopg.Error:
        return False
    return True


def _delete_schema(place: str, schema: str) -> None:
    """A statement whose caller was cancelled may still be under way, and hold some of the schema's locks."""
    for left in reversed(range(DROPS_MAX)):
        try:
            _connection(place).execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'.encode())
            return
        except psycopg.errors.DeadlockDetected:
            if not left:
                raise


def _delete_keys(place: str, pattern: str) -> None:
    client = _client(place)
    keys = list(client.scan_iter(pattern, count=10_000))
    for start in range(0, len(keys), 1_000):
        client.unlink(*keys[start : start + 1_000])


def _postgres_database() -> str:
    """A database of this process's own, so that nobody's catalogue gets crowded by the others."""
    server = shared_url("postgres")
    if os.environ.get("EVERWORK_TEST_POSTGRES"):
        return server
    name = f"ew_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    place = f"{server.rpartition('/')[0]}/{name}"
    if place not in _connections:
        known = _connection(server).execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone()
        if known is None:
            _connection(server).execute(f"CREATE DATABASE {name}".encode())
        _connection(place)
    return place


def _connection(place: str) -> psycopg.Connection:
    if place not in _connections:
        # An engine that was left open, inside a transaction, shall be an error and not a test that hangs.
        _connections[place] = psycopg.connect(place, autocommit=True, options="-c lock_timeout=20s")
    return _connections[place]


def _client(place: str) -> redis.Redis | redis.RedisCluster:
    if place not in _clients:
        if place.startswith("redis+cluster"):
            _clients[place] = redis.RedisCluster.from_url(place.replace("redis+cluster", "redis", 1))
        else:
            _clients[place] = redis.Redis.from_url(place)
    return _clients[place]


def _with(place: str, parameters: str) -> str:
    return f"{place}{'&' if '?' in place else '?'}{parameters}"


def word_of(folder: Path) -> str:
    """A name for a folder: processes that know the folder find the same store."""
    return hashlib.blake2b(str(folder).encode(), digest_size=6).hexdigest()
