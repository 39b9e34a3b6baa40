"""Hosts the stores of a measured engine: in a folder, or on a server that is started and deleted afterwards.

PostgreSQL and Redis come from the wheels that the tests use, with production durability settings.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import psycopg

from tests.servers import PostgresServer, RedisServer, Server, wait_until

AOF = "appendonly.aof"
REWRITTEN = "aof_rewrite_in_progress:0"

S = TypeVar("S", bound=Server)


class Host(ABC):
    """The host of one engine. `store()` returns a new, empty store each time."""

    name: str
    what_bare_is: str
    settings: str
    """The settings that differ from the defaults of the engine and the server."""

    @abstractmethod
    @contextmanager
    def store(self) -> Iterator[str]:
        """The URL of a new store, deleted afterwards."""

    @abstractmethod
    def keep(self, url: str, folder: Path) -> None:
        """Copy an unused store to a new folder."""

    @abstractmethod
    @contextmanager
    def kept(self, folder: Path) -> Iterator[str]:
        """The URL of a copy of a kept store, deleted afterwards."""

    def loaded(self, url: str) -> None:  # noqa: B027 - most have nothing to do
        """Let a server settle after loading, so that its maintenance work is not measured."""

    def cpu_seconds(self) -> float:
        """CPU time of the server so far; 0 if there is no server process."""
        return 0.0

    def counters(self, url: str) -> dict[str, int]:  # noqa: ARG002
        """What the server has counted so far, by name; empty if there is no server process."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Stop the server."""


class SqliteHost(Host):
    """A new file each time."""

    name = "sqlite"
    what_bare_is = "SQLite alone, from one thread"
    settings = ""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def store(self) -> Iterator[str]:
        """A database file that does not exist yet."""
        with TemporaryDirectory(dir=self._folder, prefix="everwork-bench-") as folder:
            yield f"sqlite:///{folder}/jobs.db"

    def keep(self, url: str, folder: Path) -> None:
        """Copy the file and its companion files."""
        _copy(Path(url.removeprefix("sqlite:///")).parent, folder)

    @contextmanager
    def kept(self, folder: Path) -> Iterator[str]:
        """A copy of the file."""
        with TemporaryDirectory(dir=self._folder, prefix="everwork-bench-") as copied:
            _copy(folder, Path(copied) / "store")
            yield f"sqlite:///{copied}/store/jobs.db"


class PostgresHost(Host):
    """A new database each time, on one server."""

    name = "postgres"
    what_bare_is = "one asyncpg connection"
    settings = "fsync, synchronous_commit and full_page_writes on, shared_buffers 256MB, max_wal_size 4GB"

    def __init__(self, folder: Path) -> None:
        self._server = _in_folder(folder, MeasuredPostgres).start()
        self._numbers = itertools.count(1)

    @contextmanager
    def store(self) -> Iterator[str]:
        """A new database."""
        name = f"bench_{next(self._numbers)}"
        self._execute(self._server.url, f"CREATE DATABASE {name}")
        yield self._server.url.rpartition("/")[0] + f"/{name}"
        self._execute(self._server.url, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def keep(self, url: str, folder: Path) -> None:
        """Copy the server's whole folder, with the database renamed to `kept`."""
        self._execute(self._server.url, f"ALTER DATABASE {url.rpartition('/')[2]} RENAME TO kept")
        self._server.stop()
        _copy(self._server.folder / "cluster", folder)
        self._server.start()
        self._execute(self._server.url, "DROP DATABASE kept WITH (FORCE)")

    @contextmanager
    def kept(self, folder: Path) -> Iterator[str]:
        """Run the server on a copy of that folder."""
        self._server.stop()
        shutil.rmtree(self._server.folder / "cluster")
        _copy(folder, self._server.folder / "cluster")
        self._server.start()
        yield self._server.url.rpartition("/")[0] + "/kept"
        self._execute(self._server.url, "DROP DATABASE kept WITH (FORCE)")

    def loaded(self, url: str) -> None:
        """Update the statistics, and leave no checkpoint pending."""
        self._execute(url, "ANALYZE")
        self._execute(url, "CHECKPOINT")

    def cpu_seconds(self) -> float:
        """All processes of the server."""
        return _cpu_seconds(self._server.pid)

    def counters(self, url: str) -> dict[str, int]:
        """Transactions and syncs of the write-ahead log; its processes report them after a second of idleness."""
        with psycopg.connect(url, autocommit=True) as connection:
            rows = connection.execute(
                "SELECT (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()), "
                "(SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal')"
            ).fetchall()
        return {"transactions": int(rows[0][0]), "syncs": int(rows[0][1])}

    def close(self) -> None:
        """Stop the server and delete it."""
        self._server.remove()

    def _execute(self, url: str, statement: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement.encode())


class RedisHost(Host):
    """A new namespace each time, on one server, which is emptied when unused."""

    name = "redis"
    what_bare_is = "one redis-py connection; a sorted set of ready jobs, one of leases, a hash; scripts"
    settings = "appendonly yes, appendfsync everysec"

    def __init__(self, folder: Path) -> None:
        self._server = _in_folder(folder, RedisServer).start()
        self._numbers = itertools.count(1)
        self._stores = 0

    @contextmanager
    def store(self) -> Iterator[str]:
        """A new namespace."""
        self._stores += 1
        yield f"{self._server.url}?namespace=bench-{next(self._numbers)}"
        self._stores -= 1
        if not self._stores:
            self._server.ask("FLUSHALL", "SYNC")

    def keep(self, url: str, folder: Path) -> None:
        """Copy the rewritten append-only file to a folder named after the namespace."""
        self._server.ask("BGREWRITEAOF")
        wait_until(
            lambda: "aof_rewrite_in_progress:0" in self._server.ask("INFO", "persistence"),
            "the append-only file was not rewritten in time",
        )
        self._server.stop()
        folder.mkdir()
        _copy(self._server.folder / AOF, folder / url.rpartition("=")[2])
        self._server.start()

    @contextmanager
    def kept(self, folder: Path) -> Iterator[str]:
        """Run the server on a copy of that file."""
        file = next(folder.iterdir())
        self._server.stop()
        (self._server.folder / AOF).unlink()
        _copy(file, self._server.folder / AOF)
        self._server.start()
        yield f"{self._server.url}?namespace={file.name}"
        self._server.ask("FLUSHALL", "SYNC")

    def cpu_seconds(self) -> float:
        """All threads of the server, and a child that rewrites its file."""
        return _cpu_seconds(self._server.pid)

    def counters(self, url: str) -> dict[str, int]:  # noqa: ARG002
        """Scripts."""
        lines = self._server.ask("INFO", "commandstats").splitlines()
        calls = {line.split(":")[0]: int(line.split("calls=")[1].split(",")[0]) for line in lines if "calls=" in line}
        return {"scripts": calls.get("cmdstat_evalsha", 0) + calls.get("cmdstat_eval", 0)}

    def close(self) -> None:
        """Stop the server and delete it."""
        self._server.remove()


class MeasuredPostgres(PostgresServer):
    """With production settings; the tests' own server is tuned to start quickly."""

    def __init__(self) -> None:
        super().__init__(fsync=True)

    def _command(self) -> list[str | Path]:
        return [*super()._command(), "-c", "shared_buffers=256MB"]


HOSTS: dict[str, type[SqliteHost | PostgresHost | RedisHost]] = {
    host.name: host for host in (SqliteHost, PostgresHost, RedisHost)
}


@contextmanager
def host_of(name: str, folder: Path) -> Iterator[Host]:
    """A host inside this context."""
    host = HOSTS[name](folder)
    try:
        yield host
    finally:
        host.close()


def _copy(what: Path, target: Path) -> None:
    """Copy a folder with its owner, because servers do not run as root."""
    subprocess.run(["cp", "--archive", "--reflink=auto", what, target], check=True)


def _in_folder(folder: Path, kind: Callable[[], S]) -> S:
    """A server, not yet started, with its files in the chosen folder instead of the temporary one."""
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        return kind()
    finally:
        tempfile.tempdir = before


def _cpu_seconds(pid: int) -> float:
    """CPU time of a process and its children: exact for running ones, in clock ticks for those that have exited."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split()
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    ended = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
    return ended + sum(alive_seconds(one) for one in (str(pid), *children))


def alive_seconds(pid: str) -> float:
    """CPU time of all threads of a process, to the nanosecond."""
    try:
        return sum(int(t.read_text("utf-8").split()[0]) for t in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # It ended in the meantime.
