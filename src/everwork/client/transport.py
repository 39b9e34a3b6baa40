"""How a client reaches jobs, in process or over gRPC: the verbs, and the calls under way."""

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
    """One call's way to the jobs; see `everwork.service.jobs.Jobs` for what each verb does."""

    async def create(self, jobs: Sequence[NewJob]) -> list[Created]:
        """Accept jobs, all or none."""
        ...

    async def activate(self, demand: Demand, wait_ms: int) -> Sequence[Any]:
        """Lease jobs: what an `ActiveJob` is made of."""
        ...

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Judged]:
        """End attempts; the variables of failures are merged into the jobs' own."""
        ...

    async def extend(self, key: int, attempt: int, lease_ms: int) -> Judged:
        """Let a lease end later."""
        ...

    async def cancel(self, key: int, reason: str) -> State:
        """Cancel one job."""
        ...

    async def requeue(self, key: int) -> State:
        """Bring one dead letter back."""
        ...

    async def requeue_matching(self, wanted: JobFilter, *, all: bool) -> BulkChange:
        """Bring back every dead letter that a filter shows; without any, only if `all` is said."""
        ...

    async def set_retries(self, key: int, retries: int) -> int:
        """Change how many attempts are left."""
        ...

    async def reschedule(self, key: int, *, run_at_ms: int | None, delay_ms: int) -> State:
        """Let one pending job run at another time."""
        ...

    async def set_priority(self, key: int, priority: int) -> State:
        """Change the priority of one pending job."""
        ...

    async def delete(self, key: int) -> State:
        """Remove one finished job."""
        ...

    async def get(self, key: int) -> Job:
        """A job as it stands."""
        ...

    async def history(self, key: int) -> list[HistoryEntry]:
        """How a job's attempts ended."""
        ...

    async def explain(self, key: int) -> Explanation:
        """Why a job is not running."""
        ...

    async def stats(self, hours: int) -> Stats:
        """Counts, and what workers did lately."""
        ...

    async def result(self, key: int, timeout: float) -> str | None:
        """The result of a job, once it has one."""
        ...

    async def page(self, wanted: JobFilter, limit: int, cursor: int | None) -> Page:
        """Matching jobs, newest first."""
        ...


class Transport(Protocol):
    """How a client reaches the jobs."""

    async def open(self) -> None:
        """Be ready for calls."""
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...

    def jobs(self, deadline: float) -> Verbs:
        """The verbs for one call, which must be answered by this time of the event loop's clock."""
        ...


def line_to(url: str, key: str | None, tls: Tls) -> Transport:
    """The way to a server or a store, not opened yet."""
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
"""How long closing waits for calls that it has ended: handlers may take their time to stop."""


def closed() -> EngineUnavailable:
    """The error of whoever was in a call when its client was closed."""
    return EngineUnavailable("the client was closed")


class Calls:
    """What is under way between the opening of a client and its end."""

    def __init__(self) -> None:
        self._limits: set[asyncio.Timeout] = set()
        self._is_over = False
        self._ended = asyncio.Event()

    @asynccontextmanager
    async def within(self, seconds: float | None = None) -> AsyncIterator[float]:
        """Time for one call; by which moment of the event loop's clock it must be answered."""
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                self._limits.add(limit)
                yield limit.when() or math.inf
        except TimeoutError as error:
            if self._is_over and limit.expired():
                raise closed() from None
            if isinstance(error, EverworkError) or seconds is None:
                raise
            raise CallTimeout(f"no answer within {seconds:g} s") from None
        finally:
            self._limits.discard(limit)
            if not self._limits:
                self._ended.set()

    def break_off(self) -> None:
        """Let every call raise that the client was closed."""
        self._is_over = True
        now = asyncio.get_running_loop().time()
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(now)

    async def ended(self) -> None:
        """Wait until they have."""
        if self._limits:
            self._ended.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), END_SECONDS)
