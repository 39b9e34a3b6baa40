"""Coordination with other processes on the same file: wake-ups and forks."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import socket
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from everwork.aio.wakeup import Wake, Watch, Watches
from everwork.engines.sqlite.file_lock import create_folder_beside
from everwork.logs import get_logger

if TYPE_CHECKING:
    from everwork.engines.sqlite.store.connections import Pause
    from everwork.engines.sqlite.store.opened import OpenStore


log = get_logger("everwork.sqlite")

WORK, DONE = "work", "done"
WAKE: Final = b"w"
MESSAGE_BYTES_MAX: Final = 16_384
"""The largest message that a socket receives."""


class Wakeup:
    """One kind of wake-up. Waiting callers are notified from this process or from another one."""

    def __init__(self, kind: str, folder: Path | None) -> None:
        self.kind = kind
        self.sequence = 0
        """How many notifications there have been."""
        self._folder = folder
        self._watches = Watches()
        self._socket: socket.socket | None = None
        self.name = ""
        self.on_message: Callable[[bytes], object] = lambda _: None
        """Called with every message that is not a wake-up."""

    def notify(self) -> None:
        """Wake all waiting callers."""
        self.sequence += 1
        self._watches.wake()

    async def wait(self, timeout_ms: int, since: int | None) -> bool:
        """Wait for a notification; one that came after `since` counts."""
        if since is not None and since != self.sequence:
            return True
        self.listen()
        return await self._watches.wait(timeout_ms)

    def watch(self, timeout_ms: int, since: int, wake: Wake) -> Watch:
        """Call `wake` on the next notification, soon if one came after `since`, or after the timeout."""
        if since != self.sequence:
            return asyncio.get_running_loop().call_soon(wake, True)
        self.listen()
        return self._watches.add(wake, timeout_ms)

    @property
    def is_awaited(self) -> bool:
        """Whether a caller is waiting."""
        return bool(self._watches)

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake all waiting callers and remove the socket."""
        self.notify()
        if self._socket is not None and self._folder is not None:
            loop.remove_reader(self._socket)
            self._socket.close()
            with suppress(OSError):
                (self._folder / self.name).unlink(missing_ok=True)
            self._socket = None

    def drop_in_child(self) -> None:
        """Close a forked child's copy of the socket, which would stay open after the parent has ended."""
        if self._socket is not None:
            self._socket.close()

    def listen(self) -> bool:
        """Bind a socket that other processes find by listing the folder; without a socket, only polling remains."""
        folder = self._folder
        if self._socket is not None or folder is None:
            return self._socket is not None
        self.name = f"{os.getpid()}-{secrets.token_hex(4)}.{self.kind}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            create_folder_beside(str(folder).removesuffix(".wake"), folder)
            with short_path(folder) as address:
                listener.bind(f"{address}/{self.name}")
        except OSError as error:
            listener.close()
            self._folder = None
            log.warning("no wake-up socket, polling instead", folder=str(folder), error=str(error))
            return False
        self._socket = listener
        asyncio.get_running_loop().add_reader(listener, self.receive)
        return True

    def receive(self) -> None:
        """Read all messages; runs in the event loop."""
        is_woken = False
        while (message := self._next_message()) is not None:
            if message == WAKE:
                is_woken = True
            else:
                self.on_message(message)
        if is_woken:
            self.notify()

    def _next_message(self) -> bytes | None:
        with suppress(BlockingIOError):
            return None if self._socket is None else self._socket.recv(MESSAGE_BYTES_MAX)
        return None


class ProcessNotifier:
    """Sends to the sockets of other processes after a commit. Used by the writer's thread only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: list[str] = []
        self._listed_at_ns = -1
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)

    def notify(self, kind: str, own: str) -> None:
        """Wake every process that waits for this kind; the folder is listed again only after it has changed."""
        try:
            changed_at_ns = self._folder.stat().st_mtime_ns
            if changed_at_ns != self._listed_at_ns:
                self._names = [entry.name for entry in self._folder.iterdir()]
                self._listed_at_ns = changed_at_ns
        except (FileNotFoundError, NotADirectoryError):
            return
        names = [name for name in self._names if name != own and name.endswith(kind)]
        if names:
            with short_path(self._folder) as address:
                for name in names:
                    self._send(f"{address}/{name}", name)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _send(self, address: str, name: str) -> None:
        try:
            self._socket.sendto(WAKE, address)
        except OSError as error:
            # A full buffer belongs to a process that will wake up anyway; a dead socket is removed.
            if error.errno in (errno.ECONNREFUSED, errno.ENOENT):
                with suppress(OSError):
                    (self._folder / name).unlink(missing_ok=True)


class short_path:  # noqa: N801 - used like a function
    """A short path to a folder: socket addresses are limited to 107 bytes, but paths can be longer."""

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


_open_stores: weakref.WeakSet[OpenStore] = weakref.WeakSet()
_paused: list[tuple[OpenStore, list[Pause]]] = []
_fork_lock = threading.Lock()


def watch(store: OpenStore) -> None:
    """Close the connections of a store around forks."""
    _open_stores.add(store)


def forget(store: OpenStore) -> None:
    """Stop watching a store that is being closed."""
    with _fork_lock:
        _open_stores.discard(store)


def _before_fork() -> None:
    _fork_lock.acquire()
    _paused.extend((store, store.pause()) for store in list(_open_stores) if store.pid == os.getpid())
    for store, pauses in _paused:
        store.wait_until_paused(pauses)


def _after_fork_in_parent() -> None:
    for store, pauses in _paused:
        store.resume()
        for pause in pauses:
            pause.is_over.set()
    _paused.clear()
    _fork_lock.release()


def _after_fork_in_child() -> None:
    for store in list(_open_stores):
        store.drop_in_child()
    _open_stores.clear()
    _paused.clear()
    _fork_lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
