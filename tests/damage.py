"""Damage in a store, such as a broken disk, a manual edit or another program leaves: bytes in place of values."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

import psycopg
import redis

from everwork.engines.redis.records import id_of

NOT_JSON: Final = b'{"to": '
NO_OBJECT: Final = b"[1]"
NOT_UTF8: Final = b'{"to":"\xff\xfe"}'
"""PostgreSQL accepts no such bytes in text columns."""


class StoreDamage:
    """Writes to a store directly, bypassing its engine."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._place, _, query = url.partition("?")
        self._named = {name: values[0] for name, values in parse_qs(query).items()}

    @property
    def keeps_utf8(self) -> bool:
        """Whether the store refuses bytes that are not UTF-8 in texts."""
        return self._url.startswith("postgres")

    def spoil_job(self, key: int, column: str, raw: bytes) -> None:
        """Replace the variables, headers or extra of a job."""
        if self._url.startswith("sqlite"):
            self._sqlite(f"UPDATE ew_job SET {column} = CAST(? AS TEXT) WHERE key = ?", raw, key)
        elif self._url.startswith("postgres"):
            self._postgres(f"UPDATE job SET {column} = %s WHERE key = %s", raw.decode("utf-8", "replace"), key)
        elif column == "variables":
            self.spoil_hash("j", key, raw)
        else:
            rare = {"headers": b"[%s,null,null,null,null]", "extra": b"[null,null,null,%s,null]"}[column]
            self.spoil_hash("j", key, rare % _json_text(raw) + b"\n{}")

    def spoil_hash(self, part: str, key: int, raw: bytes | None) -> None:
        """Replace one kind of value of a job in Redis; None deletes it."""
        id = id_of(key)
        with self._redis() as client:
            name = f"{{{self._named['namespace']}}}:{part}:{id[:13]}"
            if raw is None:
                client.hdel(name, id)
            else:
                client.hset(name, id, raw)

    def spoil_registry(self, kind: str, name: str, raw: str) -> None:
        """Replace the body of a registry entry."""
        if self._url.startswith("sqlite"):
            self._sqlite("UPDATE ew_registry SET body = ? WHERE kind = ? AND name = ?", raw, kind, name)
        elif self._url.startswith("postgres"):
            self._postgres("UPDATE registry SET body = %s WHERE kind = %s AND name = %s", raw, kind, name)

    def _sqlite(self, statement: str, *values: object) -> None:
        with closing(sqlite3.connect(Path(urlsplit(self._url).path[1:]))) as connection, connection:
            assert connection.execute(statement, values).rowcount == 1

    def _postgres(self, statement: str, *values: object) -> None:
        with psycopg.connect(self._place, options=f"-c search_path={self._named['schema']}") as connection:
            assert connection.execute(statement.encode(), values).rowcount == 1

    def _redis(self) -> redis.Redis | redis.RedisCluster:
        if self._place.startswith("redis+cluster"):
            return redis.RedisCluster.from_url(self._place.replace("redis+cluster", "redis", 1))
        return redis.Redis.from_url(self._place)


def _json_text(raw: bytes) -> bytes:
    """The bytes as the contents of a JSON string, as far as possible."""
    return b'"' + raw.replace(b'"', b'\\"') + b'"'
