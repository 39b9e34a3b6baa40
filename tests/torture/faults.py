"""Named fault points: the process kills itself with SIGKILL inside the engine's own transactions.

`EVERWORK_FAULT=<point>:<n>` kills at the n-th passage of the point. Points: `before-commit`, `after-commit` (before
the caller has its answer), `mid-create`, `mid-activate`, `mid-settle`, `mid-sweep` (between the statements of that
operation). Understood by the torture's processes only.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, TypeVar

from everwork.engines.sqlite.statements import statements

VARIABLE: Final = "EVERWORK_FAULT"
WORKER_POINTS: Final = ("before-commit", "after-commit", "mid-activate", "mid-settle", "mid-sweep")
PRODUCER_POINTS: Final = ("before-commit", "after-commit", "mid-create")

Answer = TypeVar("Answer")


_waiting = False


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
    engine = url.partition(":")[0]
    if point not in (*WORKER_POINTS, *PRODUCER_POINTS) or engine not in _ENGINES:
        raise SystemExit(f"{VARIABLE}: no point {point!r} for engine {engine!r}")
    _ENGINES[engine](point, int(passages))


def die() -> None:
    """SIGKILL, as if from outside: nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


class _Point:
    """Counts the passages of one point of the SQLite engine, statement by statement."""

    def __init__(self, point: str, passages: int) -> None:
        self._point = point
        self._left = passages
        operation = point.removeprefix("mid-") if point.startswith("mid-") else ""
        self._texts = frozenset(statements(operation).values()) if operation else frozenset()

    def around(self, sql: str, run: Callable[[], Answer]) -> Answer:
        """Run a statement, and die before or after it when its time has come."""
        is_commit = sql.strip().upper().startswith(("COMMIT", "END"))
        if (is_commit and self._point == "before-commit") or sql in self._texts:
            self._pass()
        answer = run()
        if is_commit and self._point == "after-commit":
            self._pass()
        return answer

    def _pass(self) -> None:
        self._left -= not _waiting
        if self._left <= 0:
            die()


def _arm_sqlite(point: str, passages: int) -> None:
    watch = _Point(point, passages)

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


_ENGINES: dict[str, Callable[[str, int], None]] = {"sqlite": _arm_sqlite}
