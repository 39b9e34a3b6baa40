"""Transports of a client, in this process or over gRPC, and its calls in progress."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar

from everwork.aio.loops import LoopLock
from everwork.aio.retrying import retrying
from everwork.client.address import Tls, is_remote, server_address
from everwork.exceptions import BadConfiguration, CallTimeout, EngineBusy, EngineUnavailable, EverworkError

if TYPE_CHECKING:
    from everwork.client.local import LocalJobs, LocalTransport
    from everwork.client.remote import RemoteJobs, RemoteTransport
    from everwork.client.stream import Stream
    from everwork.spool.settings import Spool

    Transport = LocalTransport | RemoteTransport
    Verbs = LocalJobs | RemoteJobs
    """The operations of a client; a type checker accepts only those that both classes have."""

T = TypeVar("T")


def transport_to(url: str, key: str | None, tls: Tls, spool: str | Spool | None = None) -> Transport:
    """The transport to a server or a store, not opened yet; with a spool, in offline mode."""
    if is_remote(url):
        address = server_address(url, key, tls)
        from everwork.client.remote import RemoteTransport  # noqa: PLC0415 - only what is used is loaded

        return RemoteTransport(address, spool)
    if key is not None or tls != Tls():
        raise BadConfiguration("client: key and tls are for servers; put a store's credentials in its URL")
    from everwork.client.local import LocalTransport  # noqa: PLC0415

    return LocalTransport(url, spool)


class Connection:
    """A client's transport, opened and used by one event loop of one process, and the calls on it."""

    def __init__(self, transport: Transport, timeout: float) -> None:
        self.transport = transport
        self.calls = Calls()
        self.streams: set[Stream] = set()
        """The open streams."""
        self._timeout = timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0
        self._opening = LoopLock()

    async def call(self, call: Callable[[Verbs], Awaitable[T]], *, safe: bool = False, more_seconds: float = 0.0) -> T:
        """Make one call within its time limit; calls that are safe to repeat are retried during an outage."""
        async with self.calls.within(self._timeout + more_seconds) as deadline:
            transport = await self.open()
            if not safe:
                return await call(transport.jobs(deadline))
            return await retrying(
                lambda: call(transport.jobs(deadline)), on=(EngineUnavailable, EngineBusy), until=deadline
            )

    async def open(self) -> Transport:
        """Open the transport if it is not open yet."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            async with self._opening.here():
                if self._loop is None:
                    await self.transport.open()
                    self._loop, self._process = loop, os.getpid()
        _require_own(self._process, self._loop)
        return self.transport

    async def close(self) -> None:
        """Close the transport. Calls in progress raise `EngineUnavailable`. The transport can be opened again."""
        if self._process not in (0, os.getpid()):
            return
        calls, self.calls = self.calls, Calls()
        was_open, self._loop = self._loop is not None, None
        calls.abort()
        async with self._opening.here():  # Callers that arrive during the close wait, and then open it again.
            was_open, self._loop = was_open or self._loop is not None, None
            try:
                await calls.wait_ended()
                await asyncio.gather(*(stream.break_off(closed()) for stream in self.streams))
            finally:
                if was_open:
                    await self.transport.close()


def _require_own(process: int, loop: asyncio.AbstractEventLoop | None) -> None:
    """Refuse a client that was opened in another process or event loop."""
    if process != os.getpid():
        raise BadConfiguration("client: it was opened before a fork; create a new client in the child process")
    if loop is not asyncio.get_running_loop():
        raise BadConfiguration("client: it was opened in another event loop; create one client per event loop")


END_SECONDS: Final = 15.0
"""How long closing waits for aborted calls; handlers can take a while to stop."""


def closed() -> EngineUnavailable:
    """The error that calls raise when their client is closed."""
    return EngineUnavailable("the client was closed")


class Calls:
    """The calls in progress of an open client."""

    def __init__(self) -> None:
        self._limits: set[asyncio.Timeout] = set()
        self._is_aborted = False
        self._all_done = asyncio.Event()

    @asynccontextmanager
    async def within(self, seconds: float | None = None) -> AsyncIterator[float]:
        """Limit the time of one call; yields its deadline on the event loop's clock."""
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                self._limits.add(limit)
                yield limit.when() or math.inf
        except TimeoutError as error:
            if self._is_aborted and limit.expired():
                raise closed() from None
            if isinstance(error, EverworkError) or seconds is None:
                raise
            raise CallTimeout(f"no answer within {seconds:g} s") from None
        finally:
            self._limits.discard(limit)
            if not self._limits:
                self._all_done.set()

    @property
    def are_in_progress(self) -> bool:
        """Whether any calls are in progress."""
        return bool(self._limits)

    def abort(self) -> None:
        """Make every call in progress raise an error saying that the client was closed."""
        self._is_aborted = True
        now = asyncio.get_running_loop().time()
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(now)

    async def wait_ended(self) -> None:
        """Wait until every call has ended."""
        if self.are_in_progress:
            self._all_done.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_done.wait(), END_SECONDS)
