"""Wake-ups: bells that ring in this process, and NOTIFY for the others, one in flight at a time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Final

from everwork.engines.postgres.connections import Connections, close, connect
from everwork.engines.postgres.errors import DRIVER_ERRORS
from everwork.engines.postgres.store_url import StoreUrl
from everwork.exceptions import EngineError
from everwork.logs import Outage, get_logger

log = get_logger("everwork.postgres")

ANY_TYPE: Final = ""
DONE: Final = "\t"
"""What a notification says besides types, which are printable names: everything, or that jobs have finished."""
SEPARATOR: Final = "\n"
PAYLOAD_BYTES_MAX: Final = 7_000
POLL_ONLY_MS: Final = 100
"""How often waiters look for themselves where nobody can be notified."""
BACKOFF_SECONDS: Final = (0.1, 2.0)
FIRST_SECONDS: Final = 1.0
SILENCE_SECONDS: Final = 15.0
"""A listening connection that heard nothing for so long is asked whether it lives."""


class Wakeup:
    """One kind of wake-up in this process."""

    def __init__(self) -> None:
        self.rings = 0
        self._waiting: dict[asyncio.Future[bool], frozenset[str]] = {}

    def ring(self, types: Iterable[str] = (ANY_TYPE,)) -> None:
        """Let those go who wait for one of these types."""
        self.rings += 1
        rung = frozenset(types)
        for future, wanted in list(self._waiting.items()):
            if not future.done() and (ANY_TYPE in rung or not wanted or wanted & rung):
                future.set_result(True)

    async def wait(self, types: Iterable[str], timeout_ms: int, since: int | None) -> bool:
        """Wait for a ring; one that came after `since` counts, whatever it was for."""
        if since is not None and since != self.rings:
            return True
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        self._waiting[future] = frozenset(types)
        timer = loop.call_later(timeout_ms / 1000, _give_up, future)
        try:
            return await future
        finally:
            timer.cancel()
            del self._waiting[future]


def _give_up(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)


class Notifier:
    """Tells other processes. While one NOTIFY is under way, what arrives shares the next."""

    def __init__(self, address: StoreUrl, connections: Connections, work: Wakeup, done: Wakeup) -> None:
        self._address = address
        self._connections = connections
        self._work = work
        self._done = done
        self._untold: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def tell_work(self, types: Iterable[str], *, everybody: bool = True) -> None:
        """Work of these types may have become ready; in this process, or wherever workers wait."""
        types = list(types)
        self._work.ring(types)
        if everybody:
            self._tell(types)

    def tell_done(self, *, everybody: bool = True) -> None:
        """Jobs have finished."""
        self._done.ring()
        if everybody:
            self._tell([DONE])

    def _tell(self, words: Iterable[str]) -> None:
        if self._address.notify:
            self._untold.update(words)
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        try:
            while self._untold:
                words, self._untold = self._untold, set()
                await self._connections.rows("SELECT pg_notify($1, $2)", channel(self._address), payload(words))
        except EngineError as error:
            # Only speed is lost: whoever waits looks for itself within a second.
            log.warning("could not notify other processes", error=str(error))
        finally:
            self._task = None

    async def close(self) -> None:
        """Let the last notification go out."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=1.0)


def channel(address: StoreUrl) -> str:
    """The name under which the processes of one store hear each other."""
    return f"everwork_{address.schema}"


def payload(words: Iterable[str]) -> str:
    """What a notification carries; everything, if it would be too long."""
    text = SEPARATOR.join(sorted(words))
    return text if len(text.encode()) <= PAYLOAD_BYTES_MAX else SEPARATOR.join((ANY_TYPE, DONE))


class Listener:
    """Hears other processes on a connection of its own, which is made anew whenever it is lost."""

    def __init__(self, address: StoreUrl, work: Wakeup, done: Wakeup) -> None:
        self._address = address
        self._work = work
        self._done = done
        self._task: asyncio.Task[None] | None = None
        self._is_heard = asyncio.Event()
        self._outage = Outage(log, "cannot hear wake-ups, polling meanwhile", "wake-ups are heard again")

    async def begin(self) -> None:
        """Begin to listen, if nobody has begun yet."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._listen_for_ever())
            await _is_set_within(self._is_heard, FIRST_SECONDS)

    async def close(self) -> None:
        """Stop listening."""
        self._is_heard.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _listen_for_ever(self) -> None:
        least, most = BACKOFF_SECONDS
        pause = least
        while True:
            try:
                await self._listen()
                pause = least
            except DRIVER_ERRORS as error:
                self._outage.report(error)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads reconnects, keeps no secret
            pause = min(pause * 2, most)

    async def _listen(self) -> None:
        """Listen until the connection is lost."""
        connection = await connect(self._address)
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        try:
            await connection.add_listener(channel(self._address), self._heard)
            # What was said while nobody listened is not repeated: everybody looks once.
            self._work.ring()
            self._done.ring()
            self._is_heard.set()
            self._outage.over()
            while not await _is_set_within(lost, SILENCE_SECONDS):
                await connection.execute("SELECT 1")
        finally:
            await close(connection)

    def _heard(self, _connection: object, _pid: int, _channel: str, said: object) -> None:
        words = set(str(said).split(SEPARATOR))
        if DONE in words:
            words.discard(DONE)
            self._done.ring()
        if words:
            self._work.ring(words)


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
