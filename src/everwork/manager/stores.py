"""Backends and brokers: the two sides of a store, each by its URL. A backend knows who works, a broker takes events."""

from __future__ import annotations

import asyncio
from abc import ABC
from collections.abc import AsyncGenerator, Iterable
from types import TracebackType
from typing import ClassVar, Final, NamedTuple, Self

from everwork.aio import forks
from everwork.app.function import JobKey
from everwork.codec.urls import shown_url
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

SQLITE_SCHEMES: Final = ("sqlite",)
POSTGRES_SCHEMES: Final = ("postgresql", "postgres")
REDIS_SCHEMES: Final = ("redis", "rediss", "redis+cluster", "rediss+cluster", "redis+unix")


class _Opened(NamedTuple):
    """A service, and the event loop that it lives in."""

    loop: asyncio.AbstractEventLoop
    opening: asyncio.Task[_Held]


class _Held(NamedTuple):
    """A service that is open, and what closes it when it is closed itself, at the latest when its loop ends."""

    service: JobService
    hold: AsyncGenerator[None, None]


class _Store(ABC):  # noqa: B024 - it has no calls of its own
    """A store by its URL, opened when it is first used, in one event loop at a time.

    It may be used again after `close`, also in another loop. A loop that ends as `asyncio.run` ends it closes it, too.
    """

    schemes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, url: str) -> None:
        self._require_scheme(url)
        self._engine = open_engine(url)
        self.url = url
        self._name = WorkerName(None)
        self._opened: _Opened | None = None
        forks.watch(self, _Store._begin_anew)

    async def open(self) -> None:
        """Open the store now, and not at the first use."""
        await self._service()

    async def close(self) -> None:
        """Let go of the store. A second close does nothing."""
        opened = self._opened_here()
        self._opened = None
        if opened is not None:
            await asyncio.wait([opened.opening])
            if not opened.opening.cancelled() and opened.opening.exception() is None:
                await opened.opening.result().hold.aclose()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shown_url(self.url)!r})"

    # Inside -------------------------------------------------------------------------------------

    async def _service(self) -> JobService:
        opened = self._opened_here()
        if opened is None:
            loop = asyncio.get_running_loop()
            self._opened = opened = _Opened(loop, loop.create_task(self._open()))
        # One caller who is cancelled must not take the others' opening away.
        held = opened.opening.result() if opened.opening.done() else await asyncio.shield(opened.opening)
        return held.service

    async def _open(self) -> _Held:
        service = JobService(self._engine.fresh(), self._name.process)
        try:
            # Nobody keeps a store in order who only publishes or asks: managers and servers do.
            await service.open(upkeep=False)
        except BaseException:
            if self._opened is not None and self._opened.opening is asyncio.current_task():
                self._opened = None
            await service.close()
            raise
        hold = _hold(service)
        await anext(hold)
        return _Held(service, hold)

    def _opened_here(self) -> _Opened | None:
        """What is open in this loop; nothing of one that has ended, which has closed it or cannot close it any more."""
        opened = self._opened
        if opened is None or opened.loop is asyncio.get_running_loop():
            return opened
        if opened.loop.is_running():
            name = type(self).__name__
            raise BadConfiguration(f"{name}: is in use by another event loop; close it there, or make one per loop")
        return None

    def _begin_anew(self) -> object:
        of_parent, self._opened = self._opened, None
        return of_parent

    def _require_scheme(self, url: object) -> None:
        name = type(self).__name__
        if not self.schemes:
            raise BadConfiguration(f"{name}: must be one of an engine, such as Sqlite{name.removeprefix('Abstract')}")
        if isinstance(url, str) and url.partition(":")[0].lower() not in self.schemes:
            allowed = " or ".join(f"{scheme}://" for scheme in self.schemes)
            # What stands before "://" is no secret; without it, the whole text may be one.
            found = f", not with {shown(url.partition('://')[0])}" if "://" in url else ""
            raise BadConfiguration(f"{name}: the URL must start with {allowed}{found}")


class AbstractBackend(_Store):
    """The registry's side of a store: who works, and what is switched on. Workers and triggers go by id or title."""

    async def get_worker_status(self, worker: str) -> WorkerView:
        """One worker: `status` is "on" or "off", `processes` run it."""
        fleet = await self._fleet()
        entry = await fleet.worker(worker)
        return next(view for view in await fleet.workers() if view.entry.id == entry.id)

    async def get_process_status(self, name: str) -> ProcessEntry:
        """One process that lives: `state` is "starting", "running" or "stopping"."""
        for process in await self.processes():
            if process.name == name:
                return process
        raise NotFound("process", name)

    async def workers(self) -> list[WorkerView]:
        """Every worker that was ever started, by title."""
        return await (await self._fleet()).workers()

    async def triggers(self) -> list[TriggerView]:
        """Every trigger, by worker and id."""
        return await (await self._fleet()).triggers()

    async def processes(self) -> list[ProcessEntry]:
        """Every process that lives, by name."""
        return await (await self._fleet()).processes()

    async def switch_worker(self, worker: str, is_on: bool) -> bool:
        """Let a worker take jobs or not; whether that is a change."""
        return await (await self._fleet()).switch_worker(worker, is_on)

    async def switch_trigger(self, trigger: str, is_on: bool) -> bool:
        """Let a trigger fire or not; whether that is a change."""
        return await (await self._fleet()).switch_trigger(trigger, is_on)

    async def _fleet(self) -> Fleet:
        return (await self._service()).fleet


class AbstractBroker(_Store):
    """The jobs' side of a store: publishes events."""

    async def push(self, event: Event) -> JobKey:
        """Publish an event, durably, and answer the key of its job.

        An event with a dedupe key is tried again for a while if the store is away; of any other nobody would know
        whether it was published.
        """
        return (await self._create([_job(event)]))[0]

    async def push_many(self, events: Iterable[Event]) -> list[JobKey]:
        """Publish events, all or none; the first that is wrong is named by its place."""
        return await self._create(_jobs(events))

    async def _create(self, jobs: list[NewJob]) -> list[JobKey]:
        service = await self._service()
        return [JobKey.of(created) for created in await service.create_retrying(jobs)] if jobs else []


class SqliteBackend(AbstractBackend):
    """The registry's side of a SQLite file."""

    schemes = SQLITE_SCHEMES


class SqliteBroker(AbstractBroker):
    """The jobs' side of a SQLite file."""

    schemes = SQLITE_SCHEMES


class PostgresBackend(AbstractBackend):
    """The registry's side of a PostgreSQL database."""

    schemes = POSTGRES_SCHEMES


class PostgresBroker(AbstractBroker):
    """The jobs' side of a PostgreSQL database."""

    schemes = POSTGRES_SCHEMES


class RedisBackend(AbstractBackend):
    """The registry's side of a Redis database or cluster."""

    schemes = REDIS_SCHEMES


class RedisBroker(AbstractBroker):
    """The jobs' side of a Redis database or cluster."""

    schemes = REDIS_SCHEMES


async def _hold(service: JobService) -> AsyncGenerator[None, None]:
    """Keep a service open. Loops close generators when they end: the only thing that they tell anybody of their end."""
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
