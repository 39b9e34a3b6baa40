"""Opens a type's breaker in the store itself, as whoever counts failures will do."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import redis

from tests.stores import schema_of, url_of, word_of

if TYPE_CHECKING:
    from pathlib import Path


def open_breaker(engine_name: str, folder: Path, type: str, until_ms: int) -> None:
    """Let a type's breaker be open until an instant; the type must be known."""
    place = url_of(engine_name, folder).partition("?")[0]
    if engine_name.startswith("sqlite"):
        with closing(sqlite3.connect(folder / "jobs.db")) as connection, connection:
            connection.execute("UPDATE ew_type SET breaker_open_until_ms = ? WHERE name = ?", (until_ms, type))
    elif engine_name.startswith("postgres"):
        sql = f"UPDATE {schema_of(folder)}.type SET breaker_open_until_ms = %s WHERE name = %s"
        with psycopg.connect(place) as session:
            session.execute(sql.encode(), (until_ms, type))
    else:
        _open_in_redis(place, f"{{t{word_of(folder)}}}:t:{type}", until_ms)


def _open_in_redis(place: str, key: str, until_ms: int) -> None:
    client: redis.Redis | redis.RedisCluster
    if place.startswith("redis+cluster"):
        client = redis.RedisCluster.from_url(place.replace("redis+cluster", "redis", 1))
    else:
        client = redis.Redis.from_url(place)
    with closing(client):
        client.hset(key, "breaker", str(until_ms))
