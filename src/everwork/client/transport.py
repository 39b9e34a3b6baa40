"""How a client reaches jobs, in process or over gRPC: the verbs, and the calls in progress."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Protocol

from everwork.client.address import Tls, is_remote, server_address
from everwork.core.job import HistoryEntry, Job, NewJob
from everwork.core.leasing import Created, Demand, Judged
from everwork.core.outcome import Outcome
from everwork.core.queries import BulkChange, Explanation, JobFilter, Page, Stats
from everwork.core.states import State
from everwork.exceptions import BadConfiguration, CallTimeout, EngineUnavailable, EverworkError


class Verbs(Protocol):
    """The verbs for one call; see `everwork.service.jobs.Jobs` for what each of them does."""

    async def create(self, jobs: Sequence[NewJob]) -> list[Created]:
        """Accept jobs, all or none."""
        ...

    async def activate(self, demand: Demand, wait_ms: int) -> Sequence[Any]:
        """Lease jobs; each is the source of an `ActiveJob`."""
        ...

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Judged]:
        """End attempts; the variables of failures are merged into the jobs' own."""
        ...

    async def extend(self, key: int, attempt: int, lease_ms: int) -> Judged:
        """Extend a lease."""
        ...

    async def cancel(self, key: int, reason: str) -> State:
        """Cancel one job."""
        ...

    async def requeue(self, key: int) -> State:
        """Requeue one dead letter."""
        ...

    async def requeue_matching(self, filter_: JobFilter, *, all: bool) -> BulkChange:
        """Requeue every dead letter that matches; an empty filter needs `all`."""
        ...

    async def set_retries(self, key: int, retries: int) -> int:
        """Change how many attempts are left."""
        ...

    async def reschedule(self, key: int, *, run_at_ms: int | None, delay_ms: int) -> State:
        """Change when one pending job runs."""
        ...

    async def set_priority(self, key: int, priority: int) -> State:
        """Change the priority of one pending job."""
        ...

    async def delete(self, key: int) -> State:
        """Delete one finished job."""
        ...

    async def get(self, key: int) -> Job:
        """Return a job with everything that is known of it."""
        ...

    async def history(self, key: int) -> list[HistoryEntry]:
        """How a job's attempts ended."""
        ...

    async def explain(self, key: int) -> Explanation:
        """Why a job is not running."""
        ...

    async def stats(self, hours: int) -> Stats:
        """Counts by state, and what workers did recently."""
        ...

    async def result(self, key: int, timeout: float) -> str | None:
        """Wait for the result of a job."""
        ...

    async def page(self, filter_: JobFilter, limit: int, cursor: int | None) -> Page:
        """Matching jobs, newest first."""
        ...


class Transport(Protocol):
    """How a client reaches the jobs."""

    async def open(self) -> None:
        """Open it for calls."""
        ...

    async def close(self) -> None:
        """Release everything it holds."""
        ...

    def jobs(self, deadline: float) -> Verbs:
        """The verbs for one call, whose deadline is a time of the event loop's clock."""
        ...


def transport_to(url: str, key: str | None, tls: Tls) -> Transport:
    """The transport to a server or a store, not opened yet."""
    if is_remote(url):
        return _remote(url, key, tls)
    if key is not None or tls != Tls():
        raise BadConfiguration("client: key and tls are for servers; a store's URL has its own user and parameters")
    from everwork.client.local import LocalTransport  # noqa: PLC0415

    return LocalTransport(url)


def _remote(url: str, key: str | None, tls: Tls) -> Transport:
    address = server_address(url, key, tls)
    try:
        from everwork.client.remote import RemoteTransport  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("everwork"):
            raise
        raise BadConfiguration(
            f"client: {error.name!r} is not installed; run: pip install 'everwork[client]'"
        ) from None
    return RemoteTransport(address)


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
