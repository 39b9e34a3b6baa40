"""Backends and brokers: two views of a store. A backend reads the registry, a broker publishes events."""

from __future__ import annotations

import asyncio
from abc import ABC
from collections.abc import AsyncGenerator, Iterable
from types import TracebackType
from typing import ClassVar, Final, NamedTuple, Self

from everwork.aio import forks
from everwork.app.handle import JobKey
from everwork.codec.urls import engine_url, shown_url
from everwork.core.checks import shown
from everwork.core.job import NewJob
from everwork.core.limits import CREATE_BATCH_MAX
from everwork.engines.open import open_engine
from everwork.exceptions import BadConfiguration, InvalidInput, NotFound
from everwork.runtime.events import Event
from everwork.runtime.runtime import WorkerName
from everwork.service.fleet.entries import ProcessEntry, TriggerView, WorkerView
from everwork.service.fleet.fleet import Fleet
from everwork.service.service import JobService
from everwork.spool.settings import Offline, Spool

SQLITE_SCHEMES: Final = ("sqlite",)
POSTGRES_SCHEMES: Final = ("postgresql",)
REDIS_SCHEMES: Final = ("redis", "rediss", "redis+cluster", "rediss+cluster", "redis+unix")


class _Opened(NamedTuple):
    """A service that is open or being opened, and the event loop that it belongs to."""

    loop: asyncio.AbstractEventLoop
    opening: asyncio.Task[_OpenService]


class _OpenService(NamedTuple):
    """An open service and a generator; closing the generator, at the latest when its loop ends, closes the service."""

    service: JobService
    closer: AsyncGenerator[None, None]


class _Store(ABC):  # noqa: B024 - it has no abstract methods
    """A store by its URL, opened on first use, in one event loop at a time.

    It can be used again after `close`, even in another loop. It is also closed at the end of `asyncio.run`.
    """

    schemes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, url: str) -> None:
        self._require_scheme(url)
        self._engine = open_engine(url)
        self.url = url
        self.offline: Offline | None = None
        self._name = WorkerName(None)
        self._opened: _Opened | None = None
        forks.reset_in_child(self, _Store._reset_after_fork)

    async def open(self) -> None:
        """Open the store now instead of on first use."""
        await self._service()

    async def close(self) -> None:
        """Close the store. A second close does nothing."""
        opened = self._opened_here()
        self._opened = None
        if opened is not None:
            await asyncio.wait([opened.opening])
            if not opened.opening.cancelled() and opened.opening.exception() is None:
                await opened.opening.result().closer.aclose()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shown_url(self.url)!r})"

    # Internals ----------------------------------------------------------------------------------

    async def _service(self) -> JobService:
        opened = self._opened_here()
        if opened is None:
            loop = asyncio.get_running_loop()
            self._opened = opened = _Opened(loop, loop.create_task(self._open()))
        # Cancelling one caller must not cancel the opening for the others.
        ready = opened.opening.result() if opened.opening.done() else await asyncio.shield(opened.opening)
        return ready.service

    async def _open(self) -> _OpenService:
        service = JobService(self._engine.fresh(), self._name.process, offline=self.offline)
        try:
            # Maintenance is done by managers and servers, not by programs that only publish or query.
            await service.open(upkeep=False)
        except BaseException:
            if self._opened is not None and self._opened.opening is asyncio.current_task():
                self._opened = None
            await service.close()
            raise
        closer = _close_at_end(service)
        await anext(closer)
        return _OpenService(service, closer)

    def _opened_here(self) -> _Opened | None:
        """The service that is open in this loop; None if its loop has ended."""
        opened = self._opened
        if opened is None or opened.loop is asyncio.get_running_loop():
            return opened
        if opened.loop.is_running():
            name = type(self).__name__
            raise BadConfiguration(f"{name}: is in use by another event loop; close it there, or create one per loop")
        return None

    def _reset_after_fork(self) -> object:
        inherited, self._opened = self._opened, None
        return inherited

    def _require_scheme(self, url: object) -> None:
        name = type(self).__name__
        if not self.schemes:
            raise BadConfiguration(
                f"{name}: must be a subclass for an engine, such as Sqlite{name.removeprefix('Abstract')}"
            )
        if isinstance(url, str) and engine_url(url).partition(":")[0].lower() not in self.schemes:
            allowed = " or ".join(f"{scheme}://" for scheme in self.schemes)
            # The scheme is not secret; without "://" the whole text could be.
            found = f", not with {shown(url.partition('://')[0])}" if "://" in url else ""
            raise BadConfiguration(f"{name}: the URL must start with {allowed}{found}")


class AbstractBackend(_Store):
    """The registry of a store: workers, processes and triggers. Workers and triggers are named by id or title."""

    async def get_worker_status(self, worker: str) -> WorkerView:
        """Return a worker: `status` is `"on"` or `"off"`, `processes` are those that run it.

        Raises `NotFound` if there is no such worker.
        """
        fleet = await self._fleet()
        entry = await fleet.worker(worker)
        return next(view for view in await fleet.workers() if view.entry.id == entry.id)

    async def get_process_status(self, name: str) -> ProcessEntry:
        """Return a running process: `state` is `"starting"`, `"running"` or `"stopping"`. Raises `NotFound`."""
        for process in await self.processes():
            if process.name == name:
                return process
        raise NotFound("process", name)

    async def workers(self) -> list[WorkerView]:
        """Return every worker that was ever started, sorted by title."""
        return await (await self._fleet()).workers()

    async def triggers(self) -> list[TriggerView]:
        """Return every trigger, sorted by worker and id."""
        return await (await self._fleet()).triggers()

    async def processes(self) -> list[ProcessEntry]:
        """Return every running process, stream and poller (see `kind`); processes first, sorted by name."""
        return await (await self._fleet()).processes()

    async def switch_worker(self, worker: str, is_on: bool) -> bool:
        """Enable or disable a worker; returns whether this changed anything."""
        return await (await self._fleet()).switch_worker(worker, is_on)

    async def switch_trigger(self, trigger: str, is_on: bool) -> bool:
        """Enable or disable a trigger; returns whether this changed anything."""
        return await (await self._fleet()).switch_trigger(trigger, is_on)

    async def _fleet(self) -> Fleet:
        return (await self._service()).fleet


class AbstractBroker(_Store):
    """Publishes events to a store: `await broker.push(Event(source="order-paid", kwargs={"order": 7}))`.

    `offline`, the path of a local file or a `Spool`, enables offline mode: events, and the outcomes of a manager with
    this broker, are kept in the file while the engine is unavailable, and delivered when it is back.
    """

    def __init__(self, url: str, *, offline: str | Spool | None = None) -> None:
        super().__init__(url)
        self.offline = Offline.of(offline, url)

    async def push(self, event: Event) -> JobKey:
        """Publish an event and return the key of its job. The event is stored when this returns.

        If the store is unavailable, an event with a `dedupe_key` is retried for a while; others are not, because they
        could be published twice. Raises `EngineUnavailable`, and `InvalidInput` if the event is invalid.
        """
        return (await self._create([_job(event)]))[0]

    async def push_many(self, events: Iterable[Event]) -> list[JobKey]:
        """Publish up to 10,000 events, all or none; an error names the index of the first invalid one."""
        return await self._create(_jobs(events))

    async def _create(self, jobs: list[NewJob]) -> list[JobKey]:
        service = await self._service()
        return [JobKey.of(created) for created in await service.create_retrying(jobs)] if jobs else []


class SqliteBackend(AbstractBackend):
    """The registry of a SQLite store: `SqliteBackend("sqlite:///jobs.db")`."""

    schemes = SQLITE_SCHEMES


class SqliteBroker(AbstractBroker):
    """Publishes events to a SQLite store: `SqliteBroker("sqlite:///jobs.db")`."""

    schemes = SQLITE_SCHEMES


class PostgresBackend(AbstractBackend):
    """The registry of a PostgreSQL store: `PostgresBackend("postgresql://user@host/database")`."""

    schemes = POSTGRES_SCHEMES


class PostgresBroker(AbstractBroker):
    """Publishes events to a PostgreSQL store: `PostgresBroker("postgresql://user@host/database")`."""

    schemes = POSTGRES_SCHEMES


class RedisBackend(AbstractBackend):
    """The registry of a Redis store or cluster: `RedisBackend("redis://host:6379/0")`."""

    schemes = REDIS_SCHEMES


class RedisBroker(AbstractBroker):
    """Publishes events to a Redis store or cluster: `RedisBroker("redis://host:6379/0")`."""

    schemes = REDIS_SCHEMES


async def _close_at_end(service: JobService) -> AsyncGenerator[None, None]:
    """Closes a service when this generator is closed. Event loops close generators at the end: their only hook."""
    try:
        yield
    finally:
        await service.close()


def _job(event: object) -> NewJob:
    if not isinstance(event, Event):
        raise InvalidInput("event", f"must be an Event, not {shown(event)}")
    return event.to_job()


def _jobs(events: object) -> list[NewJob]:
    if not isinstance(events, Iterable):
        raise InvalidInput("events", f"must be a list of events, not {shown(events)}")
    jobs: list[NewJob] = []
    for at, event in enumerate(events):
        if at == CREATE_BATCH_MAX:
            raise InvalidInput("events", f"must be at most {CREATE_BATCH_MAX:,} in one call")
        try:
            jobs.append(_job(event))
        except InvalidInput as error:
            place = f"events[{at}]" if error.field == "event" else f"events[{at}].{error.field}"
            raise InvalidInput(place, error.problem) from None
    return jobs
