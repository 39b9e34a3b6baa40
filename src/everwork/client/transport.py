"""How a client reaches jobs, in process or over gRPC, and the calls in progress."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from everwork.client.address import Tls, is_remote, server_address
from everwork.exceptions import BadConfiguration, CallTimeout, EngineUnavailable, EverworkError

if TYPE_CHECKING:
    from everwork.client.local import LocalJobs, LocalTransport
    from everwork.client.remote import RemoteJobs, RemoteTransport
    from everwork.spool.settings import Spool

    Transport = LocalTransport | RemoteTransport
    Verbs = LocalJobs | RemoteJobs
    """A verb can be called only if both have it, with parameters that fit."""


def transport_to(url: str, key: str | None, tls: Tls, spool: str | Spool | None = None) -> Transport:
    """The transport to a server or a store, not opened yet; with a spool, in offline mode."""
    if is_remote(url):
        address = server_address(url, key, tls)
        from everwork.client.remote import RemoteTransport  # noqa: PLC0415 - only what is used is loaded

        return RemoteTransport(address, spool)
    if key is not None or tls != Tls():
        raise BadConfiguration("client: key and tls are for servers; a store's URL has its own user and parameters")
    from everwork.client.local import LocalTransport  # noqa: PLC0415

    return LocalTransport(url, spool)


def require_own(process: int, loop: asyncio.AbstractEventLoop | None) -> None:
    """Refuse a client that was opened in another process or event loop than the running one."""
    if process != os.getpid():
        raise BadConfiguration("client: it was opened before a fork; a child process needs a client of its own")
    if loop is not asyncio.get_running_loop():
        raise BadConfiguration("client: it was opened in another event loop; each loop needs a client of its own")


END_SECONDS: Final = 15.0
"""How long closing waits for the calls that it has aborted: handlers may take a while to stop."""


def closed() -> EngineUnavailable:
    """The error that calls raise when their client is closed."""
    return EngineUnavailable("the client was closed")


class Calls:
    """The calls in progress of a client that is open."""

    def __init__(self) -> None:
        self._limits: set[asyncio.Timeout] = set()
        self._is_aborted = False
        self._all_done = asyncio.Event()

    @asynccontextmanager
    async def within(self, seconds: float | None = None) -> AsyncIterator[float]:
        """Limit the time of one call; yields its deadline by the event loop's clock."""
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

    def abort(self) -> None:
        """Make every call raise that the client was closed."""
        self._is_aborted = True
        now = asyncio.get_running_loop().time()
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(now)

    async def wait_ended(self) -> None:
        """Wait until every call has ended."""
        if self._limits:
            self._all_done.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_done.wait(), END_SECONDS)
