"""Measurements from outside: of processes with /proc, of stores with their own queries."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import psycopg
import redis
from psycopg import sql

_KIB: Final = 1_024
_OBSERVED_SECONDS_MAX: Final = 2.0
_SEPARATORS: Final = re.compile(r"[\x00\n\x1f:/]")


def process_values(pid: int) -> dict[str, float]:
    """Memory, descriptors, sockets, threads and CPU seconds of a process; empty if it has ended."""
    folder = Path(f"/proc/{pid}")
    try:
        lines = (folder / "status").read_text().splitlines()
        status = {name: rest.split()[0] for name, _, rest in (line.partition(":") for line in lines) if rest.split()}
        if "VmRSS" not in status:  # A zombie: its parent has not waited for it yet.
            return {}
        links = [_link(one) for one in (folder / "fd").iterdir()]
        ticks = (folder / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {
        "rss_bytes": int(status["VmRSS"]) * _KIB,
        "anonymous_bytes": int(status["RssAnon"]) * _KIB,
        "threads": int(status["Threads"]),
        "descriptors": len(links),
        "sockets": sum(link.startswith("socket:") for link in links),
        "cpu_seconds": (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK"),
    }


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def children_of(pid: int) -> list[int]:
    """The child processes of a process, of all its threads."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def observed_values(pid: int, folder: Path) -> dict[str, float]:
    """What a process that runs under `observed` reports: tasks and objects. Empty if it does not respond."""
    file = folder / f"observed-{pid}.json"
    if not file.exists():  # Without its handler the signal would end the process.
        return {}
    asked_ns = file.stat().st_mtime_ns
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR2)
    deadline = time.monotonic() + _OBSERVED_SECONDS_MAX
    while time.monotonic() < deadline:
        with suppress(FileNotFoundError):
            if file.stat().st_mtime_ns != asked_ns:
                values: dict[str, float] = json.loads(file.read_text())["values"]
                return values
        time.sleep(0.01)
    return {}


# Stores -------------------------------------------------------------------------------------------


def store_values(url: str) -> dict[str, float]:
    """Rows per table or keys per kind, and bytes."""
    match url.partition(":")[0]:
        case "sqlite":
            return _sqlite(Path(url.removeprefix("sqlite:///")))
        case "postgresql":
            return _postgres(url)
        case _:
            return _redis(url)


def _sqlite(path: Path) -> dict[str, float]:
    found: dict[str, float] = {"store_bytes": path.stat().st_size, "wal_bytes": 0}
    with suppress(FileNotFoundError):
        found["wal_bytes"] = Path(f"{path}-wal").stat().st_size
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)
    try:
        found["free_bytes"] = _one(connection, "PRAGMA freelist_count") * _one(connection, "PRAGMA page_size")
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        for name in sorted(name for name in names if name.startswith("ew_")):
            found[f"rows {name.removeprefix('ew_')}"] = _one(connection, f'SELECT count(*) FROM "{name}"')
        for kind, rows in connection.execute("SELECT kind, count(*) FROM ew_registry GROUP BY kind"):
            found[f"rows registry {kind}"] = rows
    finally:
        connection.close()
    found.pop("rows registry", None)  # Shown by kind instead.
    return found


def _one(connection: sqlite3.Connection, statement: str) -> float:
    [(value,)] = connection.execute(statement).fetchall()
    return float(value)


def _postgres(url: str) -> dict[str, float]:
    parts = urlsplit(url)
    [schema] = parse_qs(parts.query)["schema"]
    found: dict[str, float] = {}
    with psycopg.connect(parts._replace(query="").geturl(), autocommit=True) as connection:

        def one(statement: Any, *values: Any) -> float:
            row = connection.execute(statement, values).fetchone()
            return float((row or (0,))[0] or 0)

        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY 1", [schema])
        for (name,) in tables.fetchall():
            table = sql.Identifier(schema, name)
            found[f"rows {name}"] = one(sql.SQL("SELECT count(*) FROM {}").format(table))
            size = one("SELECT pg_total_relation_size(%s::regclass)", f'"{schema}"."{name}"')
            found["store_bytes"] = found.get("store_bytes", 0) + size
        registry = sql.SQL("SELECT kind, count(*) FROM {} GROUP BY kind").format(sql.Identifier(schema, "registry"))
        for kind, rows in connection.execute(registry):
            found[f"rows registry {kind}"] = rows
        found["wal_bytes"] = one("SELECT sum(size) FROM pg_ls_waldir()")
        found["connections"] = one("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
        found["dead_rows"] = one("SELECT sum(n_dead_tup) FROM pg_stat_user_tables WHERE schemaname = %s", schema)
    found.pop("rows registry", None)
    return found


def _redis(url: str) -> dict[str, float]:
    """Elements by kind of key: a job is an element of a hash, not a key."""
    parts = urlsplit(url)
    with redis.Redis.from_url(parts._replace(query="").geturl(), protocol=3) as client:
        info: dict[str, Any] = client.info()
        found: Counter[str] = Counter()
        for key in client.scan_iter(count=2_000):
            kind = _kind(key.decode("utf-8", "replace"))
            if kind == "registry":
                names = (field.decode("utf-8", "replace") for field in client.hkeys(key))
                found.update(f"rows registry {_SEPARATORS.split(name)[0]}" for name in names)
            elif kind != "registered":  # The same names, in the same order.
                found[f"rows {kind}"] += _size(client, key)
    found["rows keys"] = info["db0"]["keys"] if "db0" in info else 0
    sizes = {"store_bytes": info["used_memory"], "wal_bytes": info.get("aof_current_size", 0)}
    return {**found, **sizes, "connections": info["connected_clients"]}


def _size(client: redis.Redis, key: bytes) -> int:
    """How many elements a key has; it may have been deleted."""
    sizes: dict[str, Any] = {
        "hash": client.hlen, "zset": client.zcard, "set": client.scard, "list": client.llen, "stream": client.xlen
    }  # fmt: skip
    kind: Any = client.type(key)
    size = sizes.get(kind.decode())
    return int(size(key)) if size else 1


def _kind(key: str) -> str:
    """The kind of a key: its first word after the namespace, without numbers and names."""
    word = key.partition("}")[2].strip(":").partition(":")[0] or key
    letters = "".join(sign for sign in word if sign.isalpha() or sign == "_")[:24] or "other"
    return {"m": "measures", "w": "hourly", "j": "job", "h": "history"}.get(letters, letters)
