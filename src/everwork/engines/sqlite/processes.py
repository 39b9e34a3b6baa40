"""Other processes on the same file: the lock that writers share, wake-ups, forks."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import secrets
import socket
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from everwork.exceptions import EngineUnavailable
from everwork.logs import get_logger

if TYPE_CHECKING:
    from everwork.engines.sqlite.connections import Pause
    from everwork.engines.sqlite.opened import OpenStore


class FileLock:
    """A blocking flock. It belongs to the open file, so one thread at a time uses it."""

    def __init__(self, path: str | None) -> None:
        """The lock of a database file; None: a store in memory needs none."""
        self._descriptor: int | None = None
        if path is not None:
            try:
                self._descriptor = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except OSError as error:
                raise EngineUnavailable(f"cannot use {path}: no lock beside it ({error.strerror})") from None
            _held.add(self)

    def acquire(self) -> None:
        """Wait in the queue for the lock."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def acquire_now(self) -> bool:
        """Take the lock if it is free."""
        try:
            if self._descriptor is not None:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Let the next one in."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_held: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    # A forked child shares the open file: if its parent died inside a transaction, the child would keep the lock.
    for lock in list(_held):
        lock.close()


os.register_at_fork(after_in_child=_forget_in_child)


log = get_logger("everwork.sqlite")

WORK, DONE = "work", "done"


class Wakeup:
    """One kind of wake-up. Those who wait are let go by a ring, from here or from another process."""

    def __init__(self, kind: str, folder: Path | None) -> None:
        self.kind = kind
        self.rings = 0
        self._folder = folder
        self._waiting: set[asyncio.Future[bool]] = set()
        self._socket: socket.socket | None = None
        self.name = ""

    def ring(self) -> None:
        """Let everybody go who waits."""
        self.rings += 1
        for future in self._waiting:
            if not future.done():
                future.set_result(True)
        self._waiting.clear()

    async def wait(self, timeout_ms: int, since: int | None) -> bool:
        """Wait for a ring; one that came after `since` counts."""
        loop = asyncio.get_running_loop()
        if since is not None and since != self.rings:
            return True
        if self._socket is None and self._folder is not None:
            self._listen(loop, self._folder)
        future: asyncio.Future[bool] = loop.create_future()
        self._waiting.add(future)
        timer = loop.call_later(timeout_ms / 1000, _give_up, future)
        try:
            return await future
        finally:
            timer.cancel()
            self._waiting.discard(future)

    @property
    def is_awaited(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting)

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the socket away."""
        self.ring()
        if self._socket is not None and self._folder is not None:
            loop.remove_reader(self._socket)
            self._socket.close()
            with suppress(OSError):
                (self._folder / self.name).unlink(missing_ok=True)
            self._socket = None

    def _listen(self, loop: asyncio.AbstractEventLoop, folder: Path) -> None:
        """Bind a socket that other processes find by listing the folder; without one, polling remains."""
        self.name = f"{os.getpid()}-{secrets.token_hex(4)}.{self.kind}"
        heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            folder.mkdir(exist_ok=True)
            with _Folder(folder) as address:
                heard.bind(f"{address}/{self.name}")
        except OSError as error:
            heard.close()
            self._folder = None
            log.warning("no wake-up socket, polling instead", folder=str(folder), error=str(error))
            return
        self._socket = heard
        loop.add_reader(heard, self._hear)

    def _hear(self) -> None:
        heard = self._socket
        try:
            while heard is not None and heard.recv(16):
                pass
        except BlockingIOError:
            pass
        self.ring()


class Poker:
    """Pokes the sockets of other processes after a commit. Used by the writer's thread only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: list[str] = []
        self._listed_at_ns = -1
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)

    def poke(self, kind: str, own: str) -> None:
        """Wake every process that waits for this kind; the folder is listed again only when it has changed."""
        try:
            changed_at_ns = self._folder.stat().st_mtime_ns
            if changed_at_ns != self._listed_at_ns:
                self._names = [entry.name for entry in self._folder.iterdir()]
                self._listed_at_ns = changed_at_ns
        except (FileNotFoundError, NotADirectoryError):
            return
        names = [name for name in self._names if name != own and name.endswith(kind)]
        if names:
            with _Folder(self._folder) as address:
                for name in names:
                    self._send(f"{address}/{name}", name)

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()

    def _send(self, address: str, name: str) -> None:
        try:
            self._socket.sendto(b"w", address)
        except OSError as error:
            # A full buffer belongs to somebody who will wake anyway; a dead socket is taken away.
            if error.errno in (errno.ECONNREFUSED, errno.ENOENT):
                with suppress(OSError):
                    (self._folder / name).unlink(missing_ok=True)


class _Folder:
    """A short way to a folder: socket addresses hold 107 bytes only, paths may be longer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None

    def __enter__(self) -> str:
        if len(os.fsencode(self._folder)) <= 60:
            return str(self._folder)
        self._descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._descriptor}"

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


def _give_up(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)


_opened: weakref.WeakSet[OpenStore] = weakref.WeakSet()
_paused: list[tuple[OpenStore, list[Pause]]] = []
_one_at_a_time = threading.Lock()


def watch(opened: OpenStore) -> None:
    """Take an open engine into account."""
    _opened.add(opened)


def forget(opened: OpenStore) -> None:
    """An engine is being closed."""
    with _one_at_a_time:
        _opened.discard(opened)


def _before() -> None:
    _one_at_a_time.acquire()
    _paused.extend((opened, opened.pause()) for opened in list(_opened) if opened.pid == os.getpid())
    for _, pauses in _paused:
        for pause in pauses:
            pause.is_closed.wait()


def _in_parent() -> None:
    for opened, pauses in _paused:
        opened.go_on()
        for pause in pauses:
            pause.goes_on.set()
    _paused.clear()
    _one_at_a_time.release()


def _in_child() -> None:
    _opened.clear()
    _paused.clear()
    _one_at_a_time.release()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
