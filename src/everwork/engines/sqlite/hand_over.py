"""Hand-over: waiting workers park their demands, and a create leases its job to one of them and sends it there.

A parked demand is a row. It is written by a step that writes anyway, or if the worker has none yet. While the row
exists, an idle worker only checks it: with or without hand-over, its polls write once in `ASKED_EVERY_MS` for each
type. The worker's socket beside the file shows that it is alive: a create connects to the socket before it leases the
job, and each poll sets the time of the socket's file to the engine's clock (`PARK_MS`).

The lease is committed before the job is sent. If the job does not arrive, because the process that created it was
killed in between, the worker's next poll finds that its row no longer exists, and calls `Receiver.lost`.

Differs from postgres and redis: they renew parked demands in the store; here, that would cost one sync per second.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import secrets
import socket
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

import orjson

from everwork.core.job import LeasedJob
from everwork.core.leasing import Demand, Receiver
from everwork.core.limits import HANDED_BYTES_MAX, PARK_MS
from everwork.engines.sqlite.processes import MESSAGE_BYTES_MAX, Wakeup, short_path
from everwork.engines.sqlite.statements import statements
from everwork.engines.sqlite.transaction import Handed, Transaction

SQL = statements("unpark")
RENEW_MS: Final = 100
"""The shortest time between two renewals of the parked demands of a process."""
ARRIVAL_SECONDS: Final = 0.2
"""How long the worker waits for a job once its row no longer exists: a job is sent after that commit."""
SOCKETS_MAX: Final = 64


class Parked(NamedTuple):
    """A parked demand, as stored."""

    worker: str
    lease_ms: int
    socket: str
    token: str


class LocalDemand:
    """A demand that a worker of this engine has parked, until a job arrives or it is withdrawn."""

    __slots__ = ("is_doubted", "lease_ms", "name", "receiver", "token")

    def __init__(self, name: str, number: int, receiver: Receiver, lease_ms: int) -> None:
        self.name = name
        self.token = f"{name}.{number}"
        self.receiver = ref(receiver)
        self.lease_ms = lease_ms
        self.is_doubted = False
        """Whether the row no longer exists, so that a job may be lost."""


class SqliteHandOver:
    """The parked demands of one engine's workers, and the jobs that its creates send to waiting workers.

    Used in the thread of the transactions, except for the methods that are documented to run in the event loop.
    """

    def __init__(self, work: Wakeup, folder: Path | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._work = work
        self._folder = folder
        self._names: WeakKeyDictionary[Receiver, str] = WeakKeyDictionary()
        self._receivers: WeakValueDictionary[str, Receiver] = WeakValueDictionary()
        self._numbers = itertools.count(1)
        self._demands: dict[tuple[str, str], LocalDemand] = {}
        """By worker and type."""
        self._awaited: dict[str, LocalDemand] = {}
        """By token: the demands whose jobs have not arrived."""
        self._have_parked: dict[tuple[str, str], ref[Receiver]] = {}
        """By worker and type: what has been parked here, as long as its receiver exists. Not forgotten by `forget`: a
        worker that was replaced unparks, too, and would then replace the other worker."""
        self._renewed_at_ms: int | None = None
        self._sockets: dict[str, socket.socket] = {}
        self._is_closed = False
        self.take_back: Callable[[Sequence[LeasedJob]], object] = lambda _: None
        """Releases jobs that could not be sent; called in the event loop."""
        work.on_message = self._on_message

    # The worker's side ----------------------------------------------------------------------------

    def may_park(self, demands: Sequence[Demand]) -> bool:
        """Whether one of these demands can be parked, or withdraws what its worker has parked.

        Runs in the event loop, where the receiver is called.
        """
        parks = False
        for demand in demands:
            receiver = demand.receiver
            if receiver is not None and demand.parks:
                parks = True
                if receiver not in self._names:
                    self._names[receiver] = name = secrets.token_hex(8)
                    self._receivers[name] = receiver
        if parks:
            return self._folder is None or self._work.listen()
        return any(demand.withdraws and (demand.worker, demand.type) in self._demands for demand in demands)

    def has_row(self, cursor: sqlite3.Cursor, demand: Demand) -> bool:
        """Whether what this worker has parked is still there."""
        local = self._demands.get((demand.worker, demand.type))
        if local is None:
            return False
        (is_there,) = cursor.execute(SQL["is_parked"], (demand.worker, json.dumps([demand.type]))).fetchone()
        if not is_there:
            self._doubt(local)
        return bool(is_there)

    def needs_no_write(self, cursor: sqlite3.Cursor, queue: int, demand: Demand, now_ms: int) -> bool:
        """Whether this demand needs no write, because it is parked or must not be parked again yet.

        A demand that was replaced by another waiting worker's is parked again only when its worker writes anyway:
        idle workers must not keep replacing each other.
        """
        row = cursor.execute(SQL["parked"], (queue,)).fetchone()
        local = self._demands.get((demand.worker, demand.type))
        if local is not None and _is_row_of(local, row):
            self._renew(now_ms)
            return _meets(local, demand)
        if local is not None:
            self._doubt(local)
        is_back = (demand.worker, demand.type) in self._have_parked
        return is_back and row is not None and self._reach(Parked(*row), now_ms) is not None

    def park(self, tx: Transaction, queue: int, demand: Demand) -> None:
        """Park a demand, in place of any other."""
        key, receiver = (demand.worker, demand.type), demand.receiver
        name = None if receiver is None else self._names.get(receiver)
        if receiver is None or name is None or self._is_closed:
            return
        self._renew(tx.now_ms)
        local = self._demands.get(key)
        if local is not None:
            row = tx.cursor.execute(SQL["parked"], (queue,)).fetchone()
            if not _is_row_of(local, row):
                self._doubt(local)
            elif _meets(local, demand):
                return
            else:
                self._awaited.pop(local.token, None)  # Replaced: no job can arrive for it.
        local = LocalDemand(name, next(self._numbers), receiver, demand.lease_ms)
        self._demands[key] = self._awaited[local.token] = local
        self._have_parked[key] = ref(receiver, lambda _: self._have_parked.pop(key, None))
        tx.cursor.execute(SQL["park"], (queue, demand.worker, demand.lease_ms, self._work.name, local.token))

    def withdraw(self, tx: Transaction, queue: int, demand: Demand) -> None:
        """Withdraw the demand that this worker has parked, if it has."""
        local = self._demands.pop((demand.worker, demand.type), None)
        if local is None:
            return
        if tx.cursor.execute(SQL["withdraw"], (queue, demand.worker)).rowcount:
            self._awaited.pop(local.token, None)
        else:
            self._doubt(local)

    def forget(self, worker: str, types: Sequence[str]) -> None:
        """Forget the demands that this worker withdraws: it looks up their jobs itself."""
        for type in types:
            local = self._demands.pop((worker, type), None)
            if local is not None:
                self._awaited.pop(local.token, None)

    def _renew(self, now_ms: int) -> None:
        """Let creates know that the workers of this process are waiting now."""
        renewed_at_ms = self._renewed_at_ms
        if renewed_at_ms is not None and 0 <= now_ms - renewed_at_ms < RENEW_MS:
            return
        self._renewed_at_ms = now_ms
        if self._folder is not None:
            with suppress(OSError):  # Without its socket, nothing is handed over.
                os.utime(self._folder / self._work.name, ns=(now_ms * 1_000_000, now_ms * 1_000_000))

    def _doubt(self, local: LocalDemand) -> None:
        """The row no longer exists: a job is in transit, another worker has parked its demand, or a job is lost."""
        if not local.is_doubted and local.token in self._awaited:
            local.is_doubted = True
            with suppress(RuntimeError):  # The loop is closed, and so is the worker.
                self._loop.call_soon_threadsafe(self._loop.call_later, ARRIVAL_SECONDS, self._check_arrival, local)

    def _check_arrival(self, local: LocalDemand) -> None:
        """Notify the worker if the job has not arrived; runs in the event loop."""
        if self._is_closed:
            return
        self._work.receive()
        receiver = local.receiver()
        if self._awaited.pop(local.token, None) is not None and receiver is not None:
            receiver.lost()

    def _on_message(self, message: bytes) -> None:
        token, *fields = orjson.loads(message)
        self._arrived(token, LeasedJob(*fields))

    def _arrived(self, token: str, job: LeasedJob) -> None:
        """Give a job to its worker; runs in the event loop."""
        self._awaited.pop(token, None)
        receiver = None if self._is_closed else self._receivers.get(token.partition(".")[0])
        if receiver is None:
            self.take_back([job])
        else:
            receiver.handed(job)

    # The creator's side -----------------------------------------------------------------------------

    def send_after_commit(self, tx: Transaction, parked: Parked, job: LeasedJob) -> bool:
        """Have a job sent to a waiting worker after the commit; False if the worker cannot be reached."""
        if not _is_short(job):
            return False
        message = orjson.dumps([parked.token, *job])
        send = self._reach(parked, tx.now_ms) if len(message) <= MESSAGE_BYTES_MAX else None
        if send is None:
            return False
        tx.handed.append(Handed(job, parked.token, message, send))
        return True

    def deliver(self, handed: Sequence[Handed]) -> None:
        """Send jobs whose leases are committed; those that cannot be sent are released in a separate call."""
        unsent: list[LeasedJob] = []
        for one in handed:
            try:
                one.send(one)
            except (OSError, RuntimeError):
                unsent.append(one.job)
        if unsent:
            with suppress(RuntimeError):  # The loop is closed: their worker looks them up.
                self._loop.call_soon_threadsafe(self.take_back, unsent)

    def _reach(self, parked: Parked, now_ms: int) -> Callable[[Handed], object] | None:
        """How to send to a waiting worker; None if it has not polled recently or has ended."""
        if parked.socket == self._work.name:
            is_here = self._receivers.get(parked.token.partition(".")[0]) is not None and not self._is_closed
            return self._send_here if is_here and _is_recent(self._renewed_at_ms, now_ms) else None
        if self._folder is None:
            return None
        try:
            looked_at_ms = os.stat(self._folder / parked.socket).st_mtime_ns // 1_000_000  # noqa: PTH116 - faster
            if not _is_recent(looked_at_ms, now_ms):
                return None
            sender = self._sender(parked.socket)
            with short_path(self._folder) as address:
                sender.connect(f"{address}/{parked.socket}")
        except OSError:
            return None
        return lambda one: sender.send(one.message)

    def _sender(self, name: str) -> socket.socket:
        sender = self._sockets.get(name)
        if sender is None:
            if len(self._sockets) >= SOCKETS_MAX:
                self._close_sockets()
            kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            self._sockets[name] = sender = socket.socket(socket.AF_UNIX, kind)
        return sender

    def _send_here(self, one: Handed) -> None:
        self._loop.call_soon_threadsafe(self._arrived, one.token, one.job)

    def close(self) -> None:
        """Stop handing jobs over; runs in the event loop."""
        self._is_closed = True
        self._demands.clear()
        self._awaited.clear()

    def _close_sockets(self) -> None:
        for sender in self._sockets.values():
            sender.close()
        self._sockets.clear()

    def release(self) -> None:
        """Close the sockets, once no more transactions run."""
        self._close_sockets()


def _is_short(job: LeasedJob) -> bool:
    """Whether the texts of a job have at most `HANDED_BYTES_MAX` bytes."""
    texts = (job.variables, job.headers or "", job.correlation_id or "", job.extra or "")
    if sum(map(len, texts)) > HANDED_BYTES_MAX:
        return False
    return sum(len(text if text.isascii() else text.encode()) for text in texts) <= HANDED_BYTES_MAX


def _is_row_of(local: LocalDemand, row: tuple[str, int, str, str] | None) -> bool:
    return row is not None and row[3] == local.token


def _meets(local: LocalDemand, demand: Demand) -> bool:
    """Whether a parked demand has the lease and the receiver of this one."""
    return local.receiver() is demand.receiver and local.lease_ms == demand.lease_ms


def _is_recent(looked_at_ms: int | None, now_ms: int) -> bool:
    """Whether a poll at this time is recent; if the clock was set back after it, that is unknown."""
    return looked_at_ms is not None and 0 <= now_ms - looked_at_ms <= PARK_MS
