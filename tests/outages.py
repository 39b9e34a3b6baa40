"""Stores that go away and come back: a server is killed and started again, a file is moved away and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tests.servers import Server, postgres_server, redis_server

SYNCED = ("--appendonly", "yes", "--appendfsync", "always")


class Store(Protocol):
    """A store that a test takes away."""

    url: str

    def leave(self) -> None:
        """Be away: every call fails."""
        ...

    def come_back(self) -> None:
        """Be there again, with all that was accepted."""
        ...


class FileStore:
    """A SQLite file, which is away while it has another name."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "jobs.db"
        self.url = f"sqlite:///{self._file}"

    def leave(self) -> None:
        """Be away. The empty file in its place keeps its name, so that no other store is created there."""
        self._file.rename(self._file.with_suffix(".away"))
        self._file.mkdir()

    def come_back(self) -> None:
        """Be there again."""
        self._file.rmdir()
        self._file.with_suffix(".away").rename(self._file)


class ServedStore:
    """A schema or namespace of its own on a server of its own."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._server = server
        name = "".join(letter for letter in folder.name.lower() if letter.isalnum())[-30:]
        kind = "schema=ew_" if server.url.startswith("postgres") else "namespace=n"
        self.url = f"{server.url}?{kind}{name}"

    def leave(self) -> None:
        """Be killed."""
        self._server.kill()

    def come_back(self) -> None:
        """Be started again."""
        self._server.start()


@contextmanager
def own_server(engine: str) -> Iterator[Server | None]:
    """A server that keeps what it has accepted when it is killed; None for SQLite."""
    if engine == "sqlite":
        yield None
        return
    with redis_server(*SYNCED) if engine == "redis" else postgres_server() as server:
        yield server


def store_on(server: Server | None, folder: Path) -> Store:
    """A store of a test's own, which is there."""
    if server is None:
        return FileStore(folder)
    server.restart()  # It ends with the thread of the test that let it come back.
    return ServedStore(server, folder)
