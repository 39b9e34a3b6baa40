"""Wake-ups for waiting calls in this process, and for other processes by NOTIFY, one in flight at a time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from everwork.aio.wakeup import Wake, Watch, Watches
from everwork.core.leasing import Demand, Receiver
from everwork.engines.postgres.claims import Address
from everwork.engines.postgres.connections import Connections, close, connect
from everwork.engines.postgres.errors import DRIVER_ERRORS
from everwork.engines.postgres.receivers import Receivers
from everwork.engines.postgres.store_url import StoreUrl
from everwork.exceptions import EngineError
from everwork.logs import Outage, get_logger

log = get_logger("everwork.postgres")

ANY_TYPE: Final = ""
FINISHED: Final = "\t"
"""Entries of a notification that are not types, which are printable names: any type, or jobs have finished."""
SEPARATOR: Final = "\n"
PAYLOAD_BYTES_MAX: Final = 7_000
POLL_ONLY_MS: Final = 100
"""How often waiting calls poll if NOTIFY is disabled."""
BACKOFF_SECONDS: Final = (0.1, 2.0)
FIRST_SECONDS: Final = 1.0
SILENCE_SECONDS: Final = 15.0
"""A listening connection that has received nothing for this long is checked."""


class Wakeup:
    """One kind of wake-up in this process."""

    def __init__(self) -> None:
        self.count = 0
        self._watches = Watches()

    def wake(self, types: Iterable[str] = (ANY_TYPE,)) -> None:
        """Wake up the calls that wait for one of these types."""
        self.count += 1
        woken = frozenset(types)
        self._watches.wake(lambda wanted: ANY_TYPE in woken or not wanted or not wanted.isdisjoint(woken))

    async def wait(self, types: Iterable[str], timeout_ms: int, since: int | None) -> bool:
        """Wait for a wake-up; one that came after `since` counts, whatever its types."""
        if since is not None and since != self.count:
            return True
        return await self._watches.wait(timeout_ms, types)

    def watch(self, types: Iterable[str], timeout_ms: int, since: int, wake: Wake) -> Watch:
        """Call `wake` on the next wake-up, soon if one came after `since`, or after the timeout."""
        if since != self.count:
            return asyncio.get_running_loop().call_soon(wake, True)
        return self._watches.add(wake, timeout_ms, types)


class Notifier:
    """Notifies other processes. Events that arrive while one NOTIFY is in flight share the next."""

    def __init__(self, url: StoreUrl, connections: Connections, work: Wakeup, finished: Wakeup) -> None:
        self._url = url
        self._connections = connections
        self._work = work
        self._finished = finished
        self._unsent: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def notify_work(self, types: Iterable[str], *, elsewhere: bool = True) -> None:
        """Notify that work of these types may have become ready; `elsewhere`: also wake up other processes."""
        types = list(types)
        self._work.wake(types)
        if elsewhere:
            self._notify(types)

    def notify_finished(self, *, elsewhere: bool = True) -> None:
        """Notify that jobs have finished; `elsewhere`: also wake up other processes."""
        self._finished.wake()
        if elsewhere:
            self._notify([FINISHED])

    def _notify(self, words: Iterable[str]) -> None:
        if self._url.notify:
            self._unsent.update(words)
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        try:
            while self._unsent:
                words, self._unsent = self._unsent, set()
                await self._connections.fetch("SELECT pg_notify($1, $2)", channel(self._url), payload(words))
        except EngineError as error:
            # Only speed is lost: waiting processes poll within a second.
            log.warning("could not notify other processes", error=str(error))
        finally:
            self._task = None

    async def close(self) -> None:
        """Wait for the last notification."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=1.0)


def channel(url: StoreUrl) -> str:
    """The channel of the processes that share a store."""
    return f"everwork_{url.schema}"


def payload(words: Iterable[str]) -> str:
    """The payload of a notification; if it would be too long, a payload that wakes up everyone."""
    text = SEPARATOR.join(sorted(words))
    return text if len(text.encode()) <= PAYLOAD_BYTES_MAX else SEPARATOR.join((ANY_TYPE, FINISHED))


class Listener:
    """Listens to other processes on its own connection, and reconnects whenever that connection is lost."""

    def __init__(self, url: StoreUrl, work: Wakeup, finished: Wakeup, receivers: Receivers) -> None:
        self._url = url
        self._work = work
        self._finished = finished
        self._receivers = receivers
        self._task: asyncio.Task[None] | None = None
        self._is_listening = asyncio.Event()
        self._is_closing = False
        self._outage = Outage(log, "cannot receive notifications, polling instead", "notifications are received again")

    async def start(self) -> None:
        """Start listening, unless it has already started."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._listen_forever())
            await _is_set_within(self._is_listening, FIRST_SECONDS)

    async def addresses(self, demands: Sequence[Demand]) -> Mapping[Receiver, Address]:
        """The addresses of the receivers of these demands; a demand without one is not parked, or never was."""
        found = [demand.receiver for demand in demands if demand.receiver is not None and demand.parks]
        if not self._url.notify or not (found or any(demand.withdraws for demand in demands)):
            return {}
        if found:
            await self.start()
        return self._receivers.addresses(found)

    async def close(self) -> None:
        """Stop listening."""
        self._is_closing = True
        self._is_listening.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _listen_forever(self) -> None:
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
        connection = await connect(self._url)
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        try:
            await self._receivers.listen(connection, self._url.schema)
            # Last, because pg_stat_activity shows this statement to monitoring, and this channel is no secret.
            await connection.add_listener(channel(self._url), self._received)
            # Notifications that were sent before this are not repeated: every waiting call polls once.
            self._work.wake()
            self._finished.wake()
            self._is_listening.set()
            self._outage.over()
            while not await _is_set_within(lost, SILENCE_SECONDS):
                await connection.execute("SELECT 1")
        finally:
            # Jobs in transit may have been lost with the connection.
            self._receivers.gone(notify=not self._is_closing)
            await close(connection)

    def _received(self, _connection: object, _pid: int, _channel: str, text: object) -> None:
        words = set(str(text).split(SEPARATOR))
        if FINISHED in words:
            words.discard(FINISHED)
            self._finished.wake()
        if words:
            self._work.wake(words)


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
