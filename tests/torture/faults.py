"""Fault points: the process kills itself with SIGKILL around and inside the engine's own transactions.

`EVERWORK_FAULT=<point>:<n>` kills at the n-th passage of the point. `before-commit`: before the store is told to keep
something; `after-commit`: the store has done it, and the caller has not heard of it. `mid-...`: between the statements
of an operation. Understood by the torture's processes only.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlsplit

import asyncpg.protocol

from everwork.engines.sqlite.statements import statements

VARIABLE: Final = "EVERWORK_FAULT"
_POINTS: Final = {
    ("sqlite", "worker"): ("before-commit", "after-commit", "mid-activate", "mid-settle", "mid-sweep"),
    ("sqlite", "producer"): ("before-commit", "after-commit", "mid-create"),
    ("postgres", "worker"): ("before-commit", "after-commit", "mid-settle", "mid-sweep"),
    ("postgres", "producer"): ("before-commit", "after-commit"),
    ("redis", "worker"): ("before-commit", "after-commit", "mid-settle", "mid-sweep"),
    ("redis", "producer"): ("before-commit", "after-commit"),
}

Answer = TypeVar("Answer")


_waiting = False
on_death: Callable[[], None] | None = None
"""The last word of a process, if it has one."""


def points(engine: str, role: str) -> tuple[str, ...]:
    """The points that a worker, a producer or the first process of a manager passes on this engine."""
    return _POINTS[engine, "worker" if role == "manager" else role]


def engine_of(url: str) -> str:
    """The name of the engine that a URL is for."""
    scheme = url.partition(":")[0].partition("+")[0]
    return {"postgresql": "postgres", "rediss": "redis"}.get(scheme, scheme)


def set_going() -> None:
    """From now on passages count; for those who armed a point that waits."""
    global _waiting  # noqa: PLW0603 - a fault belongs to the process
    _waiting = False


def arm(url: str, setting: str | None, *, waiting: bool = False) -> None:
    """Make this process die at the point that the setting names; nothing without a setting."""
    global _waiting  # noqa: PLW0603 - a fault belongs to the process
    _waiting = waiting
    if not setting:
        return
    point, _, passages = setting.partition(":")
    engine = engine_of(url)
    if not any(point in known for (name, _), known in _POINTS.items() if name == engine):
        raise SystemExit(f"{VARIABLE}: no point {point!r} for engine {engine!r}")
    _ENGINES[engine](point, int(passages), url)


def die() -> None:
    """SIGKILL, as if from outside: nothing is cleaned up."""
    if on_death is not None:
        on_death()
    os.kill(os.getpid(), signal.SIGKILL)


class _Point:
    """Counts the passages of one point."""

    def __init__(self, point: str, passages: int) -> None:
        self.name = point
        self._left = passages

    def is_passed(self, name: str) -> None:
        """Die when the point of this name is the one, and its time has come."""
        if name == self.name:
            self._left -= not _waiting
            if self._left <= 0:
                die()


class _StatementPoint(_Point):
    """Knows the statements of the SQLite engine."""

    def __init__(self, point: str, passages: int) -> None:
        super().__init__(point, passages)
        operation = point.removeprefix("mid-") if point.startswith("mid-") else ""
        self._texts = frozenset(statements(operation).values()) if operation else frozenset()

    def around(self, sql: str, run: Callable[[], Answer]) -> Answer:
        """Run a statement, and die before or after it when its time has come."""
        is_commit = sql.strip().upper().startswith(("COMMIT", "END"))
        if is_commit:
            self.is_passed("before-commit")
        if sql in self._texts:
            self.is_passed(self.name)
        answer = run()
        if is_commit:
            self.is_passed("after-commit")
        return answer


def _arm_sqlite(point: str, passages: int, url: str) -> None:
    watch = _StatementPoint(point, passages)

    class WatchedCursor(sqlite3.Cursor):
        def execute(self, sql: str, parameters: Any = ()) -> Any:
            return watch.around(sql, lambda: super(WatchedCursor, self).execute(sql, parameters))

        def executemany(self, sql: str, parameters: Iterable[Any]) -> Any:
            return watch.around(sql, lambda: super(WatchedCursor, self).executemany(sql, parameters))

    class WatchedConnection(sqlite3.Connection):
        def cursor(self, factory: Any = WatchedCursor) -> Any:
            return super().cursor(factory)

        def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
            cursor: sqlite3.Cursor = self.cursor()
            return cursor.execute(sql, parameters)

        def executemany(self, sql: str, parameters: Iterable[Any]) -> sqlite3.Cursor:
            cursor: sqlite3.Cursor = self.cursor()
            return cursor.executemany(sql, parameters)

        def commit(self) -> None:
            watch.around("COMMIT", super().commit)

    module: Any = sqlite3
    module.connect = partial(sqlite3.connect, factory=WatchedConnection)


def _arm_postgres(point: str, passages: int, url: str) -> None:
    """Watch what asyncpg sends. Failures are read, decided and written by two statements: between them is `mid`."""
    from everwork.engines.postgres.statements import statements  # noqa: PLC0415 - needed here only

    watch = _Point(point, passages)
    schema = dict(parse_qsl(urlsplit(url).query))["schema"]
    looks = {
        statements("settle", schema)["read_leased"]: "mid-settle",
        statements("sweep", schema)["lapsed"]: "mid-sweep",
    }

    async def around(sql: str, sent: Awaitable[Answer]) -> Answer:
        watch.is_passed("before-commit")
        answer = await sent
        watch.is_passed(looks.get(sql, "after-commit"))
        return answer

    class WatchedProtocol(asyncpg.protocol.Protocol):  # type: ignore[misc]
        async def query(self, query: str, timeout: Any) -> Any:
            return await around(query, super().query(query, timeout))

        async def bind_execute(self, state: Any, *rest: Any, **named: Any) -> Any:
            return await around(state.query, super().bind_execute(state, *rest, **named))

    asyncpg.protocol.Protocol = WatchedProtocol


def _arm_redis(point: str, passages: int, url: str) -> None:
    """Watch the calls of scripts: each is one step, so that `mid` is only between a look and what follows from it."""
    from everwork.engines.redis.connection import Connection  # noqa: PLC0415 - needed here only

    watch = _Point(point, passages)
    looks = {"decide": "mid-settle", "sweep": "mid-sweep"}
    run, answered = Connection.run, Connection._answered

    async def watched_run(self: Connection, name: str, args: Any, *, replicas: int | None = None) -> Any:
        answer = await run(self, name, args, replicas=replicas)
        watch.is_passed(looks.get(name, ""))
        return answer

    async def watched_answered(self: Connection, packed: bytes, replicas: int) -> Any:
        watch.is_passed("before-commit")
        answer = await answered(self, packed, replicas)
        watch.is_passed("after-commit")
        return answer

    Connection.run, Connection._answered = watched_run, watched_answered  # type: ignore[method-assign]


_ENGINES: Final[dict[str, Callable[[str, int, str], None]]] = {
    "sqlite": _arm_sqlite,
    "postgres": _arm_postgres,
    "redis": _arm_redis,
}
