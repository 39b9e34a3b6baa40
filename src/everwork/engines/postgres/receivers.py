"""The workers of this process to which creates hand jobs over, on the connection that listens for wake-ups.

The connection holds an advisory lock on its token until it is closed, so that a create can check whether the worker can
still be reached. Every role of the database can read the token, and may LISTEN and NOTIFY on any channel, so it
is named after a secret, which only this process and those who may read the table `parked` know. It is never logged.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable, Mapping
from typing import Final
from weakref import WeakKeyDictionary, WeakValueDictionary

import asyncpg
import orjson

from everwork.core.job import LeasedJob
from everwork.core.leasing import Demand, Receiver
from everwork.engines.postgres.claims import Address, Marks
from everwork.engines.postgres.statements import statements
from everwork.engines.take_back import TakeBack

TOKEN_BITS: Final = 31
SECRET_BYTES: Final = 16


class Receivers:
    """The receivers of one process; they can be reached while their connection is open."""

    def __init__(self, marks: Marks, take_back: TakeBack) -> None:
        self._marks = marks
        self._take_back = take_back
        self._token: int | None = None
        self._secret = ""
        self._numbers = itertools.count(1)
        self._addresses: WeakKeyDictionary[Receiver, Address] = WeakKeyDictionary()
        self._receivers: WeakValueDictionary[int, Receiver] = WeakValueDictionary()

    async def listen(self, connection: asyncpg.Connection, schema: str) -> None:
        """Receive jobs on a connection."""
        sql = statements("activate", schema)["listen"]
        secret = secrets.token_hex(SECRET_BYTES)
        await connection.add_listener(f"everwork_{secret}", self._received)
        token = secrets.randbits(TOKEN_BITS)
        while not await connection.fetchval(sql, token):
            token = secrets.randbits(TOKEN_BITS)
        self._token, self._secret = token, secret

    def addresses(self, receivers: Iterable[Receiver]) -> Mapping[Receiver, Address]:
        """Where these receivers are reached, if they can be."""
        token = self._token
        if token is None:
            return {}
        for receiver in receivers:
            if receiver not in self._addresses:
                self._addresses[receiver] = address = Address(token, self._secret, next(self._numbers))
                self._receivers[address.number] = receiver
        return self._addresses

    def gone(self, *, notify: bool) -> None:
        """The connection is lost, perhaps with jobs in transit; `notify`: report this to the receivers."""
        lost = list(self._addresses)
        self._token = None
        self._addresses.clear()
        self._receivers.clear()
        if notify:
            for receiver in lost:
                receiver.lost()

    def _received(self, _connection: object, _pid: int, _channel: str, message: object) -> None:
        """Take a job that functions/create_one.sql has sent, and remember the turn of its lane, as after a claim.

        The message is genuine: only roles that may read the table `parked` can know the channel.
        """
        number, lane, *values = orjson.loads(str(message))
        job = LeasedJob._make(values)
        self._marks.of(Demand(job.type, "", 0)).lane = lane
        receiver = self._receivers.get(number)
        if receiver is None:
            self._take_back.add(job)
        else:
            receiver.handed(job)
