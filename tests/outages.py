"""Stores that go away and come back: a server is killed and started again, a file is moved away and back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from everwork.engines.contract import Engine
from everwork.engines.open import open_engine
from everwork.exceptions import EngineUnavailable
from tests.servers import Server, postgres_server, redis_server

WAIT_S = 60.0
"""For how long a call waits for an answer; reached only by a defect."""
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


class Outage:
    """Takes single calls of an open engine away: they fail, or get no answer."""

    def __init__(self, engine: Engine, patch: pytest.MonkeyPatch) -> None:
        self._engine = engine
        self._patch = patch
        self.failed: list[str] = []
        self.silent: list[str] = []
        self._may_answer = threading.Event()
        self._away: set[str] = set()

    def fail(self, *names: str) -> None:
        """Let calls fail, until `end`."""
        for name in names:
            self._away.add(name)
            self._replace(name, self._failing)

    def silence(self, *names: str) -> None:
        """Let calls wait, until `end`."""
        for name in names:
            self._replace(name, self._waiting)

    def end(self) -> None:
        """Let the engine answer."""
        self._away.clear()
        self._may_answer.set()

    def _replace(self, name: str, how: Any) -> None:
        call = getattr(self._engine, name)
        self._patch.setattr(self._engine, name, lambda *given: how(name, call, *given))

    async def _failing(self, name: str, call: Any, *given: Any) -> Any:
        if name in self._away:
            self.failed.append(name)
            raise EngineUnavailable("the connection was lost")
        return await call(*given)

    async def _waiting(self, name: str, call: Any, *given: Any) -> Any:
        self.silent.append(name)
        await asyncio.to_thread(self._may_answer.wait, WAIT_S)
        return await call(*given)


@asynccontextmanager
async def a_later_engine(url: str) -> AsyncIterator[Engine]:
    """Another engine on a store, for whom 31 seconds more have passed: its sweep ends leases of 30 seconds."""
    engine = open_engine(url, clock=lambda: time.time_ns() // 1_000_000 + 31_000)
    await engine.open()
    yield engine
    await engine.close()
