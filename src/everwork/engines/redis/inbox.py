"""The open inbox: `XADD <type> * payload <JSON>` by any program becomes a job of that type, once.

A stream has a plain key, which on a cluster is in another slot than the namespace: so this is a loop and not a script.
Read, create with the entry's id as dedupe key, acknowledge and delete; who dies in between leaves an entry that another
process claims, and whose job exists already.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Final

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from everwork.codec.json import decode_object, encode_object
from everwork.core import checks
from everwork.core.instants import instant_ms
from everwork.core.job import NewJob
from everwork.core.leasing import Demand
from everwork.core.limits import DELAY_MS_MAX, HEADERS_BYTES_MAX, INSTANT_MS_MAX, PAYLOAD_BYTES_MAX
from everwork.engines.redis.connection import CONNECT_SECONDS, Connection
from everwork.engines.redis.records import job_words
from everwork.engines.redis.store_url import StoreUrl
from everwork.engines.redis.wire import SILENCE_SECONDS
from everwork.exceptions import EngineError, InvalidInput
from everwork.logs import Outage, get_logger

log = get_logger("everwork.redis")

GROUP: Final = "everwork"
LOOK_SECONDS: Final = 0.5
"""How often it is looked whether a type has got a stream."""
BLOCK_MS: Final = 1_000
CLAIM_SECONDS: Final = 10.0
IDLE_MS: Final = 30_000
"""An entry that its reader has not dealt with for this long is taken over."""
FORGET_MS: Final = 86_400_000
ENTRIES_MAX: Final = 500
ENTRIES_FIRST: Final = 16
"""As many are read before it is known how large they are."""
ASIDE_MAX: Final = 10_000
RETRY_SECONDS: Final = 1.0
CLOSE_SECONDS: Final = 2.0

ALL: Final = "every type"
"""Whose outage it is when it cannot be looked for streams at all."""

Entry = tuple[bytes, dict[bytes, bytes] | None]


class Inbox:
    """Looks for streams of the types that this process's workers ask for, and reads those that there are."""

    def __init__(self, link: Connection, *, idle_ms: int = IDLE_MS, reads: bool = True) -> None:
        self.types: set[str] = set()
        self._link = link
        self._idle_ms = idle_ms
        self._reads = reads
        self._foreign: set[str] = set()
        self._outages: dict[str, Outage] = {}
        self._at_once = ENTRIES_FIRST
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._looker: asyncio.Task[None] | None = None
        self._client: Any = None
        self.consumer = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"

    def want(self, demands: Sequence[Demand]) -> None:
        """Look for streams of these types from now on."""
        for demand in demands:
            if demand.type not in self.types:
                self.types.add(demand.type)
                if self._looker is None:
                    self._looker = asyncio.get_running_loop().create_task(self._look_for_streams())

    async def close(self) -> None:
        """Stop reading; what was read and not acknowledged stays for others."""
        tasks = [*self._readers.values(), *([self._looker] if self._looker else [])]
        while tasks:
            for task in tasks:
                task.cancel()
            # The driver may take a cancellation for a time-out of its own: then it is told again.
            tasks = list((await asyncio.wait(tasks, timeout=CLOSE_SECONDS))[1])
        if self._client is not None:
            with suppress(RedisError, OSError, TimeoutError, RuntimeError):
                await asyncio.wait_for(self._sign_off(), CLOSE_SECONDS)
            await self._client.aclose()

    # Finding streams ------------------------------------------------------------------------------

    async def _look_for_streams(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Begin to read the streams that have appeared."""
        if self._client is None:
            self._client = client_of(self._link.place)
        waiting = [type for type in sorted(self.types) if type not in self._readers or self._readers[type].done()]
        if waiting:
            await self._spared(ALL, self._find(waiting))

    async def _find(self, types: Sequence[str]) -> None:
        for type in types:
            try:
                self._begin(type, await self._client.type(type))
            except ResponseError as error:  # This one may not be read; the others may.
                self._outage(type).report(error)

    def _begin(self, type: str, found: bytes) -> None:
        if found == b"stream" and self._reads:
            self._readers[type] = asyncio.get_running_loop().create_task(self._read(type))
        elif found not in (b"none", b"stream") and type not in self._foreign:
            self._foreign.add(type)
            log.warning("the key named like this type is no stream and is left alone", type=type)

    async def _read(self, source: str) -> None:
        loop = asyncio.get_running_loop()
        claimed_at = -CLAIM_SECONDS
        while True:
            if loop.time() - claimed_at >= CLAIM_SECONDS:
                claimed_at = loop.time()
                entries = await self._spared(source, self.abandoned(source))
            else:
                entries = await self._spared(source, self.fresh(source))
            if entries is None:
                return  # The stream has gone, or the server: it is looked for again.
            await self.bring(source, entries)

    async def _spared(self, source: str, act: Coroutine[Any, Any, Any]) -> Any:
        """What an act answers; None if the server is away or the stream has gone."""
        try:
            answer = await act
        except (RedisError, OSError, EngineError, RuntimeError) as error:
            # uvloop calls it a RuntimeError when the driver writes to a connection that has just been closed.
            if not str(error).startswith("NOGROUP"):
                self._outage(source).report(error)
            return None
        self._outage(source).over()
        return answer

    def _outage(self, source: str) -> Outage:
        if source not in self._outages:
            away, back = "the inbox cannot be read, trying again", "the inbox can be read again"
            self._outages[source] = Outage(log, away, back, source=source)
        return self._outages[source]

    # Entries --------------------------------------------------------------------------------------

    async def fresh(self, source: str, block_ms: int | None = BLOCK_MS) -> list[Entry]:
        """Entries that nobody has read yet."""
        got = await self._client.xreadgroup(GROUP, self.consumer, {source: ">"}, count=self._at_once, block=block_ms)
        if not got:
            return []
        return self._measured(next(iter(got.values()))[0] if isinstance(got, dict) else got[0][1])

    async def abandoned(self, source: str) -> list[Entry]:
        """Entries that somebody has read and not dealt with; also makes the group, if it is the first."""
        try:
            await self._client.xgroup_create(source, GROUP, id="0")
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
        _, entries, *_ = await self._client.xautoclaim(
            source, GROUP, self.consumer, self._idle_ms, "0-0", count=self._at_once
        )
        await self._forget_the_dead(source)
        return self._measured(entries)

    def _measured(self, entries: Sequence[Entry]) -> list[Entry]:
        """The entries; from their size follows how many are read next time."""
        size = sum(len(value) for _, fields in entries for value in (fields or {}).values())
        if entries:
            self._at_once = max(1, min(ENTRIES_MAX, BATCH_BYTES_MAX * len(entries) // max(size, 1)))
        return list(entries)

    async def bring(self, source: str, entries: Sequence[Entry]) -> None:
        """Make jobs of entries and delete these; one that makes no sense is set aside with its error."""
        jobs: list[NewJob] = []
        for entry_id, fields in entries:
            if fields is None:
                continue  # It was deleted while somebody had it.
            try:
                jobs.append(job_of_entry(source, entry_id.decode(), fields))
            except InvalidInput as error:
                await self._stubborn(source, partial(self._set_aside, source, entry_id, fields, error))
        await self.create(source, jobs)
        ids = [entry_id for entry_id, _ in entries]
        if ids:
            await self._stubborn(source, lambda: self._client.xack(source, GROUP, *ids))
            await self._stubborn(source, lambda: self._client.xdel(source, *ids))

    async def create(self, source: str, jobs: Sequence[NewJob]) -> None:
        """Create jobs, however long it takes."""
        for portion in portions(jobs):
            await self._stubborn(source, partial(self._link.run, "create", job_words(portion)))

    async def _stubborn(self, source: str, act: Any) -> None:
        """Do what may be done twice until it is done: the entries stay here meanwhile."""
        while True:
            try:
                await act()
            except (RedisError, OSError, EngineError, RuntimeError) as error:
                self._outage(source).report(error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._outage(source).over()
                return

    async def _set_aside(self, source: str, entry_id: bytes, fields: dict[bytes, bytes], problem: InvalidInput) -> None:
        payload = fields.get(b"payload")
        told = {"payload": payload} if payload is not None else {"fields": repr(fields)[:10_000]}
        kept = {"entry": entry_id, "error": str(problem), **told}
        place = f"{source}:aside"
        try:
            await self._client.xadd(place, kept, maxlen=ASIDE_MAX, approximate=True)
        except ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            place = f"{place}:everwork"  # Somebody uses the name for something else.
            await self._client.xadd(place, kept, maxlen=ASIDE_MAX, approximate=True)
        log.warning("an entry was set aside", stream=source, entry=entry_id.decode(), into=place, error=str(problem))

    # Readers --------------------------------------------------------------------------------------

    async def _forget_the_dead(self, source: str) -> None:
        for consumer in await self._client.xinfo_consumers(source, GROUP):
            if consumer["pending"] == 0 and consumer["idle"] > FORGET_MS:
                await self._client.xgroup_delconsumer(source, GROUP, consumer["name"])

    async def _sign_off(self) -> None:
        """Take our name away where we owe nothing: with a consumer its unfinished entries would be forgotten."""
        for source in self._readers:
            owed = await self._client.xpending_range(source, GROUP, "-", "+", 1, self.consumer)
            if not owed:
                await self._client.xgroup_delconsumer(source, GROUP, self.consumer)


BATCH_BYTES_MAX: Final = 8_000_000
"""Entries are read, and jobs created, in portions of about this size."""


def portions(jobs: Sequence[NewJob]) -> Iterator[list[NewJob]]:
    """The jobs in their order, in portions of a bounded size; one that is larger stands alone."""
    portion: list[NewJob] = []
    taken = 0
    for job in jobs:
        size = len(job.variables) + len(job.headers or "")
        if portion and taken + size > BATCH_BYTES_MAX:
            yield portion
            portion, taken = [], 0
        portion.append(job)
        taken += size
    if portion:
        yield portion


def job_of_entry(type: str, entry_id: str, fields: Mapping[bytes, bytes]) -> NewJob:
    """The job that an entry asks for; what is wrong with it is an `InvalidInput`."""
    payload = fields.get(b"payload")
    if payload is None:
        raise InvalidInput("payload", 'is missing; write XADD <type> * payload {"kwargs": {...}}')
    told = decode_object("payload", payload, PAYLOAD_BYTES_MAX + HEADERS_BYTES_MAX)
    if "kwargs" not in told:
        raise InvalidInput("kwargs", "is missing in the payload; it must be a JSON object")
    headers = told.get("headers")
    if told.get("delay") is not None and told.get("run_at") is not None:
        raise InvalidInput("delay", "must not be given together with run_at; give one of them")
    return NewJob(
        type,
        encode_object("kwargs", told["kwargs"], PAYLOAD_BYTES_MAX),
        dedupe_key=f"inbox:{entry_id}",
        headers=None if headers is None else encode_object("headers", headers, HEADERS_BYTES_MAX),
        delay_ms=checks.milliseconds("delay", told.get("delay") or 0, 0, DELAY_MS_MAX / 1000),
        run_at_ms=_moment_ms("run_at", told.get("run_at")),
        expires_at_ms=_moment_ms("expires", told.get("expires")),
    )


def _moment_ms(field: str, value: Any) -> int | None:
    """A moment in ISO 8601 with a time zone, or in seconds since 1970."""
    if value is None:
        return None
    if not isinstance(value, str):
        return checks.milliseconds(field, value, 0, INSTANT_MS_MAX / 1000)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise InvalidInput(field, f"must be a moment in ISO 8601, not {checks.shown(value)}") from None
    if moment.tzinfo is None:
        raise InvalidInput(field, f"must have a time zone, like 2030-01-31T12:00:00Z, not {checks.shown(value)}")
    return checks.whole_number(field, instant_ms(moment), 0, INSTANT_MS_MAX)


def client_of(place: StoreUrl) -> Any:
    """A client on the server or cluster of a store; it connects when it is used."""
    settings: dict[str, Any] = {
        "username": place.username, "password": place.password, "protocol": 3,
        "socket_connect_timeout": CONNECT_SECONDS, "socket_timeout": SILENCE_SECONDS,
    }  # fmt: skip
    if place.tls is not None:
        settings |= {"ssl": True, **place.tls}
    if place.is_cluster:
        return RedisCluster(startup_nodes=[ClusterNode(host, port) for host, port in place.hosts], **settings)
    # One try more for a connection that was cut meanwhile; whoever asks is stubborn himself.
    settings["retry"] = Retry(NoBackoff(), 1)
    if place.socket_path is not None:
        return Redis(unix_socket_path=place.socket_path, db=place.db, **settings)
    [(host, port)] = place.hosts
    return Redis(host=host, port=port, db=place.db, **settings)
